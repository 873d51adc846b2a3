//! Memory for pages outside the program's own addresses.
//!
//! Owns: an arena of *places* of a page each, and access to their bytes. With a moving store they
//! are staging memory; with a pool, place f holds the page of frame f. Places count in the space's
//! pages, of 4 KiB or more; the arena and requests to devices count in 4 KiB.
//! Not here: which places are in use (`staging`).

use crate::frames::LockedPage;
use overspill_base::PAGE_SIZE;
use overspill_base::shared::{PageArena, PageBuf};

/// The arena.
#[derive(Debug)]
pub(crate) struct PageMemory {
    arena: PageArena,
    /// Bytes of a page, and of a slot.
    pub(crate) page_bytes: usize,
}

impl PageMemory {
    /// Cuts `arena` into places for pages of `page_bytes`.
    pub(crate) fn new(arena: PageArena, page_bytes: usize) -> Self {
        Self { arena, page_bytes }
    }

    pub(crate) fn arena(&self) -> &PageArena {
        &self.arena
    }

    /// Returns the number of places.
    pub(crate) fn places(&self) -> usize {
        self.arena.pages() * PAGE_SIZE / self.page_bytes
    }

    /// Returns the place at `buffer`, `None` if it lies elsewhere.
    pub(crate) fn place_of(&self, buffer: &PageBuf) -> Option<usize> {
        Some(self.arena.index_of(buffer)? / (self.page_bytes / PAGE_SIZE))
    }

    /// Returns the address of a place.
    pub(crate) fn address(&self, place: usize) -> *mut u8 {
        self.arena.address(place * (self.page_bytes / PAGE_SIZE))
    }

    /// Returns the content of a place.
    pub(crate) fn content(&self, place: usize) -> &[u8] {
        self.contents(place, 1)
    }

    /// Returns the content of adjacent places.
    pub(crate) fn contents(&self, place: usize, places: usize) -> &[u8] {
        debug_assert!(place + places <= self.places());
        // SAFETY: each place belongs to a frame that the caller has locked, or that is under
        // writeback, and its page is unmapped. Such pages are only read: by writeback, by mapping
        // them again, by comparing them. A writer would make what is written out torn. A device
        // reads into a place only while its frame is locked for that read.
        unsafe { std::slice::from_raw_parts(self.address(place), places * self.page_bytes) }
    }

    /// Returns a handle to a place for the device to read from, or to fill.
    pub(crate) fn buffer(&self, place: usize) -> PageBuf {
        // SAFETY: as in `contents`; the frame stays under WRITEBACK, or locked for the read, and so
        // keeps its place, until the request that owns this handle has completed.
        unsafe { PageBuf::from_raw(self.address(place)) }
    }

    /// Zeroes the place of an unpublished page of a pool.
    pub(crate) fn clear(&self, locked: &LockedPage) {
        let place = self.address(locked.frame().index());
        // SAFETY: in bounds, as `address` checks; the place belongs to the frame, which is locked,
        // and is not read before `BufferPool::publish`.
        unsafe { place.write_bytes(0, self.page_bytes) };
    }
}
