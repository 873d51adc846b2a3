//! A frame for a page that needs one, when frames run short.
//!
//! Owns: how a fault reclaims, waits, and gives up. Invariant: memory has ended only when reclaim
//! has brought nothing for long and no write is in flight.
//! Not here: reclaim itself (`reclaim`), frames for readahead, which does without
//! ([`Frames::alloc_to_spare`](crate::frames::Frames)).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::worker::{Worker, WorkerKind};
use overspill_base::PageNo;
use overspill_base::sync::Ordering::Relaxed;
use std::time::Duration;

/// Rounds of reclaim without any progress, 2 ms each at least, after which memory has ended.
const HOPELESS_ROUNDS: u32 = 200;

impl Engine {
    /// A frame for `page`; reclaims until there is one, or until that is hopeless.
    pub(crate) fn frame_for(&self, worker: &mut Worker, page: PageNo) -> Option<LockedPage> {
        let frame = self.frames.alloc(page);
        if !self.frames.are_above_low() {
            self.reclaim_some(worker);
        }
        frame.or_else(|| match worker.kind() {
            WorkerKind::Pager => self.frame_by_reclaim(worker, page),
            WorkerKind::InPlace => self.frame_by_waiting(page),
        })
    }

    /// Frames run low: one round of reclaim by the worker itself, if it is to do so, or the reclaim
    /// thread's.
    fn reclaim_some(&self, worker: &mut Worker) {
        if !worker.reclaims_inline() || self.shrink(worker, true) + worker.complete(self) == 0 {
            self.low.notify();
        }
    }

    /// Waits for the reclaim thread, which was called when frames ran low. There is hope until that
    /// thread has tried: on a busy machine it may not run for long.
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

    /// Repeats `round`, which says whether it got anywhere, until there is a frame for `page`, or
    /// that is hopeless. `round` is told how often frames had been freed before.
    fn frame_after(&self, page: PageNo, mut round: impl FnMut(u64) -> bool) -> Option<LockedPage> {
        self.starving.fetch_add(1, Relaxed);
        let mut hopeless = 0;
        let frame = loop {
            let seen = self.freed.count();
            if let Some(frame) = self.frames.alloc(page) {
                break Some(frame);
            }
            let hope = round(seen) || self.writes_in_flight.load(Relaxed) > 0;
            hopeless = if hope { 0 } else { hopeless + 1 };
            if hopeless > HOPELESS_ROUNDS {
                break None;
            }
        };
        self.starving.fetch_sub(1, Relaxed);
        frame
    }
}
