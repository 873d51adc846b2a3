//! Adopting: pages that are in a program's memory though the engine did not bring them.
//!
//! Owns: what stood in memory when a program was attached, what it filled before that memory was
//! managed, and what a forked child has of its parent, on the way into the lists.
//! Invariants: the address space is not called, and what a page holds is not touched. Of an
//! adoption and a fault that find the same untouched page one gives it a frame and the other leaves
//! it alone; a fault's zeros do not replace what is there. Whether a page is in memory is asked
//! with its lock held, so that nobody evicts it meanwhile: one that was full of zeros would be
//! untouched again, and missing.
//! Not here: which pages are in memory, which only the caller knows.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_base::PageNo;
use overspill_base::stats::Event;
use std::ops::Range;

/// Pages asked about at a time: bits of the answer.
const ASKED_PAGES: usize = 64;

impl Engine {
    /// Takes those of `pages` pages from `first` on that are in memory into the inactive list, so
    /// that the first is evicted first. Leaves alone those that it knows already. Reclaims as a
    /// fault does where no frame is free; returns how many pages it has dealt with, fewer than
    /// `pages` if memory has run out.
    ///
    /// `in_memory` says which pages of a range, at most 64, the program has in memory now, the
    /// first with the lowest bit. It may block as calls of the address space do. If the program
    /// drops one afterwards, the page has to be [discarded](Self::discard) before its next touch is
    /// served.
    pub fn adopt(
        &self,
        worker: &mut Worker,
        first: PageNo,
        pages: usize,
        in_memory: impl Fn(Range<PageNo>) -> u64,
    ) -> usize {
        let mut done = 0;
        while done < pages {
            let most = ASKED_PAGES.min(pages - done);
            let some = self.adopt_some(worker, first.plus(done), most, &in_memory);
            if some == 0 {
                break;
            }
            done += some;
        }
        done
    }

    /// Deals with up to `most` pages; returns how many. 0 if there is no frame.
    fn adopt_some(
        &self,
        worker: &mut Worker,
        first: PageNo,
        most: usize,
        in_memory: &impl Fn(Range<PageNo>) -> u64,
    ) -> usize {
        let mut taken = std::mem::take(&mut worker.scratch.run);
        let taking =
            (0..most).take_while(|&n| self.take_untouched(worker, first.plus(n), &mut taken));
        let dealt_with = taking.count();
        let present = if taken.is_empty() { 0 } else { in_memory(first..first.plus(dealt_with)) };
        for locked in taken.drain(..) {
            let nth = locked.page().index() - first.index();
            self.end_adoption(locked, present >> nth & 1 != 0);
        }
        worker.scratch.run = taken;
        dealt_with
    }

    /// Gives an untouched page a frame, for the first by reclaim, for others if there is one to
    /// spare: nobody waits for a frame with several pages locked. False if there is none.
    fn take_untouched(
        &self,
        worker: &mut Worker,
        page: PageNo,
        taken: &mut Vec<LockedPage>,
    ) -> bool {
        if self.table.load(page) != Pte::Empty {
            return true;
        }
        let frame = match taken.is_empty() {
            true => self.frame_for(worker, page),
            false => self.frames.alloc_to_spare(page),
        };
        let Some(locked) = frame else { return false };
        if self.table.replace(page, Pte::Empty, Pte::Resident(locked.frame())) {
            taken.push(locked);
        } else {
            self.free(locked);
        }
        true
    }

    fn end_adoption(&self, locked: LockedPage, is_present: bool) {
        if is_present {
            self.distances.forget(locked.page());
            self.stats.count(Event::pgadopt);
            self.frames.set(locked.frame(), flag::MAPPED);
            self.put_back(locked, LruList::Inactive);
        } else {
            self.forget(locked);
        }
    }
}
