//! What is known of each slot's content: which write of the slot it is, and its tag.
//!
//! ```text
//! count   2n      nothing is known of the slot; the last write that began was number n, if any
//!         2n + 1  the slot holds write n, whose tag is beside
//!
//! even --begin--> the next even one --keep--> odd
//! odd  --begin--> the next even one
//! any  --forget--> as begin
//! ```
//!
//! Invariants: a slot's count only grows, by one atomic step, however its users are ordered, and as
//! long as the keys live, also if the slot is freed or its writer killed: so no number is given to
//! two writes.
//! Orderings: relaxed. A slot's users are ordered by others' locks, and the count's growth needs no
//! order with anything else.
//! Rejected: the tag in the slot's word, where the checksum is: it has 51 bits, and somebody who
//! writes to the device could try again and again.

use super::cipher::{Tag, Write};
use overspill_base::Slot;
use overspill_base::shared::Table;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A table of what is known of slots. Clones share it.
#[derive(Clone, Debug)]
pub struct Seals(Table<AtomicU64>);

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(super) write: Write,
    pub(super) tag: Tag,
}

impl Seals {
    /// Words per slot.
    pub const WORDS: usize = 3;

    /// Uses `words`, which start as zeros: [`WORDS`](Self::WORDS) per slot of the device.
    pub fn new(words: Table<AtomicU64>) -> Self {
        Self(words)
    }

    fn words(&self, slot: Slot) -> &[AtomicU64; Self::WORDS] {
        let first = slot.index() * Self::WORDS;
        self.0[first..].first_chunk().expect("the table has words for every slot")
    }

    /// What the slot is known to hold.
    pub(super) fn get(&self, slot: Slot) -> Option<Seal> {
        let [count, low, high] = self.words(slot).each_ref().map(|word| word.load(Relaxed));
        let mut tag = Tag::default();
        tag[..8].copy_from_slice(&low.to_le_bytes());
        tag[8..].copy_from_slice(&high.to_le_bytes());
        (count % 2 == 1).then_some(Seal { write: Write { slot, number: count / 2 }, tag })
    }

    /// Begins a write of the slot: nothing is known of it until [`keep`](Self::keep).
    pub(super) fn begin(&self, slot: Slot) -> Write {
        let [count, ..] = self.words(slot);
        let next = |count| (count | 1) + 1;
        let before = count.fetch_update(Relaxed, Relaxed, |count| Some(next(count)));
        Write { slot, number: next(before.expect("`next` always answers")) / 2 }
    }

    /// The write has come to its end without an error.
    pub(super) fn keep(&self, Seal { write, tag }: Seal) {
        let [count, low, high] = self.words(write.slot);
        let begun = write.number * 2;
        if count.load(Relaxed) != begun {
            debug_assert!(false, "slot {} was written or given up meanwhile", write.slot);
            return;
        }
        let (first, last) = (tag.first_chunk(), tag.last_chunk());
        low.store(u64::from_le_bytes(*first.expect("a tag has 16 bytes")), Relaxed);
        high.store(u64::from_le_bytes(*last.expect("a tag has 16 bytes")), Relaxed);
        // Never a store: if somebody else had begun another write, its number could come again.
        let _ = count.compare_exchange(begun, begun + 1, Relaxed, Relaxed);
    }

    /// Nothing is known of the slot from now on.
    pub(super) fn forget(&self, slot: Slot) {
        self.begin(slot);
    }
}
