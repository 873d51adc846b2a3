//! Reading pages in.
//!
//! Owns: the read of a faulting page with its readahead, and the completion that maps them.
//! Invariants: each page in a read is locked and cached under its entry until the completion; a read
//! that fails poisons the pages it was for and no other. Readahead takes only frames to spare, only
//! pages that are swapped, and never fails a fault.

use crate::engine::Engine;
use crate::lru::LruList;
use crate::swap_cache::Inserted;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo, clock};
use overspill_device::{Completion, DeviceError, IoOp, IoRequest};

/// A page just read: its frame, its place in bounce memory.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    page: PageNo,
    frame: FrameNo,
    bounce: usize,
}

/// Request tags of reads carry when the fault's message arrived; 0 for readahead.
fn tag(area: AreaNo, start_ns: u64) -> u64 {
    start_ns << 5 | u64::from(area.0)
}

fn untag(tag: u64) -> (AreaNo, u64) {
    (AreaNo((tag & 31) as u8), tag >> 5)
}

impl Engine {
    /// Reads `page`, which the caller has cached under `entry` in a locked frame, and its window.
    pub(crate) fn start_reads(
        &self,
        worker: &mut Worker,
        page: PageNo,
        entry: SwapEntry,
        start_ns: u64,
    ) {
        let window = self.streams.lock().window(page, self.tuning.readahead_max_pages);
        self.stats.add(Event::swap_ra_hit, window.hits as u64);
        let mut entries = vec![entry];
        self.collect_readahead(page, window.pages, &mut entries);
        self.stats.add(Event::swap_ra, entries.len() as u64 - 1);
        let bounce = self.take_bounce(worker, entries.len());
        let mut at = bounce;
        for run in entries.chunk_by(|a, b| a.precedes(*b)) {
            let start_ns = if at == bounce { start_ns } else { 0 };
            self.submit_read(worker, run[0], at, run.len(), start_ns);
            at += run.len();
        }
        worker.flush();
    }

    /// Adds the swapped pages after `page`, each with a locked frame in the cache.
    fn collect_readahead(&self, page: PageNo, window: usize, entries: &mut Vec<SwapEntry>) {
        for next in (1..window).map(|n| page.plus(n)) {
            if !self.has_frames_to_spare() {
                break;
            }
            let Pte::Swapped { entry, .. } = self.table.load(next) else { continue };
            let Some(frame) = self.frames.alloc(next) else { break };
            match self.cache.insert(entry, frame, &self.frames, &self.table, next) {
                Inserted::Yes => entries.push(entry),
                Inserted::Exists | Inserted::Changed => self.free_page(frame, next),
            }
        }
    }

    /// Bounce memory for `pages` pages; waits for this worker's own reads when it is all in use.
    fn take_bounce(&self, worker: &mut Worker, pages: usize) -> usize {
        loop {
            match worker.bounce.take(pages) {
                Some(first) => return first,
                None => worker.wait(self),
            }
        }
    }

    fn submit_read(
        &self,
        worker: &mut Worker,
        first: SwapEntry,
        bounce: usize,
        pages: usize,
        start_ns: u64,
    ) {
        let pages = (bounce..bounce + pages).map(|page| worker.bounce.buffer(page)).collect();
        let tag = tag(first.area(), start_ns);
        let request = IoRequest { op: IoOp::Read, slot: first.slot(), pages, tag };
        worker.submit(first.area(), request);
    }

    /// Maps the pages of a finished read and lets their waiters go on.
    pub(crate) fn complete_read(&self, worker: &mut Worker, completion: Completion) {
        let Completion { request, failures } = completion;
        let (area, start_ns) = untag(request.tag);
        let bounce = worker.bounce.index_of(&request.pages[0]);
        let count = request.pages.len();
        let transfer_failed =
            count > 1 && failures.iter().any(|f| !matches!(f.error, DeviceError::Checksum { .. }));
        if transfer_failed {
            self.retry_singly(worker, area, &request, bounce, start_ns);
            return;
        }
        let mut arrived = Vec::with_capacity(count);
        for n in 0..count {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            let failure = failures.iter().find(|f| f.index == n);
            match failure {
                None => arrived.extend(self.accept(entry, bounce + n)),
                Some(failure) => self.poison(entry, &failure.error),
            }
        }
        self.stats.add(Event::pswpin, arrived.len() as u64);
        for run in arrived.chunk_by(|a, b| b.page.0 == a.page.0 + 1 && b.bounce == a.bounce + 1) {
            self.map_run(worker, run);
        }
        worker.bounce.give(bounce, count);
        if start_ns > 0 {
            self.stats.fault_latency(clock::now_ns() - start_ns);
        }
    }

    /// A transfer of several pages failed as a whole: find out which page it is.
    fn retry_singly(
        &self,
        worker: &mut Worker,
        area: AreaNo,
        request: &IoRequest,
        bounce: usize,
        start_ns: u64,
    ) {
        for n in 0..request.pages.len() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            self.submit_read(worker, entry, bounce + n, 1, start_ns);
        }
        worker.flush();
    }

    /// Turns a read page's word to Resident; drops the page if it was discarded meanwhile.
    fn accept(&self, entry: SwapEntry, bounce: usize) -> Option<Arrived> {
        let frame = self.cache.lookup(entry).expect("a page being read stays cached");
        let page = self.frames.page(frame).expect("a cached frame has a page");
        let word = self.table.load(page);
        let ours = matches!(word, Pte::Swapped { entry: on, .. } if on == entry);
        if ours && self.table.replace(page, word, Pte::Resident(frame)) {
            self.set_cache_only(entry, true);
            self.note_refault(frame, word);
            return Some(Arrived { page, frame, bounce });
        }
        self.drop_cached(frame, page);
        None
    }

    fn note_refault(&self, frame: FrameNo, word: Pte) {
        self.stats.count(Event::workingset_refault);
        if let Pte::Swapped { shadow, .. } = word
            && self.workingset.refault_activates(shadow, self.lru.lens().0)
        {
            self.stats.count(Event::workingset_activate);
            self.workingset.activated();
            self.frames.set(frame, flag::ACTIVE);
        }
    }

    /// Maps adjacent pages with one call.
    fn map_run(&self, worker: &Worker, run: &[Arrived]) {
        let content = worker.bounce.content(run[0].bounce, run.len());
        let mapped = self.space.map(run[0].page, content).is_ok();
        for &Arrived { page, frame, .. } in run {
            if !mapped {
                self.table.replace(page, Pte::Resident(frame), Pte::Empty);
                self.drop_cached(frame, page);
                continue;
            }
            self.frames.set(frame, flag::MAPPED);
            let active = self.frames.has(frame, flag::ACTIVE);
            let list = if active { LruList::Active } else { LruList::Inactive };
            self.lru.add(frame, list, &self.frames);
            self.unlock_page(frame, page);
        }
    }

    /// Gives up a locked frame that is cached and not mapped, and its slot if nobody refers to it.
    pub(crate) fn drop_cached(&self, frame: FrameNo, page: PageNo) {
        if let Some(entry) = self.cache.remove(frame, &self.frames, &self.table, page) {
            self.free_entry(entry);
        }
        self.release_staged(frame);
        self.free_page(frame, page);
    }

    /// The content of one page is lost: whoever touches it gets SIGBUS, everything else goes on.
    fn poison(&self, entry: SwapEntry, error: &DeviceError) {
        let frame = self.cache.lookup(entry).expect("a page being read stays cached");
        let page = self.frames.page(frame).expect("a cached frame has a page");
        let word = self.table.load(page);
        if matches!(word, Pte::Swapped { entry: on, .. } if on == entry)
            && self.table.replace(page, word, Pte::Poisoned)
        {
            self.stats.count(Event::pages_poisoned);
            self.trouble(format!("a page is lost and will raise SIGBUS when touched: {error}"));
            self.space.poison(page);
        }
        self.drop_cached(frame, page);
    }

    /// Pages whose writes are in flight.
    pub fn writes_in_flight(&self) -> usize {
        self.writes_in_flight.load(Relaxed)
    }
}
