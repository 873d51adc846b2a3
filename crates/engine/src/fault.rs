//! The fault path: what to do about a touched page that is missing.
//!
//! Owns: the decision per page-table word, one function each.
//! Invariants: `fault` holds at most one page lock while it allocates; it never waits for a page
//! lock, but leaves a mark and returns.
//! Not here: reading (`swapin`), how the fault arrived (`space`).

use crate::engine::Engine;
use crate::frames::{LockedPage, NotLocked};
use crate::lru::LruList;
use crate::page::Staged;
use crate::space::{Pattern, SpaceError};
use crate::store::Store;
use crate::swap_cache::Inserted;
use crate::transfer::Purpose;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo, clock};

/// The outcome of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultOutcome {
    /// The page is mapped, and the thread that touched it goes on.
    Mapped,
    /// The page is being read or locked; its mapping or unlocking wakes the thread that touched it.
    Pending,
    /// The program has mapped nothing there: the touch is its own mistake.
    Stray,
    /// The page's content is lost; the thread that touched it gets SIGBUS.
    Poisoned,
    /// No frame is free and none can be freed. The message is in [`Engine::last_error`].
    OutOfMemory,
}

/// The result of one look at the word: an outcome, or `None` if the word changed meanwhile.
type Step = Option<FaultOutcome>;

impl Engine {
    /// Serves the touch of `page` whose message arrived at `start_ns`.
    ///
    /// May block for reclaim if no frame is free, but never for the page's own I/O.
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

    /// Serves the touch of `page` on the thread that touched it: blocks until the page is mapped,
    /// or has failed. For spaces that do not put threads to sleep and wake them. With a worker
    /// [`for_faulter`](Worker::for_faulter) it may be called in a signal handler.
    ///
    /// Never returns [`FaultOutcome::Pending`].
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

    /// True if `page` is mapped. It may be evicted at once.
    pub fn is_mapped(&self, page: PageNo) -> bool {
        let word = self.table.load(page);
        matches!(word, Pte::Resident(frame) if self.frames.has(frame, flag::MAPPED))
    }

    /// Sleeps while another thread has the page locked, or while it must not be mapped; may return
    /// early.
    pub fn wait_unlocked(&self, page: PageNo) {
        let frame = match self.table.load(page) {
            Pte::Resident(frame) => Some(frame),
            Pte::Swapped { entry, .. } => self.frame_on(page, entry),
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
        let Some(locked) = self.frame_for(worker, page) else {
            return Some(FaultOutcome::OutOfMemory);
        };
        if !self.table.replace(page, Pte::Empty, Pte::Resident(locked.frame())) {
            self.free(locked);
            return None;
        }
        self.distances.forget(page);
        let mut run = std::mem::take(&mut worker.scratch.run);
        run.push(locked);
        self.fault_around(page, span, &mut run);
        self.free_unmapped(page, &mut run);
        let outcome = self.map_zero_run(&mut run);
        worker.scratch.run = run;
        Some(outcome)
    }

    /// Frees pages that the program unmapped since `span` was read. An unmapping that starts now
    /// finds the words of the rest and waits for their locks.
    fn free_unmapped(&self, first: PageNo, run: &mut Vec<LockedPage>) {
        let still = self.space.span(first).min(run.len());
        run.drain(still..).for_each(|locked| self.forget(locked));
    }

    /// Adds the untouched pages after `page` (fault-around), if the page before it was touched, so
    /// that the range grows in order. Takes only spare frames.
    fn fault_around(&self, page: PageNo, span: usize, run: &mut Vec<LockedPage>) {
        let in_order = page.0 > 0
            && self.table.load(PageNo(page.0 - 1)) != Pte::Empty
            && self.space.pattern(page) != Pattern::Random;
        let window = if in_order { self.tuning.fault_around_pages.min(span) } else { 1 };
        for next in (1..window).map(|n| page.plus(n)) {
            if self.table.load(next) != Pte::Empty {
                break;
            }
            let Some(locked) = self.frames.alloc_to_spare(next) else { break };
            if !self.table.replace(next, Pte::Empty, Pte::Resident(locked.frame())) {
                self.free(locked);
                break;
            }
            self.distances.forget(next);
            run.push(locked);
        }
    }

    fn map_zero_run(&self, run: &mut Vec<LockedPage>) -> FaultOutcome {
        if run.is_empty() {
            return FaultOutcome::Stray;
        }
        let mapped = self.store.show_zeros(run, &self.memory);
        let mut pages = run.drain(..);
        for locked in pages.by_ref().take(mapped.pages) {
            self.frames.set(locked.frame(), flag::MAPPED);
            self.put_back(locked, LruList::Inactive);
        }
        self.stats.add(Event::pgzero, mapped.pages as u64);
        if let Some(why) = mapped.stopped {
            self.zeros_refused(pages, why);
        }
        if mapped.pages > 0 { FaultOutcome::Mapped } else { FaultOutcome::Pending }
    }

    /// Locks the frame of a page whose word is `word`.
    ///
    /// # Errors
    /// The step to return, if another thread has the lock or the page has changed.
    fn lock_for(&self, page: PageNo, word: Pte, frame: FrameNo) -> Result<LockedPage, Step> {
        match self.frames.try_lock(frame) {
            Err(NotLocked::Busy) => Err(self.wait_for(page, word, frame)),
            Err(NotLocked::Free) => Err(None),
            Ok(locked) if locked.page() == page && self.table.load(page) == word => Ok(locked),
            Ok(locked) => {
                self.unlock(locked);
                Err(None)
            }
        }
    }

    /// Serves a fault on a page that should be mapped, and looks for it. Either another thread is
    /// moving it, or the message is stale, or its content is lost. The program may have dropped the
    /// page by a raw system call and expect zeros, but that cannot be known.
    fn fault_resident(&self, page: PageNo, word: Pte, frame: FrameNo) -> Step {
        let locked = match self.lock_for(page, word, frame) {
            Ok(locked) => locked,
            Err(step) => return step,
        };
        if self.store.finds(page) {
            self.unlock(locked);
            return Some(FaultOutcome::Mapped);
        }
        if self.frames.has(frame, flag::WRITEBACK) {
            // Its frame cannot be freed before that has ended; the faulting thread retries.
            self.unlock(locked);
            self.space.wake(page);
            return Some(FaultOutcome::Pending);
        }
        self.lose(locked, SpaceError::Missing);
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
        match self.frame_on(page, entry) {
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
        let locked = match self.lock_for(page, word, frame) {
            Ok(locked) => locked,
            Err(step) => return step,
        };
        if self.frames.entry(frame) != Some(entry) {
            self.unlock(locked);
            return None;
        }
        if self.must_stay_still(frame) {
            self.unlock(locked);
            return Some(FaultOutcome::Pending);
        }
        self.stats.count(Event::swap_cache_hit);
        if self.frames.has(frame, flag::READAHEAD)
            && let Store::Moving(moving) = &self.store
            && let Some(ahead) = self.reads_ahead_on(entry.area())
        {
            let mapped = self.reach_marker(worker, moving, locked, word, ahead);
            return mapped.then_some(FaultOutcome::Mapped);
        }
        match self.map_staged(locked, word) {
            Staged::Mapped(locked) => {
                self.note_touched(frame, entry, word);
                self.unlock(locked);
                Some(FaultOutcome::Mapped)
            }
            Staged::Changed => None,
            Staged::Refused => Some(FaultOutcome::Pending),
        }
    }

    /// Activates a page that was touched before its frame was freed. For one that was read ahead
    /// the shadow decides, because it may have been evicted long ago.
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
        let Some(locked) = self.frame_for(worker, page) else {
            return Some(FaultOutcome::OutOfMemory);
        };
        match self.cache.insert(entry, &locked, &self.frames, &self.table) {
            Inserted::Yes => {
                self.stats.count(Event::pgmajfault);
                self.came_back(page);
                self.start_read(worker, locked, entry, Purpose::Fault { start_ns });
                Some(FaultOutcome::Pending)
            }
            Inserted::Exists | Inserted::Changed => {
                self.free(locked);
                None
            }
        }
    }

    /// True if the page must not be mapped before its write has completed.
    fn must_stay_still(&self, frame: FrameNo) -> bool {
        !self.store.shows_under_writeback() && self.frames.has(frame, flag::WRITEBACK)
    }

    fn fault_poisoned(&self, page: PageNo) -> Step {
        self.space.poison(page);
        Some(FaultOutcome::Poisoned)
    }

    /// Marks the page, so that the holder of its lock wakes the faulting thread. Starts over if it
    /// is unlocked by now, or if the frame is another page's: its unlock looks for that page's
    /// mark.
    fn wait_for(&self, page: PageNo, word: Pte, frame: FrameNo) -> Step {
        let pending = self.table.mark_faulted(page, word)
            && self.frames.is_locked_now(frame)
            && self.frames.page(frame) == Some(page);
        pending.then_some(FaultOutcome::Pending)
    }
}
