//! Adopting: pages that are in a program's memory though the engine did not bring them.
//!
//! Owns: what stood in memory when a program was attached, what it filled before that memory was
//! managed, and what a forked child has of its parent, on the way into the lists.
//! Invariants: the address space is not called, and what a page holds is not touched. Of an adoption
//! and a fault that find the same untouched page one gives it a frame and the other leaves it alone;
//! a fault's zeros do not replace what is there.
//! Not here: which pages are in memory, which only the address space knows.

use crate::engine::Engine;
use crate::lru::LruList;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_base::PageNo;

impl Engine {
    /// Takes `pages` pages from `first` on into the inactive list, so that the first is evicted
    /// first. Leaves alone those that are not untouched. Reclaims as a fault does where no frame is
    /// free; returns how many pages it has dealt with, fewer than `pages` if memory has run out.
    ///
    /// They are in memory now, or will be discarded before they are touched again: an adopted page
    /// that is missing when it is touched is lost.
    pub fn adopt(&self, worker: &mut Worker, first: PageNo, pages: usize) -> usize {
        let adopted = (0..pages).take_while(|&n| self.adopt_page(worker, first.plus(n)));
        adopted.count()
    }

    /// False if there is no frame for it.
    fn adopt_page(&self, worker: &mut Worker, page: PageNo) -> bool {
        if self.table.load(page) != Pte::Empty {
            return true;
        }
        let Some(locked) = self.frame_for(worker, page) else { return false };
        if self.table.replace(page, Pte::Empty, Pte::Resident(locked.frame())) {
            self.frames.set(locked.frame(), flag::MAPPED);
            self.put_back(locked, LruList::Inactive);
        } else {
            self.free(locked);
        }
        true
    }
}
