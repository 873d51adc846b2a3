//! Which page a slot was last given to.
//!
//! Owns: four bytes per slot, in blocks made when a slot of theirs is first used. Only cluster
//! readahead asks, so only with it are they kept; nobody else goes from a slot to its page.
//! Invariants: none but memory safety. What it says is a guess: the page's word has the last
//! say, and is looked at under the lock of the slot's trunk.
//! Rejected: searching the page table for the entry; a place in the slot's own word, whose bits
//! hold the checksum and are shared by processes that have the slot for pages of different numbers.

use crate::types::NO_PAGE;
use overspill_base::sync::AtomicU32;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{PageNo, Slot};
use std::sync::OnceLock;

/// Slots whose pages are noted in one piece of memory: 64 KiB for 64 MiB of slots.
const BLOCK_SLOTS: usize = 1 << 14;

/// The pages of one area's slots.
#[derive(Debug)]
pub(crate) struct ReverseMap {
    blocks: Box<[OnceLock<Box<[AtomicU32]>>]>,
}

impl ReverseMap {
    /// A map of `slots` slots that knows of none.
    pub(crate) fn new(slots: usize) -> Self {
        Self { blocks: (0..slots.div_ceil(BLOCK_SLOTS)).map(|_| OnceLock::new()).collect() }
    }

    /// Notes that `slot` is `page`'s now.
    pub(crate) fn note(&self, slot: Slot, page: PageNo) {
        let block = self.blocks[slot.index() / BLOCK_SLOTS]
            .get_or_init(|| (0..BLOCK_SLOTS).map(|_| AtomicU32::new(NO_PAGE)).collect());
        block[slot.index() % BLOCK_SLOTS].store(page.0, Relaxed);
    }

    /// The page that `slot` may be in use for.
    pub(crate) fn page(&self, slot: Slot) -> Option<PageNo> {
        let block = self.blocks[slot.index() / BLOCK_SLOTS].get()?;
        let page = block[slot.index() % BLOCK_SLOTS].load(Relaxed);
        (page != NO_PAGE).then_some(PageNo(page))
    }
}
