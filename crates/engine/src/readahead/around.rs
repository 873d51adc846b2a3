//! The pages a fault reads beside its own, and those it requests in advance.
//!
//! Owns: turning a stream's window into frames in the swap cache, and what happens when a stream
//! reaches a window read asynchronously.
//! Not here: which pages are in a window (`streams`), windows of slots (`past`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::readahead::streams::Window;
use crate::space::Pattern;
use crate::store::{Moving, Store};
use crate::transfer::{CompletedRead, Destination, PageRead, Purpose, ToRead};
use crate::tuning::Readahead;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::PageNo;
use overspill_base::stats::Event;
use std::ops::Range;

impl Engine {
    /// Reads a page that is cached under `entry`, with its window.
    pub(crate) fn start_read(
        &self,
        worker: &mut Worker,
        locked: LockedPage,
        entry: SwapEntry,
        purpose: Purpose,
    ) {
        let (page, frame) = (locked.page(), locked.frame());
        self.frames.lend_to_io(locked);
        let reads = match &self.store {
            Store::Moving(moving) => {
                self.reads_around(worker, moving, page, ToRead { entry, frame })
            }
            Store::Pool(_) => {
                let mut reads = std::mem::take(&mut worker.scratch.reads);
                reads.push(PageRead { entry, into: self.memory.buffer(frame.index()) });
                reads
            }
        };
        self.submit_reads(worker, reads, |run| {
            let asked_for = run.iter().any(|read| read.entry == entry);
            if asked_for { purpose } else { Purpose::Readahead }
        });
    }

    /// Returns the reads of `page` and its window, ordered so that adjacent slots are neighbours.
    fn reads_around(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        page: PageNo,
        asked: ToRead,
    ) -> Vec<PageRead> {
        let pattern = self.space.pattern(page);
        let alone = pattern == Pattern::Random || !self.swaps.get(asked.entry.area()).reads_ahead;
        let reads = match self.tuning.readahead() {
            _ if alone => self.read_and_map(worker, &[asked]),
            Readahead::Cluster => self.reads_in_block(worker, moving, page, asked),
            Readahead::AddressSpace => self.reads_in_stream(worker, page, asked, pattern),
        };
        self.stats.add(Event::swap_ra, reads.len() as u64 - 1);
        reads
    }

    /// Returns the reads of the stream's window, in the order of addresses.
    fn reads_in_stream(
        &self,
        worker: &mut Worker,
        page: PageNo,
        asked: ToRead,
        pattern: Pattern,
    ) -> Vec<PageRead> {
        let max = self.tuning.readahead_max_pages;
        let alone = !self.has_neighbour(page);
        let window = self.streams.around(page).window(page, max, pattern, alone);
        self.stats.add(Event::swap_ra_hit, u64::from(window.hits));
        self.drop_behind(window.behind.clone());
        let (pages, step) = (window.pages.clone(), window.step);
        let mut wanted = std::mem::take(&mut worker.scratch.wanted);
        let before = (pages.start..page.0).step_by(step as usize).rev();
        let before = self.take_swapped(before, &mut wanted);
        wanted.reverse();
        let read_before = wanted.len() as u32;
        wanted.push(asked);
        let after = (page.0..pages.end).step_by(step as usize).skip(1);
        let after = self.take_swapped(after, &mut wanted);
        let read_after = wanted.len() as u32 - read_before - 1;
        let reached = page.0 - before * step..page.0 + after * step + 1;
        let whole = reached == pages && reached.len() > 1;
        let reached = if whole { self.past_resident(reached, step) } else { reached };
        self.streams.around(page).note_read(&window, reached, [read_before, read_after]);
        if whole && pages.len() >= max {
            self.ask_ahead(&window, asked.entry.area());
        }
        let reads = self.read_and_map(worker, &wanted);
        wanted.clear();
        worker.scratch.wanted = wanted;
        reads
    }

    /// True if a page beside `page` is mapped: a reader in order passes over it without a fault, so
    /// the distance to its last fault is no step.
    fn has_neighbour(&self, page: PageNo) -> bool {
        let end = self.table.len() as u32;
        let beside = [page.0.checked_sub(1), Some(page.0 + 1).filter(|&next| next < end)];
        beside.into_iter().flatten().any(|page| self.resident_frame(PageNo(page)).is_some())
    }

    /// Makes the pages that a long stream has passed the first to be evicted.
    fn drop_behind(&self, pages: Range<u32>) {
        if pages.is_empty() || !self.tuning.drops_behind() {
            return;
        }
        let frames = pages.filter_map(|page| self.resident_frame(PageNo(page)));
        // They were mapped recently: some may be in a batch.
        self.lru.drain(&self.frames, &self.stats);
        self.lru.drop_behind(frames, &self.frames);
    }

    /// Extends a window by the mapped pages that follow it on either side at its step, by its own
    /// length at most: the stream's next fault comes after them.
    fn past_resident(&self, window: Range<u32>, step: u32) -> Range<u32> {
        let reach = window.len() as u32;
        let resident = |&page: &u32| self.resident_frame(PageNo(page)).is_some();
        let before = (window.start.saturating_sub(reach)..window.start).rev();
        let before = before.skip(step as usize - 1).step_by(step as usize).take_while(resident);
        let after = (window.end - 1..window.end + reach).step_by(step as usize).skip(1);
        let (before, after) = (before.count() as u32, after.take_while(resident).count() as u32);
        window.start - before * step..window.end + after * step
    }

    /// Allocates and caches a frame for each swapped one of `pages`, until frames run short;
    /// returns how many pages it has dealt with.
    pub(crate) fn take_swapped(
        &self,
        pages: impl Iterator<Item = u32>,
        wanted: &mut Vec<ToRead>,
    ) -> u32 {
        let mut seen = 0;
        for page in pages.map(PageNo) {
            if let Pte::Swapped { entry, .. } = self.table.load(page) {
                let Some(locked) = self.frames.alloc_to_spare(page) else { break };
                wanted.extend(self.cache_ahead(locked, entry));
            }
            seen += 1;
        }
        seen
    }

    /// Returns the pages to request at a time ahead of a stream on `area`, or `None` without
    /// asynchronous readahead.
    pub(crate) fn reads_ahead_on(&self, area: AreaNo) -> Option<u32> {
        let swap = self.swaps.get(area);
        let pages =
            self.ahead.pages_for(if swap.synchronous { 0 } else { swap.pace.ahead_pages() });
        (pages > 0).then_some(pages)
    }

    /// Requests the windows after one that was read whole, in a long stream.
    fn ask_ahead(&self, window: &Window, area: AreaNo) {
        if let Some(ahead) = self.reads_ahead_on(area) {
            let pages = self.table.len() as u32;
            let asked = self.streams.around(window.page).ask(window, ahead, pages);
            self.ahead.ask(asked);
        }
    }

    /// Serves a fault that found its page waiting, because its stream has reached the pages
    /// requested: maps the page and the waiting rest of its window, and requests the next `ahead`
    /// pages. True if the page is mapped.
    pub(crate) fn reach_marker(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        locked: LockedPage,
        word: Pte,
        ahead: u32,
    ) -> bool {
        let (page, pages) = (locked.page(), self.table.len() as u32);
        let advance = self.streams.around(page).advance(page, ahead, pages);
        if !advance.ask.is_empty() {
            self.ahead.was_reached();
        }
        self.ahead.ask(advance.ask);
        self.stats.add(Event::swap_ra_hit, u64::from(advance.hits));
        let mut completed = std::mem::take(&mut worker.scratch.completed);
        completed.extend(self.end_wait(locked, word));
        let mapped = !completed.is_empty();
        let others = advance.pages.map(PageNo).filter(|&other| other != page);
        completed.extend(others.filter_map(|other| self.take_waiting(other)));
        completed.sort_unstable_by_key(|completed| completed.locked.page());
        self.map_waiting(worker, moving, &mut completed);
        worker.scratch.completed = completed;
        self.drop_behind(advance.behind);
        mapped
    }

    /// Maps pages that waited, in the order of addresses.
    fn map_waiting(&self, worker: &Worker, moving: &Moving, completed: &mut Vec<CompletedRead>) {
        let staged = |completed: &CompletedRead| match completed.destination {
            Destination::Chunk(at) => at,
            Destination::Bounce(_) => unreachable!("{completed:?} has not waited"),
        };
        let chunk = moving.staging.chunk;
        while let Some(first) = completed.first().map(staged) {
            let run = self.map_first_run(worker, moving, completed, |a, b| {
                a.precedes(b) && !staged(b).is_multiple_of(chunk)
            });
            moving.release(first..first + run);
        }
    }

    /// Locks the frame of a page that waits, if it is idle, and prepares it for mapping.
    fn take_waiting(&self, page: PageNo) -> Option<CompletedRead> {
        let word = self.table.load(page);
        let Pte::Swapped { entry, .. } = word else { return None };
        let frame = self.frame_on(page, entry)?;
        if !self.frames.has(frame, flag::READAHEAD) {
            return None;
        }
        let locked = self.frames.try_lock(frame).ok()?;
        let same = self.frames.entry(frame) == Some(entry)
            && locked.page() == page
            && self.frames.has(frame, flag::READAHEAD);
        if !same {
            self.unlock(locked);
            return None;
        }
        self.end_wait(locked, word)
    }

    /// Turns the word of a page that waits to Resident, and returns it for mapping.
    fn end_wait(&self, locked: LockedPage, word: Pte) -> Option<CompletedRead> {
        let (locked, at) = self.accept_waiting(locked, word)?;
        Some(CompletedRead { locked, destination: Destination::Chunk(at) })
    }
}
