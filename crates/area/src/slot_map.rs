//! One word per slot: how many processes hold it, and a tag its user attaches.
//!
//! Owns: the packing. The tag is the page's checksum in the product; here it is 56 opaque bits that
//! vanish when the slot becomes free, so that no page can be checked against its slot's previous
//! owner.
//!
//! ```text
//! bits 0..8   count   0 free · 1..=254 holders · 255 reserved
//! bits 8..64  tag     0 none
//!
//! free --claim--> 1 --hold--> n --drop_hold--> n-1 ... 1 --drop_hold--> free (tag cleared)
//! free --reserve--> reserved (for good)
//! ```
//!
//! Orderings: `drop_hold` releases and `claim` acquires the word, so whoever re-uses a slot has seen
//! everything its last holder did with it. Tags are written and read by holders only.

use crate::types::TooManyHolders;
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed};

/// Bits of the count, below the tag.
pub const COUNT_BITS: u32 = 8;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const RESERVED: u64 = COUNT_MASK;
/// Most processes that can hold one slot.
pub(crate) const HOLDERS_MAX: u64 = RESERVED - 1;

/// The words of one area's slots. Clones share them.
#[derive(Clone, Debug)]
pub struct SlotMap {
    words: Table<AtomicU64>,
}

impl SlotMap {
    /// The map in `words`.
    pub fn new(words: Table<AtomicU64>) -> Self {
        Self { words }
    }

    /// Slots there are, reserved ones included.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True for a map without slots.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Processes that hold `slot`; 0 when it is free, `None` when it is reserved.
    pub fn holders(&self, slot: Slot) -> Option<u64> {
        match self.words[slot.index()].load(Acquire) & COUNT_MASK {
            RESERVED => None,
            count => Some(count),
        }
    }

    /// True unless the slot could be handed out.
    #[inline]
    pub(crate) fn in_use(&self, slot: Slot) -> bool {
        self.words[slot.index()].load(Relaxed) != 0
    }

    /// Takes a free slot. False if it is not free.
    #[inline]
    pub(crate) fn claim(&self, slot: Slot) -> bool {
        self.words[slot.index()].compare_exchange(0, 1, AcqRel, Relaxed).is_ok()
    }

    /// Adds a holder to a slot the caller holds.
    pub(crate) fn hold(&self, slot: Slot) -> Result<(), TooManyHolders> {
        let word = &self.words[slot.index()];
        let full = |w: u64| (w & COUNT_MASK < HOLDERS_MAX).then_some(w + 1);
        word.fetch_update(AcqRel, Relaxed, full).map(drop).map_err(|_| TooManyHolders)
    }

    /// Ends one hold; true if it was the last and the slot is free now.
    ///
    /// # Panics
    /// When nobody holds it: the slot would be freed twice.
    pub(crate) fn drop_hold(&self, slot: Slot) -> bool {
        let fewer = |w: u64| match w & COUNT_MASK {
            0 | RESERVED => None,
            1 => Some(0),
            _ => Some(w - 1),
        };
        let before = self.words[slot.index()].fetch_update(AcqRel, Relaxed, fewer);
        let before = before.unwrap_or_else(|w| panic!("slot {slot} freed, but its word is {w:#x}"));
        before & COUNT_MASK == 1
    }

    pub(crate) fn reserve(&self, slot: Slot) {
        self.words[slot.index()].store(RESERVED, Relaxed);
    }

    /// The tag of a slot the caller holds; 0 if none was set since it was allocated.
    #[inline]
    pub fn tag(&self, slot: Slot) -> u64 {
        self.words[slot.index()].load(Relaxed) >> COUNT_BITS
    }

    /// Sets the tag, 56 bits, of a slot the caller holds.
    pub fn set_tag(&self, slot: Slot, tag: u64) {
        let word = &self.words[slot.index()];
        let tagged = |w: u64| Some((w & COUNT_MASK) | tag << COUNT_BITS);
        word.fetch_update(AcqRel, Relaxed, tagged).expect("the closure never refuses");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn map() -> SlotMap {
        SlotMap::new(Table::on_heap(4, || AtomicU64::new(0)))
    }

    #[test]
    fn a_slot_is_free_again_after_its_last_holder() {
        let map = map();
        assert!(map.claim(Slot(1)) && !map.claim(Slot(1)));
        map.hold(Slot(1)).unwrap();
        map.set_tag(Slot(1), 0xabc);
        assert!(!map.drop_hold(Slot(1)));
        assert_eq!((map.holders(Slot(1)), map.tag(Slot(1))), (Some(1), 0xabc));
        assert!(map.drop_hold(Slot(1)));
        assert_eq!((map.holders(Slot(1)), map.tag(Slot(1))), (Some(0), 0));
    }

    #[test]
    fn counts_stop_short_of_the_reserved_value_and_come_back() {
        let map = map();
        map.claim(Slot(0));
        for _ in 1..HOLDERS_MAX {
            map.hold(Slot(0)).unwrap();
        }
        assert_eq!(map.hold(Slot(0)), Err(TooManyHolders));
        assert_eq!(map.holders(Slot(0)), Some(HOLDERS_MAX));
        let last = (0..HOLDERS_MAX).map(|_| map.drop_hold(Slot(0))).filter(|&last| last).count();
        assert_eq!(last, 1);
    }

    #[test]
    #[should_panic(expected = "freed")]
    fn freeing_twice_is_a_bug() {
        let map = map();
        map.claim(Slot(2));
        map.drop_hold(Slot(2));
        map.drop_hold(Slot(2));
    }
}
