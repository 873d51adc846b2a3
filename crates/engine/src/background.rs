//! Background reclaim: what the reclaim thread repeats.
//!
//! Owns: reclaim between the watermarks and down to a limit that was lowered, page-outs of ranges,
//! and when areas are emptied.
//! Invariant: a thread that waits for a page-out is woken when all pages that can be evicted are.
//! Not here: the thread (`space`), reclaim itself (`reclaim`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::tuning::Tuning;
use crate::worker::Worker;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo};
use std::ops::Range;
use std::time::Duration;

/// Between two rounds of emptying an area, in which others finish what they do with its pages.
const EMPTYING_PAUSE: Duration = Duration::from_millis(5);
/// Rounds of reclaim in vain after which what is over the limit has to wait.
const FRUITLESS_ROUNDS: u32 = 10;

impl Engine {
    /// Blocks until free frames run low or [`wake_background`](Self::wake_background) is called;
    /// then reclaims up to the high watermark, and returns. `wanted` returns whether the caller has
    /// something else to do; wake the thread after making it true.
    pub fn balance(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        // Read before `wanted` is called, so that no wake in between is lost.
        let seen = self.low.count();
        if wanted() {
            return;
        }
        if self.frames.are_above_low() && self.page_outs.is_empty() && !self.is_over_limit() {
            let is_emptying = self.swaps.emptying().next().is_some();
            let pause = if is_emptying { Some(EMPTYING_PAUSE) } else { self.demotion.pause() };
            self.low.wait(seen, pause);
        }
        self.run_page_outs(worker);
        self.shrink_to_limit(worker, &wanted);
        while self.frames.free_count() < self.frames.watermarks().high {
            if !self.reclaim_round(worker, false) {
                self.fruitless_rounds.fetch_add(1, Relaxed);
                // Retry at the next fault that finds frames low.
                let seen = self.low.count();
                self.low.wait(seen, Some(Duration::from_millis(10)));
                return;
            }
        }
        worker.finish(self);
        self.run_swapoffs(worker, || {
            wanted() || self.is_over_limit() || !self.page_outs.is_empty()
        });
        self.demote(worker, wanted);
        for area in self.areas.iter() {
            self.run_discards(area.number());
        }
    }

    fn is_over_limit(&self) -> bool {
        self.frames.over_limit() > 0
    }

    /// Reclaims what is over a limit that was lowered, until something else is `wanted`.
    fn shrink_to_limit(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        let mut fruitless = 0;
        while self.is_over_limit() && fruitless <= FRUITLESS_ROUNDS && !wanted() {
            if self.frames.gather_free() > 0 || self.reclaim_round(worker, false) {
                fruitless = 0;
            } else {
                fruitless += 1;
                self.freed.wait(self.freed.count(), Some(Duration::from_millis(2)));
            }
        }
    }

    /// Makes [`balance`](Self::balance) and [`read_ahead`](Self::read_ahead) return soon.
    pub fn wake_background(&self) {
        self.low.notify();
        self.ahead.wake();
    }

    /// Evicts the ranges queued by [`page_out`](Self::page_out).
    fn run_page_outs(&self, worker: &mut Worker) {
        while let Some(pages) = self.page_outs.take() {
            // A batch keeps its staging memory until its frames are free.
            let batch = (self.memory.places() / 4).max(self.chunk_pages());
            for start in pages.clone().step_by(batch) {
                self.page_out_batch(worker, start..pages.end.min(start + batch as u32));
            }
            self.page_outs.finish_one();
        }
    }

    /// Returns the number of pages evicted at a time.
    fn chunk_pages(&self) -> usize {
        Tuning::chunk_pages(self.memory.page_bytes)
    }

    fn page_out_batch(&self, worker: &mut Worker, pages: Range<u32>) {
        // Moves those on the active list too.
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

    /// Isolates the inactive frames that `frame_of` finds for a range: frees those whose page is
    /// already on its slot, and returns the mapped ones.
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
