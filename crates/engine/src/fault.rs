//! The fault path: what to do about a page that was touched and is not there.
//!
//! Owns: the decision per page-table word, one function each. Invariants: `fault` holds at most one
//! page lock while it allocates; it never waits for a page lock, it leaves a mark and returns.
//! Not here: reading (`swapin`), how the fault arrived (`space`).

use crate::engine::Engine;
use crate::lru::LruList;
use crate::reclaim::Victim;
use crate::space::{Mapped, Pattern, SpaceError};
use crate::swap_cache::Inserted;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo, clock};
use std::time::Duration;

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultOutcome {
    /// The page is mapped and whoever touched it goes on.
    Mapped,
    /// The page is on its way; its mapping or the release of its lock wakes whoever touched it.
    Pending,
    /// Nothing is mapped at this page: the touch is the program's own mistake.
    Stray,
    /// The page's content was lost; the toucher gets SIGBUS.
    Poisoned,
    /// Every frame is taken and none can be freed. The message is in [`Engine::last_trouble`].
    OutOfMemory,
}

/// What became of mapping a page from staging memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Staged {
    /// It is mapped, and locked.
    Mapped,
    /// It is another's by now, or somewhere else.
    Changed,
    /// It stays in staging memory; its toucher touches again.
    Refused,
}

/// One look at the word: an outcome, or `None` when it changed under us.
type Step = Option<FaultOutcome>;

/// Rounds of reclaim without any progress, 2 ms each at least, after which memory has ended.
const HOPELESS_ROUNDS: u32 = 200;

impl Engine {
    /// Serves the touch of `page` whose message arrived at `start_ns`.
    ///
    /// May block for reclaim when no frame is free, never for the page's own I/O.
    pub fn fault(&self, worker: &mut Worker, page: PageNo, start_ns: u64) -> FaultOutcome {
        self.stats.count(Event::pgfault);
        let outcome = loop {
            let word = self.table.load(page);
            let step = match word {
                Pte::Empty => self.fault_empty(worker, page),
                Pte::Resident(frame) => self.fault_resident(page, word, frame),
                Pte::Swapped { entry, .. } => {
                    self.fault_swapped(worker, page, word, entry, start_ns)
                }
                Pte::Poisoned => self.fault_poisoned(page),
            };
            if let Some(outcome) = step {
                break outcome;
            }
        };
        if outcome == FaultOutcome::Mapped {
            self.stats.fault_latency(clock::now_ns() - start_ns);
        }
        outcome
    }

    /// Serves the touch of `page` on the thread that needs it: blocks until the page is there, or
    /// will never be. For spaces that have nobody to put to sleep and wake again. With a worker
    /// [`for_faulter`](Worker::for_faulter) it may be called in a signal handler; see there.
    ///
    /// Never [`FaultOutcome::Pending`].
    pub fn fault_in_place(&self, worker: &mut Worker, page: PageNo) -> FaultOutcome {
        let start_ns = clock::now_ns();
        loop {
            match self.fault(worker, page, start_ns) {
                FaultOutcome::Pending if worker.in_flight() > 0 => worker.wait(self),
                FaultOutcome::Pending => self.wait_unlocked(page),
                outcome => return outcome,
            }
            if self.is_mapped(page) {
                return FaultOutcome::Mapped;
            }
        }
    }

    /// True if `page` is in the program's sight, and unless it is evicted just now stays there.
    pub fn is_mapped(&self, page: PageNo) -> bool {
        let word = self.table.load(page);
        matches!(word, Pte::Resident(frame) if self.frames.has(frame, flag::MAPPED))
    }

    /// Sleeps while somebody else has the page locked, or must not have it disturbed; may return early.
    pub fn wait_unlocked(&self, page: PageNo) {
        let frame = match self.table.load(page) {
            Pte::Resident(frame) => Some(frame),
            Pte::Swapped { entry, .. } => self.cache.lookup(entry),
            Pte::Empty | Pte::Poisoned => None,
        };
        if let Some(frame) = frame.filter(|&frame| self.frames.page(frame) == Some(page)) {
            self.frames.wait_unlocked(frame);
            if self.must_stay_still(frame) {
                self.frames.wait_writeback(frame);
            }
        }
    }

    fn fault_empty(&self, worker: &mut Worker, page: PageNo) -> Step {
        let span = self.space.span(page);
        if span == 0 {
            return Some(FaultOutcome::Stray);
        }
        let Some(frame) = self.frame_for(worker, page) else {
            return Some(FaultOutcome::OutOfMemory);
        };
        if !self.table.replace(page, Pte::Empty, Pte::Resident(frame)) {
            self.free_page(frame, page);
            return None;
        }
        let mut run = std::mem::take(&mut worker.scratch.run);
        run.push(frame);
        self.zero_around(page, span, &mut run);
        self.give_back_unmapped(page, &mut run);
        let outcome = self.map_zero_run(page, &run);
        run.clear();
        worker.scratch.run = run;
        Some(outcome)
    }

    /// Takes back what was unmapped since `span` was asked. An unmapping that starts only now finds
    /// the words of the rest and waits for their locks.
    fn give_back_unmapped(&self, first: PageNo, run: &mut Vec<FrameNo>) {
        let still = self.space.span(first).min(run.len());
        for (n, frame) in run.drain(still..).enumerate() {
            let page = first.plus(still + n);
            self.table.replace(page, Pte::Resident(frame), Pte::Empty);
            self.free_page(frame, page);
        }
    }

    /// Adds the untouched pages after `page`, if the one before it was touched too: the range grows
    /// in order. Takes free frames only.
    fn zero_around(&self, page: PageNo, span: usize, run: &mut Vec<FrameNo>) {
        let in_order = page.0 > 0
            && self.table.load(PageNo(page.0 - 1)) != Pte::Empty
            && self.space.pattern(page) != Pattern::Random;
        let window = if in_order { self.tuning.zero_around_pages.min(span) } else { 1 };
        for next in (1..window).map(|n| page.plus(n)) {
            if self.table.load(next) != Pte::Empty || !self.may_take_frames() {
                break;
            }
            let Some(frame) = self.frames.alloc(next) else { break };
            if !self.table.replace(next, Pte::Empty, Pte::Resident(frame)) {
                self.free_page(frame, next);
                break;
            }
            run.push(frame);
        }
    }

    fn map_zero_run(&self, first: PageNo, run: &[FrameNo]) -> FaultOutcome {
        if run.is_empty() {
            return FaultOutcome::Stray;
        }
        let mapped = match self.staging.has_homes {
            true => self.reveal_zeros(first, run),
            false => self.space.map_zeros(first, run.len()),
        };
        let pages = run.iter().enumerate();
        let mut victims = pages.map(|(n, &frame)| Victim { frame, page: first.plus(n) });
        for Victim { frame, page } in victims.by_ref().take(mapped.pages) {
            self.frames.set(frame, flag::MAPPED);
            self.lru.add(frame, LruList::Inactive, &self.frames);
            self.unlock_page(frame, page);
        }
        self.stats.add(Event::pgzero, mapped.pages as u64);
        if let Some(why) = mapped.stopped {
            self.zeros_refused(victims, why);
        }
        if mapped.pages > 0 { FaultOutcome::Mapped } else { FaultOutcome::Pending }
    }

    /// The page should be there, and it is looked up. Either somebody is just moving it, or the message is
    /// an old one, or its content is nowhere: that must not be. The program may have dropped the page by a
    /// system call of its own that we did not see, and would have zeros then; nobody can know.
    fn fault_resident(&self, page: PageNo, word: Pte, frame: FrameNo) -> Step {
        if !self.frames.try_lock(frame) {
            return self.wait_for(page, word, frame);
        }
        if self.table.load(page) != word {
            self.unlock_frame(frame);
            return None;
        }
        if self.staging.has_homes || self.space.find(page) {
            self.unlock_frame(frame);
            return Some(FaultOutcome::Mapped);
        }
        if self.frames.has(frame, flag::WRITEBACK) {
            // Its frame is not to be had before that is over; then the toucher asks again.
            self.unlock_frame(frame);
            self.space.wake(page);
            return Some(FaultOutcome::Pending);
        }
        self.lose(Victim { frame, page }, SpaceError::Missing);
        Some(FaultOutcome::Poisoned)
    }

    fn fault_swapped(
        &self,
        worker: &mut Worker,
        page: PageNo,
        word: Pte,
        entry: SwapEntry,
        start_ns: u64,
    ) -> Step {
        match self.cache.lookup(entry) {
            Some(frame) => self.fault_cached(worker, page, word, entry, frame),
            None => self.fault_uncached(worker, page, entry, start_ns),
        }
    }

    fn fault_cached(
        &self,
        worker: &mut Worker,
        page: PageNo,
        word: Pte,
        entry: SwapEntry,
        frame: FrameNo,
    ) -> Step {
        if !self.frames.try_lock(frame) {
            return self.wait_for(page, word, frame);
        }
        if self.frames.entry(frame) != Some(entry) || self.table.load(page) != word {
            self.unlock_frame(frame);
            return None;
        }
        if self.must_stay_still(frame) {
            self.unlock_page(frame, page);
            return Some(FaultOutcome::Pending);
        }
        self.stats.count(Event::swap_cache_hit);
        if self.frames.has(frame, flag::READAHEAD)
            && let Some(mapped) = self.come_to(worker, frame, page, word)
        {
            return mapped.then_some(FaultOutcome::Mapped);
        }
        match self.map_staged(frame, page, word) {
            Staged::Mapped => {
                self.note_touched(frame, entry, word);
                self.unlock_page(frame, page);
                Some(FaultOutcome::Mapped)
            }
            Staged::Changed => None,
            Staged::Refused => Some(FaultOutcome::Pending),
        }
    }

    /// A page that was touched before it was gone is active. One that was read ahead may have been
    /// gone for long: its shadow tells.
    fn note_touched(&self, frame: FrameNo, entry: SwapEntry, word: Pte) {
        self.frames.clear(frame, flag::STREAMED);
        if !self.take_readahead_hit(frame, entry) {
            self.workingset.activated();
        } else if !self.refault_activates(word) {
            return;
        }
        self.lru.activate(frame, &self.frames);
    }

    fn fault_uncached(
        &self,
        worker: &mut Worker,
        page: PageNo,
        entry: SwapEntry,
        start_ns: u64,
    ) -> Step {
        let Some(frame) = self.frame_for(worker, page) else {
            return Some(FaultOutcome::OutOfMemory);
        };
        match self.cache.insert(entry, frame, &self.frames, &self.table, page) {
            Inserted::Yes => {
                self.stats.count(Event::pgmajfault);
                match self.staging.has_homes {
                    true => self.read_home(worker, frame, entry, start_ns),
                    false => self.start_reads(worker, page, entry, start_ns),
                }
                Some(FaultOutcome::Pending)
            }
            Inserted::Exists | Inserted::Changed => {
                self.free_page(frame, page);
                None
            }
        }
    }

    fn fault_poisoned(&self, page: PageNo) -> Step {
        self.space.poison(page);
        Some(FaultOutcome::Poisoned)
    }

    /// The page is locked by somebody else, who will wake the toucher; or was, and we start over. So
    /// we do when the frame is another page's by now: its unlocker looks for that page's mark.
    fn wait_for(&self, page: PageNo, word: Pte, frame: FrameNo) -> Step {
        let pending = self.table.mark_faulted(page, word)
            && self.frames.is_locked_now(frame)
            && self.frames.page(frame) == Some(page);
        pending.then_some(FaultOutcome::Pending)
    }

    /// Maps a locked, cached frame's page from staging memory. Unless that is done the frame is unlocked when
    /// it returns.
    pub(crate) fn map_staged(&self, frame: FrameNo, page: PageNo, word: Pte) -> Staged {
        let (Some(staged), Pte::Swapped { entry, .. }) = (self.frames.staged(frame), word) else {
            self.unlock_page(frame, page);
            return Staged::Changed;
        };
        if !self.table.replace(page, word, Pte::Resident(frame)) {
            self.unlock_page(frame, page);
            return Staged::Changed;
        }
        self.set_cache_only(entry, true);
        if self.map_back(page, frame, staged).stopped.is_some() {
            // It is in staging memory, and stays there.
            self.set_cache_only(entry, false);
            self.table.replace(page, Pte::Resident(frame), word);
            self.unlock_page(frame, page);
            self.space.wake(page);
            return Staged::Refused;
        }
        self.note_mapped(frame, page);
        Staged::Mapped
    }

    /// Puts a page in front of the program that was to leave memory.
    pub(crate) fn map_back(&self, page: PageNo, frame: FrameNo, staged: usize) -> Mapped {
        if self.staging.has_homes {
            self.space.reveal(page, frame);
            return Mapped::all(1);
        }
        self.space.map(page, self.staging.content(staged))
    }

    /// Bookkeeping for a page just mapped from staging. If its write is still in flight, the
    /// completion sees MAPPED and releases the staging page; otherwise that is ours to do.
    fn note_mapped(&self, frame: FrameNo, page: PageNo) {
        let before = self.frames.set(frame, flag::MAPPED);
        if before & flag::WRITEBACK == 0 {
            self.release_staged(frame);
        }
        if self.frames.clear(frame, flag::DIRTY) & flag::DIRTY != 0
            && let Some(entry) = self.cache.remove(frame, &self.frames, &self.table, page)
        {
            self.free_entry(entry);
        }
        self.settle_copy(frame, page);
    }

    /// Gives up the copy that a page just mapped has on its slot, if nothing may stay there, or if
    /// slots are scarce and that is wanted early. One being written is kept: it is in use.
    pub(crate) fn settle_copy(&self, frame: FrameNo, page: PageNo) {
        let Some(entry) = self.frames.entry(frame) else { return };
        let area = entry.area();
        let scarce = self.tuning.give_up_copies_early && self.areas.get(area).is_half_full();
        if !scarce && !self.swaps.get(area).is_leaving() || self.frames.has(frame, flag::WRITEBACK)
        {
            return;
        }
        let freed = self.cache.remove(frame, &self.frames, &self.table, page);
        freed.into_iter().for_each(|entry| self.free_entry(entry));
    }

    /// True if readahead and other luxuries may take a frame.
    pub(crate) fn may_take_frames(&self) -> bool {
        self.frames.free_count() > self.watermarks.min
    }

    pub(crate) fn has_frames_to_spare(&self) -> bool {
        self.frames.free_count() > self.watermarks.low
    }

    /// A locked frame for `page`; reclaims until there is one, or until that is hopeless.
    fn frame_for(&self, worker: &mut Worker, page: PageNo) -> Option<FrameNo> {
        let frame = self.frames.alloc(page);
        if !self.has_frames_to_spare() {
            self.reclaim_some(worker);
        }
        if worker.is_faulters() {
            return frame.or_else(|| self.frame_by_waiting(page));
        }
        frame.or_else(|| self.frame_by_reclaim(worker, page))
    }

    /// Frames run low: one round of reclaim by the worker itself, if it is to do so, or the reclaim
    /// thread's.
    fn reclaim_some(&self, worker: &mut Worker) {
        if !worker.reclaims_inline() || self.shrink(worker, true) + worker.complete(self) == 0 {
            self.low.ring();
        }
    }

    /// Waits for the reclaim thread, which was called when frames ran low. There is hope until that
    /// thread has tried: on a busy machine it may not run for long.
    fn frame_by_waiting(&self, page: PageNo) -> Option<FrameNo> {
        let mut fruitless = self.fruitless_rounds.load(Relaxed);
        self.frame_after(page, |seen| {
            self.low.ring();
            self.freed.wait(seen, Some(Duration::from_millis(2)));
            let before = std::mem::replace(&mut fruitless, self.fruitless_rounds.load(Relaxed));
            fruitless == before || self.freed.count() != seen
        })
    }

    fn frame_by_reclaim(&self, worker: &mut Worker, page: PageNo) -> Option<FrameNo> {
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

    /// Repeats `round`, which says whether it got anywhere, until there is a frame for `page`, or that
    /// is hopeless. `round` is told how often frames had been freed before.
    fn frame_after(&self, page: PageNo, mut round: impl FnMut(u64) -> bool) -> Option<FrameNo> {
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
