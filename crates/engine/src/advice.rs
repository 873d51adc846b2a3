//! A program's advice on ranges: needed soon, cold, or to be paged out.
//!
//! Invariants: advice changes where pages are, never what they hold; a page that cannot be evicted
//! now (pinned, locked in memory, no staging memory) stays. The caller of a page-out holds no lock
//! and sleeps until it is done.
//! Not here: the queue of page-outs (`page_outs`); access patterns, which the address space knows
//! ([`crate::Pattern`]).
//! Rejected: evicting on the caller's thread. It would need its own queues, whose descriptors would
//! be opened while the program runs.

use crate::engine::Engine;
use overspill_base::PageNo;

/// Pages moved under one hold of the LRU lock.
const COLD_BATCH: usize = 1024;

impl Engine {
    /// Queues the swapped ones of `pages` pages from `first` on for
    /// [`read_ahead`](Self::read_ahead); returns at once.
    pub fn will_need(&self, first: PageNo, pages: usize) {
        // More would evict its own pages.
        let most = self.frames.limit() / 4;
        self.ahead.need(first.0..first.plus(pages.min(most)).0);
    }

    /// Makes the mapped pages of a range the first to be evicted.
    pub fn make_cold(&self, first: PageNo, pages: usize) {
        self.lru.drain(&self.frames, &self.stats);
        let mut frames = Vec::with_capacity(COLD_BATCH.min(pages));
        for start in (0..pages).step_by(COLD_BATCH) {
            let batch = (start..pages.min(start + COLD_BATCH)).map(|n| first.plus(n));
            frames.extend(batch.filter_map(|page| self.resident_frame(page)));
            self.lru.make_cold(frames.drain(..), &self.frames);
        }
    }

    /// Evicts the pages of a range that can be evicted, by [`balance`](Self::balance) on another
    /// thread; blocks until they are written and their frames are free.
    pub fn page_out(&self, first: PageNo, pages: usize) {
        let number = self.page_outs.put(first.0..first.plus(pages).0);
        self.low.notify();
        self.page_outs.wait_for(number);
    }
}
