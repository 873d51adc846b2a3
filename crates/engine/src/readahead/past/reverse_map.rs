//! The reverse map: from a slot to the page it was last given to.
//!
//! Owns: four bytes per slot, in blocks allocated when a slot of theirs is first used. Only
//! readahead by slot goes from a slot to its page, so only with it are they kept.
//! Invariants: none but memory safety. An answer is a hint: the page's word decides, and is read
//! under the lock of the slot's trunk.
//! Rejected: searching the page table for the entry; bits of the slot's own word, which hold the
//! checksum and are shared by processes in which the slot belongs to pages of different numbers.

use overspill_base::sync::AtomicU32;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{PageNo, Slot, zeroed};
use std::sync::OnceLock;

/// Slots in a block: 64 KiB for 64 MiB of slots.
const BLOCK_SLOTS: usize = 1 << 14;

/// The pages of one area's slots.
#[derive(Debug)]
pub(crate) struct ReverseMap {
    /// The words are the page plus one, or 0 for none.
    blocks: Box<[OnceLock<Box<[AtomicU32]>>]>,
}

impl ReverseMap {
    /// Makes an empty map of `slots` slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self { blocks: (0..slots.div_ceil(BLOCK_SLOTS)).map(|_| OnceLock::new()).collect() }
    }

    /// Records that `slot` belongs to `page` now.
    pub(crate) fn note(&self, slot: Slot, page: PageNo) {
        let block =
            self.blocks[slot.index() / BLOCK_SLOTS].get_or_init(|| zeroed::slice(BLOCK_SLOTS));
        block[slot.index() % BLOCK_SLOTS].store(page.0 + 1, Relaxed);
    }

    /// Returns the page that `slot` may belong to.
    pub(crate) fn page(&self, slot: Slot) -> Option<PageNo> {
        let block = self.blocks[slot.index() / BLOCK_SLOTS].get()?;
        block[slot.index() % BLOCK_SLOTS].load(Relaxed).checked_sub(1).map(PageNo)
    }
}
