//! Memory for pages that the program does not see by its own addresses.
//!
//! Owns: an arena of *places* of a page each, and access to their bytes. With a moving store they
//! are staging memory; with a pool, place f is where the page of frame f stays. Pages are those of
//! the space, 4 KiB or more, and are numbered so; the arena and requests to devices count in 4 KiB.
//! Not here: which places are in use (`staging`).

use crate::frames::LockedPage;
use overspill_base::PAGE_SIZE;
use overspill_base::shared::{PageArena, PageBuf};

/// The arena.
#[derive(Debug)]
pub(crate) struct PageMemory {
    arena: PageArena,
    /// Bytes of a page, also of a slot.
    pub(crate) page_bytes: usize,
}

impl PageMemory {
    /// Places for pages of `page_bytes`.
    pub(crate) fn new(arena: PageArena, page_bytes: usize) -> Self {
        Self { arena, page_bytes }
    }

    pub(crate) fn arena(&self) -> &PageArena {
        &self.arena
    }

    /// Places there are.
    pub(crate) fn places(&self) -> usize {
        self.arena.pages() * PAGE_SIZE / self.page_bytes
    }

    /// Which place `buffer` is; none if it lies elsewhere.
    pub(crate) fn place_of(&self, buffer: &PageBuf) -> Option<usize> {
        Some(self.arena.index_of(buffer)? / (self.page_bytes / PAGE_SIZE))
    }

    /// Where a place begins.
    pub(crate) fn address(&self, place: usize) -> *mut u8 {
        self.arena.address(place * (self.page_bytes / PAGE_SIZE))
    }

    /// The content of a place.
    pub(crate) fn content(&self, place: usize) -> &[u8] {
        self.contents(place, 1)
    }

    /// The content of adjacent places.
    pub(crate) fn contents(&self, place: usize, places: usize) -> &[u8] {
        debug_assert!(place + places <= self.places());
        // SAFETY: each place is a frame's that the caller has locked or under writeback, and its
        // page is out of sight; such pages are only read: by writeback, by mapping them again, by
        // looking at them. A writer here would tear what is being written out. The device that
        // reads into one does so while its frame is locked for that read.
        unsafe { std::slice::from_raw_parts(self.address(place), places * self.page_bytes) }
    }

    /// A handle to a place for the device to read from, or to fill.
    pub(crate) fn buffer(&self, place: usize) -> PageBuf {
        // SAFETY: as in `contents`; the frame stays under WRITEBACK, or locked while it is being
        // read, and so keeps its place, until the request that owns this handle has completed.
        unsafe { PageBuf::from_raw(self.address(place)) }
    }

    /// Fills the place of a pool's page that nobody sees with zeros.
    pub(crate) fn clear(&self, locked: &LockedPage) {
        let place = self.address(locked.frame().index());
        // SAFETY: in bounds, as `address` checks; the place is its frame's, the frame is locked,
        // and nobody looks at it before `BufferPool::publish`.
        unsafe { place.write_bytes(0, self.page_bytes) };
    }
}
