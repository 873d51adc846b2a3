//! Reading pages in.
//!
//! Owns: the requests for a faulting page and its window, and the completion that maps them.
//! Invariants: each page in a read is locked and cached under its entry until the completion; a read
//! that fails poisons the page it was for and no other.
//! Not here: which pages are in the window (`readahead`).

use crate::engine::Engine;
use crate::lru::LruList;
use crate::readahead::PageRead;
use crate::reclaim::Victim;
use crate::space::Mapped;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::shared::PageBuf;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo, clock};
use overspill_device::{Completion, DeviceError, IoOp, IoRequest};

/// Pages in one request for a run of adjacent slots.
const RUN_MAX: usize = 64;

/// Where a page was read to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Landing {
    /// This page of the worker's bounce memory: it is copied to the program.
    Bounce(usize),
    /// This page of a staging chunk, where it waited: it is copied to the program as well.
    Chunk(usize),
    /// Its frame's staging page: it waits there.
    Staged,
}

impl Landing {
    fn precedes(self, next: Landing) -> bool {
        match (self, next) {
            (Landing::Bounce(a), Landing::Bounce(b)) | (Landing::Chunk(a), Landing::Chunk(b)) => {
                a + 1 == b
            }
            _ => false,
        }
    }
}

/// A page just read: its frame, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) page: PageNo,
    pub(crate) frame: FrameNo,
    pub(crate) landing: Landing,
}

impl Arrived {
    /// The page of the staging arena where it is.
    pub(crate) fn staged(&self) -> usize {
        match self.landing {
            Landing::Chunk(page) => page,
            Landing::Bounce(_) | Landing::Staged => {
                unreachable!("{self:?} is in no chunk of its own")
            }
        }
    }

    /// Whether one call can map both.
    pub(crate) fn precedes(&self, next: &Arrived) -> bool {
        self.page.plus(1) == next.page && self.landing.precedes(next.landing)
    }
}

/// What a read is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A fault, whose message arrived then, and the window around it.
    Fault { start_ns: u64 },
    /// Pages that will be wanted, to be mapped.
    Map,
    /// Pages that will be wanted, to wait in the swap cache.
    Wait,
}

/// What a request's tag carries: 5 bits of area, 2 of purpose, and the time of a fault, for which 57
/// bits are four years of a machine's running.
fn tag(area: AreaNo, purpose: Purpose) -> u64 {
    let (kind, start_ns) = match purpose {
        Purpose::Fault { start_ns } => (0, start_ns),
        Purpose::Map => (1, 0),
        Purpose::Wait => (2, 0),
    };
    start_ns << 7 | kind << 5 | u64::from(area.0)
}

fn untag(tag: u64) -> (AreaNo, Purpose) {
    let purpose = match tag >> 5 & 3 {
        0 => Purpose::Fault { start_ns: tag >> 7 },
        1 => Purpose::Map,
        _ => Purpose::Wait,
    };
    (AreaNo((tag & 31) as u8), purpose)
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
        let reads = self.reads_around(worker, page, entry);
        let fault = Purpose::Fault { start_ns };
        self.submit_reads(worker, reads, |run| {
            let asked_for = run.iter().any(|read| read.entry == entry);
            if asked_for { fault } else { Purpose::Map }
        });
    }

    /// Submits one request per run of adjacent slots, for what `purpose` says of it.
    pub(crate) fn submit_reads(
        &self,
        worker: &mut Worker,
        mut reads: Vec<PageRead>,
        purpose: impl Fn(&[PageRead]) -> Purpose,
    ) {
        while !reads.is_empty() {
            let pairs = reads.windows(2).take_while(|pair| pair[0].entry.precedes(pair[1].entry));
            let run = (pairs.count() + 1).min(RUN_MAX);
            let purpose = purpose(&reads[..run]);
            submit_read(worker, reads.drain(..run), purpose);
            if worker.is_faulters() {
                // It has done by now what it can do at a time, and its lists are free again.
                worker.complete(self);
            }
        }
        worker.scratch.reads = reads;
        worker.flush();
    }

    /// Ends a read: maps its pages, or leaves those read ahead in the swap cache, and lets their
    /// waiters go on.
    pub(crate) fn complete_read(&self, worker: &mut Worker, completion: Completion) {
        let Completion { request, failures } = completion;
        let (area, purpose) = untag(request.tag);
        let count = request.pages.len();
        let transfer_failed =
            count > 1 && failures.iter().any(|f| !matches!(f.error, DeviceError::Checksum { .. }));
        if transfer_failed {
            retry_singly(worker, area, request, purpose);
            return;
        }
        if self.staging.has_homes {
            self.complete_home_read(area, &request, &failures);
            worker.scratch.keep_pages(request.pages);
            return self.note_latency(purpose);
        }
        let mut arrived = std::mem::take(&mut worker.scratch.arrived);
        // Last first: a stream waits for the first one, and then all of them are there.
        for (n, buffer) in request.pages.iter().enumerate().rev() {
            let landing = self.landing(worker, buffer);
            let entry = SwapEntry::new(area, request.slot.plus(n));
            match (failures.iter().find(|f| f.index == n), landing) {
                (Some(failure), _) => self.read_failed(entry, &failure.error),
                (None, Landing::Staged) => self.keep_ahead(entry),
                (None, _) => arrived.extend(self.accept(entry, landing)),
            }
        }
        arrived.reverse();
        self.stats.add(Event::pswpin, (count - failures.len()) as u64);
        for run in arrived.chunk_by(Arrived::precedes) {
            self.map_run(worker, run);
        }
        arrived.clear();
        worker.scratch.arrived = arrived;
        request.pages.iter().for_each(|buffer| worker.bounce.give(buffer));
        worker.scratch.keep_pages(request.pages);
        self.note_latency(purpose);
    }

    fn note_latency(&self, purpose: Purpose) {
        if let Purpose::Fault { start_ns } = purpose {
            self.stats.fault_latency(clock::now_ns() - start_ns);
        }
    }

    fn landing(&self, worker: &Worker, buffer: &PageBuf) -> Landing {
        match worker.bounce.index_of(buffer) {
            Some(page) => Landing::Bounce(page),
            None => {
                debug_assert!(
                    self.staging.index_of(buffer).is_some(),
                    "a read lands in our memory"
                );
                Landing::Staged
            }
        }
    }

    /// The locked frame of a page that has been read, and the page.
    fn frame_of_read(&self, entry: SwapEntry) -> (FrameNo, PageNo) {
        let frame = self.cache.lookup(entry).expect("a page being read stays cached");
        (frame, self.frames.page(frame).expect("a cached frame has a page"))
    }

    /// Turns a read page's word to Resident; drops the page if it was discarded meanwhile.
    fn accept(&self, entry: SwapEntry, landing: Landing) -> Option<Arrived> {
        let (frame, page) = self.frame_of_read(entry);
        self.accept_in(frame, page, entry).then_some(Arrived { page, frame, landing })
    }

    /// As [`accept`](Self::accept), for a page in `frame`; true if it is Resident now.
    pub(crate) fn accept_in(&self, frame: FrameNo, page: PageNo, entry: SwapEntry) -> bool {
        let word = self.table.load(page);
        let ours = matches!(word, Pte::Swapped { entry: on, .. } if on == entry);
        if ours && self.table.replace(page, word, Pte::Resident(frame)) {
            self.set_cache_only(entry, true);
            if self.frames.clear(frame, flag::READAHEAD) & flag::READAHEAD != 0 {
                self.frames.set(frame, flag::STREAMED);
            }
            if self.refault_activates(word) {
                self.frames.set(frame, flag::ACTIVE);
            }
            return true;
        }
        // Whoever faulted sleeps for this read, and can have what is there now.
        self.space.wake(page);
        self.drop_cached(frame, page);
        false
    }

    /// Leaves a page read ahead in the swap cache until it is touched or reclaimed.
    fn keep_ahead(&self, entry: SwapEntry) {
        let (frame, page) = self.frame_of_read(entry);
        if self.table.is_on(page, entry) {
            self.lru.add(frame, LruList::Inactive, &self.frames);
            self.unlock_page(frame, page);
        } else {
            self.drop_cached(frame, page);
        }
    }

    /// Counts the return of a page whose word was `word`; true if it should be active.
    pub(crate) fn refault_activates(&self, word: Pte) -> bool {
        self.stats.count(Event::workingset_refault);
        let Pte::Swapped { shadow, .. } = word else { return false };
        let activates = self.workingset.refault_activates(shadow, self.lru.active_len());
        if activates {
            self.stats.count(Event::workingset_activate);
            self.workingset.activated();
        }
        activates
    }

    /// Puts adjacent pages in front of the program with one call.
    fn map_adjacent(&self, worker: &Worker, run: &[Arrived]) -> Mapped {
        let first = run[0].page;
        match run[0].landing {
            Landing::Bounce(at) => self.space.map(first, worker.bounce.content(at, run.len())),
            Landing::Chunk(at) => self.space.map(first, self.staging.contents(at, run.len())),
            Landing::Staged => Mapped::all(run.len()),
        }
    }

    pub(crate) fn map_run(&self, worker: &Worker, run: &[Arrived]) {
        let mapped = self.map_adjacent(worker, run);
        let (there, rest) = run.split_at(mapped.pages);
        there.iter().for_each(|&Arrived { page, frame, .. }| self.settle_read(frame, page));
        if let Some(why) = mapped.stopped {
            let rest = rest.iter().map(|&Arrived { page, frame, .. }| Victim { frame, page });
            self.map_refused(rest, why);
        }
    }

    /// Lets go of a page that was read and is mapped.
    pub(crate) fn settle_read(&self, frame: FrameNo, page: PageNo) {
        self.frames.set(frame, flag::MAPPED);
        self.settle_copy(frame, page);
        self.list_mapped(frame);
        self.unlock_page(frame, page);
    }

    /// Gives up a locked frame that is cached and not mapped, and its slot if nobody refers to it.
    pub(crate) fn drop_cached(&self, frame: FrameNo, page: PageNo) {
        if let Some(entry) = self.cache.remove(frame, &self.frames, &self.table, page) {
            self.free_entry(entry);
        }
        self.release_staged(frame);
        self.free_page(frame, page);
    }

    /// A page that was read ahead stays on its slot: whoever touches it reads it again. The content
    /// of any other is lost: whoever touches it gets SIGBUS, everything else goes on.
    pub(crate) fn read_failed(&self, entry: SwapEntry, error: &DeviceError) {
        let (frame, page) = self.frame_of_read(entry);
        let word = self.table.load(page);
        if !self.frames.has(frame, flag::READAHEAD)
            && matches!(word, Pte::Swapped { entry: on, .. } if on == entry)
            && self.table.replace(page, word, Pte::Poisoned)
        {
            self.count_poisoned(page, entry.area(), error);
        } else {
            self.space.wake(page);
        }
        self.drop_cached(frame, page);
    }

    /// Pages whose writes are in flight.
    pub fn writes_in_flight(&self) -> usize {
        self.writes_in_flight.load(Relaxed)
    }
}

/// Reads pages of adjacent slots, at least one.
pub(crate) fn submit_read(
    worker: &mut Worker,
    run: impl Iterator<Item = PageRead>,
    purpose: Purpose,
) {
    let mut pages = worker.scratch.take_pages();
    let mut first = None;
    for PageRead { entry, into } in run {
        first.get_or_insert(entry);
        pages.push(into);
    }
    let first = first.expect("a read has a page");
    let tag = tag(first.area(), purpose);
    worker.submit(first.area(), IoRequest { op: IoOp::Read, slot: first.slot(), pages, tag });
}

/// A transfer of several pages failed as a whole: finds out which page it is.
fn retry_singly(worker: &mut Worker, area: AreaNo, request: IoRequest, purpose: Purpose) {
    for (n, into) in request.pages.into_iter().enumerate() {
        let entry = SwapEntry::new(area, request.slot.plus(n));
        submit_read(worker, std::iter::once(PageRead { entry, into }), purpose);
    }
    worker.flush();
}
