//! Readahead before the fault: windows that streams will want next, read by a thread of its own.
//!
//! Owns: what was asked for and not yet read, and reading it. What the program itself asked for
//! (`MADV_WILLNEED`) is mapped. A window goes to staging memory: there it waits in
//! the swap cache, charged to its frames, until the stream comes to it: then all of it is mapped at
//! once, and the next window is asked for. So a reader in order waits for one mapping per window and
//! never for the device.
//! Invariants: as all readahead it never fails a fault; a window that frames or staging memory are too
//! short for is read by its faults. What waits is on the inactive list: reclaim takes it back, and
//! then less is asked for.
//! Not here: which windows (`streams`), the thread (`space`).
//! Rejected: mapping windows before the stream comes to them. The only sign of a touch is a fault, so
//! nobody would know how far the stream is.

use crate::engine::Engine;
use crate::frames::Doorbell;
use crate::lru::LruList;
use crate::readahead::PageRead;
use crate::readahead::streams::Window;
use crate::swapin::{Arrived, Landing, Purpose};
use crate::tuning::{Readahead, Tuning};
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicU32, LockClass, Mutex};
use overspill_base::{FrameNo, PageNo};
use std::collections::VecDeque;
use std::ops::Range;

/// Windows waiting to be read; more streams than that do not go on at once.
const QUEUE_MAX: usize = 16;
/// Ranges waiting that the program said it will need.
const NEEDED_MAX: usize = 1024;

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Ahead {
    queue: Mutex<Queue>,
    bell: Doorbell,
    /// Pages asked for at a time: doubled when a stream has come to what was asked for, halved when
    /// some of it was reclaimed before. Zero where nothing is read ahead like this.
    pages: AtomicU32,
    pages_max: u32,
    /// The least that is asked for: a chunk.
    pages_min: u32,
}

/// What waits to be read.
#[derive(Debug)]
struct Queue {
    windows: VecDeque<Range<u32>>,
    /// Ranges that the program said it will need.
    needed: VecDeque<Range<u32>>,
}

/// What to read next.
enum Wish {
    /// A stream's window, to wait for it.
    Window(Range<u32>),
    /// At most a chunk of what the program will need, to be mapped.
    Needed(Range<u32>),
}

impl Queue {
    /// What to read next, of what is needed `most` pages.
    fn next(&mut self, most: u32) -> Option<Wish> {
        if let Some(window) = self.windows.pop_front() {
            return Some(Wish::Window(window));
        }
        let first = self.needed.front_mut()?;
        let start = first.start;
        first.start = first.end.min(start + most);
        let chunk = start..first.start;
        if first.start == first.end {
            self.needed.pop_front();
        }
        Some(Wish::Needed(chunk))
    }
}

impl Ahead {
    /// For `frames` frames, of which what waits may be a sixteenth, and chunks of `chunk` pages.
    pub(crate) fn new(frames: usize, tuning: &Tuning, chunk: usize) -> Self {
        let pages_min = chunk as u32;
        let pages_max = (frames / 32).min(tuning.readahead_ahead_pages) as u32;
        let on = tuning.readahead == Readahead::AddressSpace && pages_max >= pages_min;
        Self {
            queue: Mutex::new(
                LockClass::Readahead,
                Queue { windows: VecDeque::with_capacity(QUEUE_MAX), needed: VecDeque::new() },
            ),
            bell: Doorbell::new(),
            pages: AtomicU32::new(if on { pages_min } else { 0 }),
            pages_max,
            pages_min,
        }
    }

    /// Pages to ask for at a time.
    pub(crate) fn pages(&self) -> u32 {
        self.pages.load(Relaxed)
    }

    fn came_true(&self) {
        self.pages.store((self.pages() * 2).min(self.pages_max), Relaxed);
    }

    /// Some of what was asked for was reclaimed before anybody came to it.
    pub(crate) fn was_wasted(&self) {
        self.pages.store((self.pages() / 2).max(self.pages_min).min(self.pages()), Relaxed);
    }

    pub(crate) fn ask(&self, pages: Range<u32>) {
        if pages.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.windows.len() == QUEUE_MAX {
            queue.windows.pop_front();
        }
        queue.windows.push_back(pages);
        drop(queue);
        self.bell.ring();
    }

    /// The program will need `pages` soon.
    pub(crate) fn need(&self, pages: Range<u32>) {
        let mut queue = self.queue.lock();
        if pages.is_empty() || queue.needed.len() == NEEDED_MAX {
            return;
        }
        queue.needed.push_back(pages);
        drop(queue);
        self.bell.ring();
    }

    /// What the program will need is left to its faults.
    fn forget_needed(&self) {
        self.queue.lock().needed.clear();
    }

    fn next(&self) -> Option<Wish> {
        self.queue.lock().next(self.pages_min)
    }

    pub(crate) fn nudge(&self) {
        self.bell.ring();
    }
}

impl Engine {
    /// Reads what was asked for: blocks until there is something, or somebody calls
    /// [`nudge`](Self::nudge); reads it, and returns. `wanted` as in [`balance`](Self::balance).
    pub fn read_ahead(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        let seen = self.ahead.bell.count();
        if wanted() {
            return;
        }
        match self.ahead.next() {
            Some(Wish::Window(window)) => self.read_window(worker, window),
            Some(Wish::Needed(chunk)) => self.read_needed(worker, chunk),
            None if worker.in_flight() > 0 => worker.wait(self),
            None => self.ahead.bell.wait(seen, None),
        }
        worker.poll(self);
    }

    /// Reads the swapped ones of `pages`, a chunk at most, to be mapped. No stream is to be told how far
    /// it has come, so there is nothing to wait for.
    fn read_needed(&self, worker: &mut Worker, pages: Range<u32>) {
        let mut start = pages.start;
        while start < pages.end {
            if !self.reclaim_to_spare(worker) {
                self.ahead.forget_needed();
                return;
            }
            let mut entries = Vec::with_capacity(pages.len());
            start += self.take_swapped(start..pages.end, &mut entries);
            if !entries.is_empty() {
                let reads = self.read_and_map(worker, &entries);
                self.submit_reads(worker, reads, |_| Purpose::Map);
            }
        }
    }

    /// Reclaims until there are frames to spare; false when there is nothing left to reclaim.
    fn reclaim_to_spare(&self, worker: &mut Worker) -> bool {
        while !self.has_frames_to_spare() {
            if !self.reclaim_round(worker, false) {
                return false;
            }
        }
        true
    }

    /// Reads a window, a chunk of staging memory at a time, as far as there is room.
    fn read_window(&self, worker: &mut Worker, window: Range<u32>) {
        let mut pages = window.map(PageNo);
        while self.reclaim_to_spare(worker)
            && let Some(chunk) = self.staging.take_to_wait()
        {
            let entries = self.take_to_read(&mut pages, chunk.len());
            self.read_to_wait(worker, chunk, &entries);
            if entries.is_empty() {
                return;
            }
        }
    }

    /// Takes frames for up to `most` swapped ones of `pages`.
    fn take_to_read(
        &self,
        pages: &mut impl Iterator<Item = PageNo>,
        most: usize,
    ) -> Vec<SwapEntry> {
        let mut entries = Vec::with_capacity(most);
        while entries.len() < most
            && let Some(page) = pages.next()
            && self.take_swapped(std::iter::once(page.0), &mut entries) > 0
        {}
        entries
    }

    /// Reads pages into a chunk, where they will wait.
    fn read_to_wait(&self, worker: &mut Worker, chunk: Range<usize>, entries: &[SwapEntry]) {
        let used = chunk.start..chunk.start + entries.len();
        let reads = entries.iter().zip(used.clone()).map(|(&entry, at)| self.read_at(entry, at));
        let reads: Vec<PageRead> = reads.collect();
        self.stats.add(Event::swap_ra, reads.len() as u64);
        self.staging.release(used.end..chunk.end, &*self.space);
        self.submit_reads(worker, reads, |_| Purpose::Wait);
        worker.poll(self);
    }

    fn read_at(&self, entry: SwapEntry, at: usize) -> PageRead {
        let frame = self.cache.lookup(entry).expect("cached just now, and locked");
        self.frames.set_staged(frame, Some(at));
        PageRead { entry, into: self.staging.buffer(at) }
    }

    /// Pages to ask for at a time on an area. Where no latency has to be hidden, larger windows only make
    /// their reader wait longer, for the whole of one.
    fn ahead_pages(&self, area: AreaNo) -> u32 {
        match self.swaps.get(area).synchronous {
            true => self.ahead.pages().min(self.ahead.pages_min),
            false => self.ahead.pages(),
        }
    }

    /// Asks for the windows after one that was read whole, in the middle of a long stream.
    pub(crate) fn ask_ahead(&self, window: &Window, area: AreaNo) {
        let ahead = self.ahead_pages(area);
        if ahead > 0 && !self.staging.has_homes {
            let pages = self.table.len() as u32;
            let asked = self.streams.around(window.page).ask(window, ahead, pages);
            self.ahead.ask(asked);
        }
    }

    /// A fault at `page` found it waiting: its frame is locked and its word was `word`. Maps it and
    /// whatever waits of its window, and asks for the next. None, with the frame locked still, where
    /// nothing is asked for; otherwise whether the page is mapped.
    pub(crate) fn come_to(
        &self,
        worker: &mut Worker,
        frame: FrameNo,
        page: PageNo,
        word: Pte,
    ) -> Option<bool> {
        let Pte::Swapped { entry, .. } = word else { return None };
        let (ahead, pages) = (self.ahead_pages(entry.area()), self.table.len() as u32);
        if ahead == 0 {
            return None;
        }
        let advance = self.streams.around(page).advance(page, ahead, pages);
        if !advance.ask.is_empty() {
            self.ahead.came_true();
        }
        self.ahead.ask(advance.ask);
        self.stats.add(Event::swap_ra_hit, u64::from(advance.hits));
        let mut arrived = std::mem::take(&mut worker.scratch.arrived);
        arrived.extend(self.end_wait(frame, page, word));
        let mapped = !arrived.is_empty();
        let others = advance.pages.map(PageNo).filter(|&other| other != page);
        arrived.extend(others.filter_map(|other| self.take_waiting(other)));
        arrived.sort_unstable_by_key(|a| a.page);
        self.map_waiting(worker, &arrived);
        arrived.clear();
        worker.scratch.arrived = arrived;
        self.leave_behind(advance.behind);
        Some(mapped)
    }

    /// Maps pages that waited, in the order of their addresses.
    fn map_waiting(&self, worker: &Worker, arrived: &[Arrived]) {
        let goes_on = |a: &Arrived, b: &Arrived| {
            a.precedes(b) && !b.staged().is_multiple_of(self.staging.chunk)
        };
        for run in arrived.chunk_by(goes_on) {
            self.map_run(worker, run);
            let first = run[0].staged();
            self.staging.release(first..first + run.len(), &*self.space);
        }
    }

    /// Locks the frame of a page that waits, idle, and ends its waiting.
    fn take_waiting(&self, page: PageNo) -> Option<Arrived> {
        let word = self.table.load(page);
        let Pte::Swapped { entry, .. } = word else { return None };
        let frame = self.cache.lookup(entry)?;
        if !self.frames.has(frame, flag::READAHEAD) || !self.frames.try_lock(frame) {
            return None;
        }
        let same = self.frames.entry(frame) == Some(entry)
            && self.frames.page(frame) == Some(page)
            && self.frames.has(frame, flag::READAHEAD);
        if !same {
            self.unlock_frame(frame);
            return None;
        }
        self.end_wait(frame, page, word)
    }

    /// Turns the word of a locked page that waits to Resident; what is left is to map it.
    fn end_wait(&self, frame: FrameNo, page: PageNo, word: Pte) -> Option<Arrived> {
        let staged = self.frames.staged(frame);
        let (Some(at), Pte::Swapped { entry, .. }) = (staged, word) else {
            self.unlock_page(frame, page);
            return None;
        };
        if !self.table.replace(page, word, Pte::Resident(frame)) {
            self.unlock_page(frame, page);
            return None;
        }
        self.set_cache_only(entry, true);
        self.frames.set_staged(frame, None);
        self.frames.clear(frame, flag::READAHEAD);
        self.frames.set(frame, flag::STREAMED);
        self.stats.count(Event::workingset_refault);
        Some(Arrived { page, frame, landing: Landing::Chunk(at) })
    }

    /// Puts a page just mapped on a list, unless it is on one since it waited.
    pub(crate) fn list_mapped(&self, frame: FrameNo) {
        if self.frames.has(frame, flag::LRU | flag::ADD_PENDING) {
            return;
        }
        let active = self.frames.has(frame, flag::ACTIVE);
        let list = if active { LruList::Active } else { LruList::Inactive };
        self.lru.add(frame, list, &self.frames);
    }
}
