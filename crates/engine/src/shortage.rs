//! Allocation of frames when they run short.
//!
//! Owns: how a fault reclaims, waits, and fails.
//! Invariant: memory has run out only when many rounds of reclaim made no progress and no write is
//! in flight.
//! Not here: reclaim itself (`reclaim`), frames for readahead, which fails instead
//! ([`Frames::alloc_to_spare`](crate::frames::Frames)).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::worker::{Worker, WorkerKind};
use overspill_base::PageNo;
use overspill_base::sync::Ordering::Relaxed;
use std::time::Duration;

/// Rounds without progress, each waiting up to 2 ms, after which memory has run out.
const HOPELESS_ROUNDS: u32 = 200;
/// After so many of them the pages in all CPUs' batches are looked at too.
const DRAIN_ROUNDS: u32 = 16;

impl Engine {
    /// Allocates a frame for `page`; reclaims until there is one, or until memory has run out.
    pub(crate) fn frame_for(&self, worker: &mut Worker, page: PageNo) -> Option<LockedPage> {
        let frame = self.frames.alloc(page);
        if !self.frames.are_above_low() || self.frames.are_far_over_limit() {
            self.reclaim_some(worker);
        }
        frame.or_else(|| match worker.kind() {
            WorkerKind::Pager => self.frame_by_reclaim(worker, page),
            WorkerKind::InPlace => self.frame_by_waiting(page),
        })
    }

    /// Runs one round of reclaim, if the worker reclaims by itself, or wakes the reclaim thread.
    fn reclaim_some(&self, worker: &mut Worker) {
        if !worker.reclaims_inline() || self.shrink(worker, true) + worker.complete(self) == 0 {
            self.low.notify();
        }
    }

    /// Waits for the reclaim thread. A round counts as fruitless only if that thread has tried in
    /// it: on a busy machine it may not run for long.
    fn frame_by_waiting(&self, page: PageNo) -> Option<LockedPage> {
        let mut fruitless = self.fruitless_rounds.load(Relaxed);
        self.frame_after(page, |seen| {
            self.low.notify();
            self.freed.wait(seen, Some(Duration::from_millis(2)));
            let before = std::mem::replace(&mut fruitless, self.fruitless_rounds.load(Relaxed));
            fruitless == before || self.freed.count() != seen
        })
    }

    fn frame_by_reclaim(&self, worker: &mut Worker, page: PageNo) -> Option<LockedPage> {
        self.frame_after(page, |seen| {
            let progress = self.shrink(worker, true) + worker.poll(self);
            if self.frames.free_count() > 0 {
                return true;
            }
            if worker.in_flight() > 0 {
                worker.wait(self);
            } else if progress == 0 {
                self.freed.wait(seen, Some(Duration::from_millis(2)));
            }
            progress > 0
        })
    }

    /// Repeats `round`, which returns whether it made progress, until there is a frame for `page`
    /// or memory has run out. `round` gets the count of `freed` from before the try to allocate.
    fn frame_after(&self, page: PageNo, mut round: impl FnMut(u64) -> bool) -> Option<LockedPage> {
        self.starving.fetch_add(1, Relaxed);
        let mut hopeless = 0;
        let frame = loop {
            let seen = self.freed.count();
            if let Some(frame) = self.frames.alloc(page) {
                break Some(frame);
            }
            if self.frames.gather_free() > 0 {
                continue;
            }
            let hope = round(seen) || self.writes_in_flight.load(Relaxed) > 0;
            hopeless = if hope { 0 } else { hopeless + 1 };
            if hopeless % DRAIN_ROUNDS == DRAIN_ROUNDS - 1 {
                // What is on the lists may not go: what other CPUs have in their batches may.
                // (Linux: `lru_add_drain_all` before the OOM killer is asked.)
                self.lru.drain(&self.frames, &self.stats);
            }
            if hopeless > HOPELESS_ROUNDS {
                break None;
            }
        };
        self.starving.fetch_sub(1, Relaxed);
        frame
    }
}
