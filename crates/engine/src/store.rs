//! The store: where pages are while they are in memory.
//!
//! Owns: the choice of one of two stores, and the operations they share. A page of a program is
//! mapped at its own address, and *moves* through staging memory when it is evicted or read. A page
//! of a *pool* stays at its frame's place, and is published there.
//! Invariants of a pool: a place is written by the device, while the frame is locked for a read; by
//! the pool's users, from `publish` to `unpublish`; and not at all while its page is written to the
//! device. So a page under writeback is not published before its write has completed, and no
//! request sees a page change. A clean page with a copy on a slot equals that copy: the pool knows
//! of every change, so nothing is compared.
//! Rejected: a place per page, which would be all of the address space; copying from a buffer, 1 us
//! a page where a whole miss takes 3 us.

use crate::frames::LockedPage;
use crate::memory::PageMemory;
use crate::space::{BufferPool, Mapped, MovingSpace};
use crate::staging::Staging;
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use std::ops::Range;

/// One of the two stores.
pub(crate) enum Store {
    Moving(Moving),
    Pool(Arc<dyn BufferPool>),
}

/// Staging memory, and the space whose pages move through it.
pub(crate) struct Moving {
    pub(crate) staging: Staging,
    pub(crate) space: Arc<dyn MovingSpace>,
}

impl Moving {
    /// Returns the end of a chunk that was not put to use, before the rest is.
    pub(crate) fn trim(&self, unused: Range<usize>) {
        self.staging.trim(unused, &*self.space);
    }

    /// Releases staging pages of one chunk.
    pub(crate) fn release(&self, pages: Range<usize>) {
        self.staging.release(pages, &*self.space);
    }
}

impl Store {
    /// Maps or publishes a page whose content is at `place`.
    pub(crate) fn show(&self, locked: &LockedPage, memory: &PageMemory, place: usize) -> Mapped {
        match self {
            Self::Moving(moving) => moving.space.map(locked.page(), memory.content(place)),
            Self::Pool(pool) => {
                pool.publish(locked.page(), locked.frame());
                Mapped::all(1)
            }
        }
    }

    /// Maps or publishes adjacent untouched pages.
    pub(crate) fn show_zeros(&self, run: &[LockedPage], memory: &PageMemory) -> Mapped {
        match self {
            Self::Moving(moving) => moving.space.map_zeros(run[0].page(), run.len()),
            Self::Pool(pool) => {
                for locked in run {
                    memory.clear(locked);
                    pool.publish(locked.page(), locked.frame());
                }
                Mapped::all(run.len())
            }
        }
    }

    /// True if a page that should be mapped is. In a pool only the engine unpublishes pages.
    pub(crate) fn finds(&self, page: PageNo) -> bool {
        match self {
            Self::Moving(moving) => moving.space.find(page),
            Self::Pool(_) => true,
        }
    }

    /// Releases the staging place of a page; in a pool a page keeps its place.
    pub(crate) fn release(&self, place: usize) {
        match self {
            Self::Moving(moving) => moving.release(place..place + 1),
            Self::Pool(_) => {}
        }
    }

    /// True if a page may be mapped while it is under writeback.
    pub(crate) fn shows_under_writeback(&self) -> bool {
        match self {
            Self::Moving(_) => true,
            Self::Pool(_) => false,
        }
    }

    /// Describes, for the report, the effect of touching a lost page.
    pub(crate) fn touch_of_lost(&self) -> &'static str {
        match self {
            Self::Moving(_) => " and will raise SIGBUS when touched",
            Self::Pool(_) => "",
        }
    }
}
