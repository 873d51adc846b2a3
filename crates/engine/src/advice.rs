//! What a program says about ranges: they will be needed soon, they are cold, they should go.
//!
//! Owns: ranges to be paged out, until the reclaim thread has done so. Invariants: advice changes
//! where pages are and never what they hold; a page that cannot go now (pinned, locked in memory,
//! no room to move it to) stays. Whoever asks for a range to go holds no lock and sleeps until it
//! is gone.
//! Not here: access patterns, which the address space knows ([`crate::Pattern`]).
//! Rejected: evicting on the caller's thread. It would need queues of its own, whose descriptors
//! would be opened in the middle of the program.

use crate::engine::Engine;
use overspill_base::PageNo;

/// Pages looked up under one hold of the LRU lock.
const COLD_BATCH: usize = 1024;

impl Engine {
    /// Has the swapped ones of `pages` pages from `first` on read soon, by
    /// [`read_ahead`](Self::read_ahead); returns at once.
    pub fn will_need(&self, first: PageNo, pages: usize) {
        // More than that would evict itself.
        let most = self.frames.count() / 4;
        self.ahead.need(first.0..first.plus(pages.min(most)).0);
    }

    /// Makes the pages in memory of a range the first to be evicted.
    pub fn make_cold(&self, first: PageNo, pages: usize) {
        self.lru.drain(&self.frames, &self.stats);
        let mut frames = Vec::with_capacity(COLD_BATCH.min(pages));
        for start in (0..pages).step_by(COLD_BATCH) {
            let batch = (start..pages.min(start + COLD_BATCH)).map(|n| first.plus(n));
            frames.extend(batch.filter_map(|page| self.resident_frame(page)));
            self.lru.make_cold(frames.drain(..), &self.frames);
        }
    }

    /// Evicts what can be evicted of a range, by [`balance`](Self::balance) on another thread;
    /// blocks until it is written and its frames are free.
    pub fn page_out(&self, first: PageNo, pages: usize) {
        let number = self.page_outs.put(first.0..first.plus(pages).0);
        self.low.notify();
        self.page_outs.wait_for(number);
    }
}
