//! Where pages are while they are in memory.
//!
//! Owns: the choice between two ways, and what either does for the verbs that all stages share. A
//! page of a program is mapped at its own address, and *moves* through staging memory when it is
//! evicted or read. A page of a *pool* stays at its frame's place, and is published there.
//! Invariants of a pool: a place is written by one of three, and they exclude each other: the
//! device, while the frame is locked for a read; the pool's users, from `publish` to `unpublish`;
//! and nobody, while its page is written to the device. So a page under writeback is not published
//! before its write is over, and no request ever sees a page change. A page that is clean and has a
//! copy on a slot is that copy: the pool knows of every change, so nothing is compared.
//! Rejected: places by page, which would be all of the address space; copying from a buffer, 1 us a
//! page where a whole miss takes three.

use crate::frames::LockedPage;
use crate::memory::PageMemory;
use crate::space::{BufferPool, Mapped, MovingSpace};
use crate::staging::Staging;
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use std::ops::Range;

/// One of the two ways.
pub(crate) enum Store {
    Moving(Moving),
    Pool(Arc<dyn BufferPool>),
}

/// Staging memory, and the space that pages move to and from.
pub(crate) struct Moving {
    pub(crate) staging: Staging,
    pub(crate) space: Arc<dyn MovingSpace>,
}

impl Moving {
    /// Ends the use of staging pages of one chunk.
    pub(crate) fn release(&self, pages: Range<usize>) {
        self.staging.release(pages, &*self.space);
    }
}

impl Store {
    /// Brings a page in sight that is in memory and out of it, at `place`.
    pub(crate) fn show(&self, locked: &LockedPage, memory: &PageMemory, place: usize) -> Mapped {
        match self {
            Self::Moving(moving) => moving.space.map(locked.page(), memory.content(place)),
            Self::Pool(pool) => {
                pool.publish(locked.page(), locked.frame());
                Mapped::all(1)
            }
        }
    }

    /// Brings adjacent untouched pages in sight.
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

    /// Whether a page that should be in sight is. In a pool nobody takes one out but the engine.
    pub(crate) fn finds(&self, page: PageNo) -> bool {
        match self {
            Self::Moving(moving) => moving.space.find(page),
            Self::Pool(_) => true,
        }
    }

    /// Ends the use of a place by a page that does not stay there.
    pub(crate) fn release(&self, place: usize) {
        match self {
            Self::Moving(moving) => moving.release(place..place + 1),
            Self::Pool(_) => {}
        }
    }

    /// Whether a page may be brought in sight while it is written to a device.
    pub(crate) fn shows_under_writeback(&self) -> bool {
        match self {
            Self::Moving(_) => true,
            Self::Pool(_) => false,
        }
    }

    /// What comes of touching a page that is lost, for whoever reads of it.
    pub(crate) fn touch_of_lost(&self) -> &'static str {
        match self {
            Self::Moving(_) => " and will raise SIGBUS when touched",
            Self::Pool(_) => "",
        }
    }
}
