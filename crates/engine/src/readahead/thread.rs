//! The readahead thread: asynchronous readahead.
//!
//! Owns: reading a window into staging memory. There it waits in the swap cache, charged to its
//! frames, until its stream reaches it: then all of it is mapped at once, and the next window is
//! requested. So a reader in order waits for one mapping per window and never for the device. Pages
//! that the program asked for are mapped at once.
//! Invariants: a window without enough frames or staging memory is left to its faults. Pages that
//! wait are on the inactive list; if reclaim frees some, less is requested.
//! Not here: the thread (`space`).
//! Rejected: mapping windows before the stream reaches them. The only sign of a touch is a fault,
//! so the position of the stream would be unknown.

use crate::engine::Engine;
use crate::readahead::queue::Wish;
use crate::store::{Moving, Store};
use crate::transfer::{PageRead, Purpose, ToRead};
use crate::worker::Worker;
use overspill_base::PageNo;
use overspill_base::stats::Event;
use std::ops::Range;

impl Engine {
    /// Reads one request and returns; blocks until there is one, or until
    /// [`wake_background`](Self::wake_background) is called. `wanted` as in
    /// [`balance`](Self::balance).
    pub fn read_ahead(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        let seen = self.ahead.wanted.count();
        if wanted() {
            return;
        }
        match self.ahead.next() {
            Some(Wish::Window(window)) => match &self.store {
                Store::Moving(moving) => self.read_window(worker, moving, window),
                Store::Pool(_) => unreachable!("no stream asks in a pool"),
            },
            Some(Wish::Needed(chunk)) => self.read_needed(worker, chunk),
            None if worker.in_flight() > 0 => worker.wait(self),
            None => self.ahead.wanted.wait(seen, None),
        }
        worker.poll(self);
    }

    /// Reads the swapped ones of `pages`, a chunk at most, to be mapped. No stream has to be
    /// followed, so they need not wait.
    fn read_needed(&self, worker: &mut Worker, pages: Range<u32>) {
        let mut start = pages.start;
        while start < pages.end {
            if !self.reclaim_to_spare(worker) {
                self.ahead.forget_needed();
                return;
            }
            let mut wanted = Vec::with_capacity(pages.len());
            start += self.take_swapped(start..pages.end, &mut wanted);
            if !wanted.is_empty() {
                let reads = self.read_and_map(worker, &wanted);
                self.submit_reads(worker, reads, |_| Purpose::Readahead);
            }
        }
    }

    /// Reclaims until there are spare frames; false if nothing is left to reclaim.
    fn reclaim_to_spare(&self, worker: &mut Worker) -> bool {
        while !self.frames.are_above_low() {
            if !self.reclaim_round(worker, false) {
                return false;
            }
        }
        true
    }

    /// Reads a window, one staging chunk at a time, as far as there is room.
    fn read_window(&self, worker: &mut Worker, moving: &Moving, window: Range<u32>) {
        let mut pages = window.map(PageNo);
        while self.reclaim_to_spare(worker)
            && let Some(chunk) = moving.staging.take_to_wait()
        {
            let wanted = self.take_to_read(&mut pages, chunk.len());
            self.read_to_wait(worker, moving, chunk, &wanted);
            if wanted.is_empty() {
                return;
            }
        }
    }

    /// Allocates frames for up to `most` swapped ones of `pages`.
    fn take_to_read(&self, pages: &mut impl Iterator<Item = PageNo>, most: usize) -> Vec<ToRead> {
        let mut wanted = Vec::with_capacity(most);
        while wanted.len() < most
            && let Some(page) = pages.next()
            && self.take_swapped(std::iter::once(page.0), &mut wanted) > 0
        {}
        wanted
    }

    /// Reads pages into a chunk, to wait there.
    fn read_to_wait(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        chunk: Range<usize>,
        wanted: &[ToRead],
    ) {
        self.stats.add(Event::swap_ra, wanted.len() as u64);
        let reads = self.reads_to_wait(moving, chunk, wanted);
        self.submit_reads(worker, reads, |_| Purpose::Readahead);
        worker.poll(self);
    }

    /// Returns the reads of cached pages into a chunk, of which the rest is released.
    pub(crate) fn reads_to_wait(
        &self,
        moving: &Moving,
        chunk: Range<usize>,
        wanted: &[ToRead],
    ) -> Vec<PageRead> {
        let used = chunk.start..chunk.start + wanted.len();
        let reads = wanted.iter().zip(used.clone()).map(|(&page, at)| self.read_at(page, at));
        let reads = reads.collect();
        moving.trim(used.end..chunk.end);
        reads
    }

    fn read_at(&self, ToRead { entry, frame }: ToRead, at: usize) -> PageRead {
        self.frames.set_staged(frame, Some(at));
        PageRead { entry, into: self.memory.buffer(at) }
    }
}
