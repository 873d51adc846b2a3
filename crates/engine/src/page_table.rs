//! The page table: one atomic word per page.
//!
//! Owns: the packing and the transitions of the words.
//!
//! ```text
//! bits 0..3   0 Empty · 1 Resident · 2 Swapped · 3 Poisoned
//! bit  3      FAULTED: a thread of the program waits for this page
//! bits 4..36  Resident: frame
//! bits 4..41  Swapped: entry      bits 41..61  Swapped: shadow
//!
//! Empty ──first touch──> Resident ──evicted──> Swapped ──mapped──> Resident
//!   ^                     │    └──zeros──> Empty  │ └──read error──> Poisoned
//!   └────discard──────────┴───────────────────────┴──────────────────────┘
//! ```
//!
//! Every transition is a compare-and-swap: from Resident, by the holder of the frame's page lock;
//! from Empty, by any thread; from Swapped, by the holder of the entry's trunk lock or, if the
//! entry is cached, of the frame's page lock. FAULTED survives transitions; only
//! [`take_faulted`](PageTable::take_faulted) clears it.
//!
//! Orderings: words are published with AcqRel and read with Acquire, so writes to a frame before
//! its word was published are seen. FAULTED against the page lock: see
//! [`mark_faulted`](PageTable::mark_faulted).

use crate::types::Pte;
use crate::workingset::SHADOW_BITS;
use overspill_area::SwapEntry;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed};
use overspill_base::sync::{AtomicBool, AtomicU64};
use overspill_base::{FrameNo, PageNo};

const TAG_MASK: u64 = 0b111;
const RESIDENT: u64 = 1;
const SWAPPED: u64 = 2;
const POISONED: u64 = 3;
const FAULTED: u64 = 1 << 3;
const PAYLOAD_SHIFT: u32 = 4;
const SHADOW_SHIFT: u32 = PAYLOAD_SHIFT + SwapEntry::BITS;
const _: () = assert!(SHADOW_SHIFT + SHADOW_BITS <= 64);

/// The words of all pages of one address space.
#[derive(Debug)]
pub struct PageTable {
    words: Table<AtomicU64>,
    /// Blocks with a word that was ever not Empty, so that walks skip the rest of a terabyte.
    populated: Box<[AtomicBool]>,
}

/// Words in a block: 256 KiB of them.
const BLOCK: usize = 1 << 15;

impl PageTable {
    /// Makes the table in `words`, which are zeros: every page is empty.
    pub fn new(words: Table<AtomicU64>) -> Self {
        let blocks = words.len().div_ceil(BLOCK);
        let populated = (0..blocks).map(|_| AtomicBool::new(false)).collect();
        Self { words, populated }
    }

    /// Iterates over ranges of pages; all outside them are empty, except for pages touched just
    /// now.
    pub fn populated(&self) -> impl Iterator<Item = impl Iterator<Item = PageNo>> {
        let blocks = self.populated.iter().enumerate().filter(|(_, any)| any.load(Relaxed));
        blocks.map(|(block, _)| {
            let end = ((block + 1) * BLOCK).min(self.len());
            (block * BLOCK..end).map(|page| PageNo(page as u32))
        })
    }

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True for a table without pages.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the state of `page`. A page past the table's end is empty.
    #[inline]
    pub fn load(&self, page: PageNo) -> Pte {
        self.words.get(page.index()).map_or(Pte::Empty, |word| unpack(word.load(Acquire)))
    }

    /// Returns the state of `page` if it is swapped to `entry`.
    pub(crate) fn load_on(&self, page: PageNo, entry: SwapEntry) -> Option<Pte> {
        let word = self.load(page);
        matches!(word, Pte::Swapped { entry: on, .. } if on == entry).then_some(word)
    }

    /// True if `page` is swapped to `entry`.
    pub fn is_on(&self, page: PageNo, entry: SwapEntry) -> bool {
        self.load_on(page, entry).is_some()
    }

    /// Replaces `old` by `new`; false if the word is no longer `old`.
    #[inline]
    pub fn replace(&self, page: PageNo, old: Pte, new: Pte) -> bool {
        let any = &self.populated[page.index() / BLOCK];
        if old == Pte::Empty && !any.load(Relaxed) {
            any.store(true, Relaxed);
        }
        let (old, new) = (pack(old), pack(new));
        let exchange = |w: u64| (w & !FAULTED == old).then_some(new | (w & FAULTED));
        self.words[page.index()].fetch_update(AcqRel, Acquire, exchange).is_ok()
    }

    /// Marks that a thread waits for `page`; false if the word is no longer `seen`.
    ///
    /// The caller found the page locked. It must then look at the lock again with a
    /// read-modify-write ([`Frames::is_locked_now`](crate::frames::Frames::is_locked_now)): either
    /// that comes before the unlock, and [`take_faulted`](Self::take_faulted), called after every
    /// unlock, sees the mark; or it finds the page unlocked and starts over.
    pub fn mark_faulted(&self, page: PageNo, seen: Pte) -> bool {
        let seen = pack(seen);
        let mark = |w: u64| (w & !FAULTED == seen).then_some(w | FAULTED);
        self.words[page.index()].fetch_update(AcqRel, Acquire, mark).is_ok()
    }

    /// Clears the mark; true if it was set and a thread has to be woken.
    #[inline]
    pub fn take_faulted(&self, page: PageNo) -> bool {
        self.words[page.index()].fetch_and(!FAULTED, AcqRel) & FAULTED != 0
    }
}

fn pack(pte: Pte) -> u64 {
    match pte {
        Pte::Empty => 0,
        Pte::Resident(frame) => RESIDENT | u64::from(frame.0) << PAYLOAD_SHIFT,
        Pte::Swapped { entry, shadow } => {
            SWAPPED | entry.to_bits() << PAYLOAD_SHIFT | u64::from(shadow) << SHADOW_SHIFT
        }
        Pte::Poisoned => POISONED,
    }
}

fn unpack(word: u64) -> Pte {
    let payload = word >> PAYLOAD_SHIFT;
    match word & TAG_MASK {
        RESIDENT => Pte::Resident(FrameNo(payload as u32)),
        SWAPPED => Pte::Swapped {
            entry: SwapEntry::from_bits(payload & ((1 << SwapEntry::BITS) - 1)),
            shadow: (word >> SHADOW_SHIFT) as u32 & ((1 << SHADOW_BITS) - 1),
        },
        POISONED => Pte::Poisoned,
        _ => Pte::Empty,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use overspill_area::AreaNo;
    use overspill_base::Slot;

    #[test]
    fn every_state_survives_packing() {
        let entry = SwapEntry::new(AreaNo(31), Slot(u32::MAX));
        for pte in [
            Pte::Empty,
            Pte::Resident(FrameNo(u32::MAX)),
            Pte::Swapped { entry, shadow: (1 << SHADOW_BITS) - 1 },
            Pte::Poisoned,
        ] {
            assert_eq!(unpack(pack(pte)), pte);
            assert_eq!(pack(pte) & FAULTED, 0);
        }
    }

    #[test]
    fn a_waiting_thread_survives_transitions_and_is_woken_once() {
        let table = PageTable::new(Table::on_heap(1, || AtomicU64::new(0)));
        let page = PageNo(0);
        assert!(table.mark_faulted(page, Pte::Empty));
        assert!(table.replace(page, Pte::Empty, Pte::Poisoned));
        assert!(!table.mark_faulted(page, Pte::Empty));
        assert_eq!(table.load(page), Pte::Poisoned);
        assert!(table.take_faulted(page) && !table.take_faulted(page));
    }
}
