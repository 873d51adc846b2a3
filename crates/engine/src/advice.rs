//! What a program says about ranges: they will be needed soon, they are cold, they should go.
//!
//! Owns: ranges to be paged out, until the reclaim thread has done so. Invariants: advice changes where
//! pages are and never what they hold; a page that cannot go now (pinned, locked in memory, no room to
//! move it to) stays. Whoever asks for a range to go holds no lock and sleeps until it is gone.
//! Not here: access patterns, which the address space knows ([`crate::Pattern`]).
//! Rejected: evicting on the caller's thread. It would need queues of its own, whose descriptors
//! would be opened in the middle of the program.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::tuning::Tuning;
use crate::worker::Worker;
use overspill_base::{FrameNo, PageNo};
use std::ops::Range;

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

    /// Evicts what can be evicted of a range, by [`balance`](Self::balance) on another thread; blocks
    /// until it is written and its frames are free.
    pub fn page_out(&self, first: PageNo, pages: usize) {
        let number = self.page_outs.put(first.0..first.plus(pages).0);
        self.low.notify();
        self.page_outs.wait_for(number);
    }

    /// Evicts the ranges that [`page_out`](Self::page_out) was asked for.
    pub(crate) fn run_page_outs(&self, worker: &mut Worker) {
        while let Some(pages) = self.page_outs.take() {
            // Written, a batch keeps its staging memory until its frames are free.
            let batch = (self.memory.places() / 4).max(self.chunk_pages());
            for start in pages.clone().step_by(batch) {
                self.page_out_batch(worker, start..pages.end.min(start + batch as u32));
            }
            self.page_outs.finish_one();
        }
    }

    /// Pages that are evicted at a time.
    fn chunk_pages(&self) -> usize {
        Tuning::chunk_pages(self.memory.page_bytes)
    }

    fn page_out_batch(&self, worker: &mut Worker, pages: Range<u32>) {
        // Those on the active list too.
        self.make_cold(PageNo(pages.start), pages.len());
        let chunk_pages = self.chunk_pages();
        for start in pages.clone().step_by(chunk_pages) {
            let chunk = start..pages.end.min(start + chunk_pages as u32);
            let victims = self.isolate_range(chunk, |page| self.resident_frame(page));
            let most = victims.len();
            self.evict(worker, victims, most);
            worker.poll(self);
        }
        worker.finish(self);
        self.lru.drain(&self.frames, &self.stats);
        for back in self.isolate_range(pages, |page| self.cached_frame(page)) {
            self.put_back(back, LruList::Inactive);
        }
    }

    /// Takes the frames that `frame_of` finds for a range off the inactive list: frees those whose page
    /// is on its slot already, and returns the mapped ones.
    fn isolate_range(
        &self,
        pages: Range<u32>,
        frame_of: impl Fn(PageNo) -> Option<FrameNo>,
    ) -> Vec<LockedPage> {
        let mut victims = Vec::new();
        let frames = pages.map(PageNo).filter_map(frame_of);
        for locked in frames.filter_map(|frame| self.lru.isolate_one(frame, &self.frames)) {
            self.sort_out(locked, &mut victims);
        }
        victims
    }
}
