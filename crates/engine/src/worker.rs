//! The state of a thread that serves faults or reclaims: its queues and its bounce memory.
//!
//! Owns: the requests it submitted until it reaps them, its bounce memory, and the scratch lists of
//! a fault. Every worker reaps its own completions, so no I/O crosses threads.
//! Invariants: a worker for the faulting thread ([`Worker::for_faulter`]) allocates and frees
//! nothing while it serves a fault, even after swapon and swapoff, unless a read fails.
//! Not here: the loop that drives it (`space`); the set of devices (`swaps`); the effect of a
//! completion (`complete`).

use crate::bounce::Bounce;
use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::known_pace::KnownPace;
use crate::queues::{DeviceQueue, Inbox};
use crate::space::Unmapped;
use crate::transfer::{CompletedRead, PageRead, PageWrite, Purpose, ToRead, tag};
use crate::tuning::Tuning;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::shared::PageBuf;
use overspill_base::sync::{Arc, LockClass, Mutex, assert_no_lock_held};
use overspill_base::{PAGE_SIZE, PageNo, clock};
use overspill_device::{Completion, IoOp, IoRequest};
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Readahead windows a worker keeps in flight; with large pages the same bytes, at least one.
const BOUNCE_CHUNKS: usize = 4;
/// Page lists kept for later requests.
const SPARE_LISTS: usize = 8;

/// The thread on which a worker serves faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkerKind {
    /// A thread of the pager: many faults at a time, and reclaim.
    Pager,
    /// The thread that touched the page, which can do nothing else meanwhile.
    InPlace,
}

impl WorkerKind {
    fn queue_depth(self) -> u32 {
        match self {
            Self::Pager => Worker::QUEUE_DEPTH,
            Self::InPlace => 1,
        }
    }

    fn bounce_chunks(self, page_bytes: usize) -> usize {
        let bytes = BOUNCE_CHUNKS * Tuning::CHUNK_PAGES * PAGE_SIZE;
        match self {
            Self::Pager => (bytes / page_bytes).clamp(1, BOUNCE_CHUNKS),
            Self::InPlace => 1,
        }
    }
}

/// Lists used within one step of a fault. Taken while in use and put back empty, so that their
/// memory is reused.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) run: Vec<LockedPage>,
    pub(crate) wanted: Vec<ToRead>,
    pub(crate) reads: Vec<PageRead>,
    pub(crate) completed: Vec<CompletedRead>,
    pub(crate) isolated: Vec<LockedPage>,
    pub(crate) victims: Vec<LockedPage>,
    /// What is unmapped with one call, how far it came, and the victims that it left.
    pub(crate) runs: Vec<Range<PageNo>>,
    pub(crate) ends: Vec<Unmapped>,
    pub(crate) left: Vec<LockedPage>,
    pub(crate) moved: Vec<LockedPage>,
    pub(crate) changed: Vec<LockedPage>,
    pub(crate) fresh: Vec<LockedPage>,
    pub(crate) writes: Vec<PageWrite>,
    done: Vec<Completion>,
    /// Page lists of completed requests.
    pages: Vec<Vec<PageBuf>>,
}

impl Scratch {
    fn new() -> Self {
        let mut pages = Vec::with_capacity(SPARE_LISTS);
        pages.push(Vec::with_capacity(Tuning::CHUNK_PAGES));
        Self {
            run: Vec::with_capacity(Tuning::CHUNK_PAGES),
            wanted: Vec::with_capacity(Tuning::CHUNK_PAGES),
            reads: Vec::with_capacity(Tuning::CHUNK_PAGES),
            completed: Vec::with_capacity(Tuning::CHUNK_PAGES),
            isolated: Vec::with_capacity(Tuning::CHUNK_PAGES),
            victims: Vec::with_capacity(Tuning::CHUNK_PAGES),
            runs: Vec::with_capacity(Tuning::CHUNK_PAGES),
            ends: Vec::with_capacity(Tuning::CHUNK_PAGES),
            left: Vec::with_capacity(Tuning::CHUNK_PAGES),
            moved: Vec::with_capacity(Tuning::CHUNK_PAGES),
            changed: Vec::with_capacity(Tuning::CHUNK_PAGES),
            fresh: Vec::with_capacity(Tuning::CHUNK_PAGES),
            writes: Vec::with_capacity(Tuning::CHUNK_PAGES),
            done: Vec::with_capacity(1),
            pages,
        }
    }

    /// Returns an empty list for a request's pages.
    pub(crate) fn take_pages(&mut self) -> Vec<PageBuf> {
        self.pages.pop().unwrap_or_else(|| Vec::with_capacity(Tuning::CHUNK_PAGES))
    }

    /// Keeps a completed request's list for reuse.
    pub(crate) fn keep_pages(&mut self, mut pages: Vec<PageBuf>) {
        if self.pages.len() < SPARE_LISTS {
            pages.clear();
            self.pages.push(pages);
        }
    }
}

/// The state of one thread that works for an [`Engine`].
pub struct Worker {
    /// By area.
    queues: Vec<Option<DeviceQueue>>,
    inbox: Arc<Inbox>,
    /// The version of the set of devices that `queues` reflects.
    version: usize,
    kind: WorkerKind,
    pub(crate) bounce: Bounce,
    pub(crate) scratch: Scratch,
    /// Frames it has freed by eviction.
    pub(crate) evicted: usize,
    /// Victims that it takes at a time.
    pub(crate) batch_pages: usize,
    /// When frames run low, reclaims by itself instead of waking the reclaim thread, which would
    /// run on another CPU and interrupt this one at every eviction.
    pub reclaims: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} in flight)", self.in_flight())
    }
}

impl Worker {
    /// Requests that one of a pager keeps in flight per device.
    pub const QUEUE_DEPTH: u32 = 64;

    /// Makes a worker for `engine`. Its file descriptors are opened here, not later while the
    /// program may expect the lowest free number; those for an area added later are opened by
    /// [`Engine::swapon`].
    ///
    /// # Errors
    /// ENOMEM, if there is no address space for its bounce memory; the error of opening a queue.
    pub fn new(engine: &Engine) -> std::io::Result<Self> {
        Self::at(WorkerKind::Pager, engine)
    }

    /// Makes a worker for [`Engine::fault_in_place`], which can serve a fault in a signal handler:
    /// it has one request at a time, and reclaims only pages that need neither a fresh slot nor a
    /// wait.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_faulter(engine: &Engine) -> std::io::Result<Self> {
        Self::at(WorkerKind::InPlace, engine)
    }

    fn at(kind: WorkerKind, engine: &Engine) -> std::io::Result<Self> {
        // Room for all areas: a fault that finds new queues must not allocate.
        let inbox = Arc::new(Inbox {
            queues: Mutex::new(LockClass::Control, Vec::with_capacity(AreaNo::MAX)),
            queue_depth: kind.queue_depth(),
        });
        let version = engine.swaps.version();
        engine.swaps.register(&inbox).map_err(std::io::Error::other)?;
        let page_bytes = engine.memory.page_bytes;
        let bounce = Bounce::new(kind.bounce_chunks(page_bytes), page_bytes)?;
        let queues = Vec::with_capacity(AreaNo::MAX);
        let scratch = Scratch::new();
        let mut worker = Self {
            queues,
            inbox,
            version,
            kind,
            bounce,
            scratch,
            evicted: 0,
            batch_pages: engine.tuning.reclaim_batch_pages,
            reclaims: false,
        };
        worker.take_new_queues();
        Ok(worker)
    }

    pub(crate) fn kind(&self) -> WorkerKind {
        self.kind
    }

    /// True if it reclaims when frames run low; on the faulting thread only if no device's writes
    /// must be waited for.
    pub(crate) fn reclaims_inline(&self) -> bool {
        match self.kind {
            WorkerKind::Pager => self.reclaims,
            WorkerKind::InPlace => self.queues().all(|queue| queue.synchronous),
        }
    }

    fn queues(&self) -> impl Iterator<Item = &DeviceQueue> {
        self.queues.iter().flatten()
    }

    fn queue(&mut self, area: AreaNo) -> &mut DeviceQueue {
        let number = area.0 as usize;
        if self.queues.get(number).is_none_or(Option::is_none) {
            self.take_new_queues();
        }
        let queue = self.queues.get_mut(number).and_then(Option::as_mut);
        queue.expect("every worker has a queue to every area whose slots are in use")
    }

    fn take_new_queues(&mut self) {
        for (area, queue) in self.inbox.queues.lock().drain(..) {
            let number = area.0 as usize;
            self.queues.resize_with(self.queues.len().max(number + 1), || None);
            self.queues[number] = Some(queue);
        }
    }

    /// Drops the queues to devices that were swapped off.
    pub(crate) fn drop_gone(&mut self, engine: &Engine) {
        let version = engine.swaps.version();
        if version == self.version {
            return;
        }
        self.version = version;
        self.take_new_queues();
        for (number, queue) in self.queues.iter_mut().enumerate() {
            if engine.swaps.device(AreaNo(number as u8)).is_none() {
                debug_assert!(queue.as_ref().is_none_or(|queue| queue.io.in_flight() == 0));
                *queue = None;
            }
        }
    }

    /// Returns the number of requests submitted and not yet completed.
    pub fn in_flight(&self) -> usize {
        self.queues().map(|queue| queue.io.in_flight()).sum()
    }

    /// Returns the file descriptors that become readable when [`poll`](Self::poll) has work.
    pub fn poll_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let busy = self.queues().filter(|queue| queue.io.in_flight() > 0);
        busy.filter_map(|queue| queue.io.poll_fd())
    }

    /// Reaps the completed requests; return the list, emptied, with
    /// [`keep_reaped`](Self::keep_reaped).
    pub(crate) fn reap(&mut self) -> Vec<Completion> {
        let mut done = std::mem::take(&mut self.scratch.done);
        self.queues.iter_mut().flatten().for_each(|queue| queue.io.reap(&mut done));
        done
    }

    /// Keeps the list for the next [`reap`](Self::reap).
    pub(crate) fn keep_reaped(&mut self, done: Vec<Completion>) {
        debug_assert!(done.is_empty());
        self.scratch.done = done;
    }

    /// Blocks until a request in flight has completed.
    pub(crate) fn wait_for_one(&mut self) {
        let mut queues = self.queues.iter_mut().flatten();
        if let Some(queue) = queues.find(|queue| queue.io.in_flight() > 0) {
            queue.io.wait();
        }
    }

    /// Submits a read of adjacent slots, at least one.
    pub(crate) fn submit_read(&mut self, run: impl Iterator<Item = PageRead>, purpose: Purpose) {
        let mut pages = self.scratch.take_pages();
        let mut first = None;
        for PageRead { entry, into } in run {
            first.get_or_insert(entry);
            pages.push(into);
        }
        let first = first.expect("a read has a page");
        let tag = tag(first.area(), purpose);
        self.submit(first.area(), IoRequest { op: IoOp::Read, slot: first.slot(), pages, tag });
    }

    /// Submits a request to the device of `area`; the kernel sees it after [`flush`](Self::flush).
    pub(crate) fn submit(&mut self, area: AreaNo, request: IoRequest) {
        assert_no_lock_held("submitting");
        let queue = self.queue(area);
        queue.pace.begin(request.slot, clock::now_ns());
        queue.io.submit(request);
    }

    /// Notes what the end of a request tells of the pace of its device, and has as much under way
    /// there as follows from it.
    pub(crate) fn note_pace(
        &mut self,
        known: &KnownPace,
        area: AreaNo,
        request: &IoRequest,
        asks_all: bool,
    ) {
        let queue = self.queue(area);
        queue.pace.end(request.slot, request.pages.len(), clock::now_ns());
        known.note_latency(&queue.pace);
        if asks_all {
            known.note_rate(request.op, &queue.pace);
            queue.io.set_window(known.far_pages());
        }
    }

    pub(crate) fn flush(&mut self) {
        self.queues.iter_mut().flatten().for_each(|queue| queue.io.flush());
    }

    /// See [`SwapDevice::holds`](overspill_device::SwapDevice::holds).
    pub(crate) fn holds(&mut self, entry: SwapEntry, content: &[u8]) -> bool {
        self.queue(entry.area()).device.holds(entry.slot(), content)
    }
}
