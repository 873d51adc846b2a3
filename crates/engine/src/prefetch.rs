//! Prefetch: reading pages of a pool in advance, on the thread that will use them.
//!
//! Not here: readahead, which guesses from faults (`readahead`).

use crate::engine::Engine;
use crate::transfer::{PageRead, Purpose};
use crate::types::Pte;
use crate::worker::Worker;
use overspill_base::PageNo;
use overspill_base::stats::Event;

impl Engine {
    /// Starts reading those of `pages` that are swapped out, and does not wait for them. Stops when
    /// frames run short. Returns how many pages it has dealt with.
    pub fn prefetch(&self, worker: &mut Worker, pages: impl Iterator<Item = PageNo>) -> usize {
        let mut reads = Vec::new();
        let mut seen = 0;
        for page in pages {
            if let Pte::Swapped { entry, .. } = self.table.load(page)
                && self.frame_on(page, entry).is_none()
            {
                let Some(locked) = self.frames.alloc_to_spare(page) else { break };
                let into = self.memory.buffer(locked.frame().index());
                if self.cache_ahead(locked, entry).is_some() {
                    reads.push(PageRead { entry, into });
                }
            }
            seen += 1;
        }
        self.stats.add(Event::swap_ra, reads.len() as u64);
        reads.sort_unstable_by_key(|read| read.entry);
        self.submit_reads(worker, reads, |_| Purpose::Readahead);
        seen
    }

    /// Reclaims until `pages` pages can be prefetched, or half of memory is free, or
    /// nothing more can be reclaimed. Blocks only on its own writes.
    pub fn make_room(&self, worker: &mut Worker, pages: usize) {
        let want = (self.frames.watermarks().low + pages + 1).min(self.frames.limit() / 2);
        // Bounded, because pages in constant use count as progress.
        for _ in 0..2 * pages {
            let is_enough = self.frames.free_count() >= want;
            if is_enough || !self.reclaim_round(worker, true) {
                return;
            }
        }
    }
}
