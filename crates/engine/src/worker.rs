//! A thread that serves faults or reclaims: its queues and its bounce memory.
//!
//! Owns: the requests it submitted until it reaps them, and memory reads land in. Every worker
//! reaps its own completions, so no I/O crosses threads.
//! Not here: the loop that drives it (`space`); which devices there are (`swaps`).

use crate::engine::Engine;
use crate::staging::Bounce;
use crate::tuning::Tuning;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::shared::PageArena;
use overspill_base::sync::{Arc, LockClass, Mutex, assert_no_lock_held};
use overspill_device::{Completion, DeviceError, IoOp, IoQueue, IoRequest, SwapDevice};
use std::os::fd::BorrowedFd;

/// Requests a worker keeps in flight per device.
const QUEUE_DEPTH: u32 = 64;
/// Readahead windows a worker keeps in flight.
const BOUNCE_CHUNKS: usize = 4;

/// A device and one worker's way to it.
pub(crate) struct Lane {
    device: Arc<dyn SwapDevice>,
    queue: Box<dyn IoQueue>,
}

impl Lane {
    pub(crate) fn open(device: &Arc<dyn SwapDevice>) -> Result<Self, DeviceError> {
        Ok(Self { device: device.clone(), queue: device.open_queue(QUEUE_DEPTH)? })
    }
}

/// Lanes on their way to a worker.
pub(crate) struct Mail(Mutex<Vec<(AreaNo, Lane)>>);

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mail")
    }
}

impl Mail {
    pub(crate) fn put(&self, area: AreaNo, lane: Lane) {
        self.0.lock().push((area, lane));
    }
}

/// What one thread needs to work for an [`Engine`].
pub struct Worker {
    /// By area.
    lanes: Vec<Option<Lane>>,
    mail: Arc<Mail>,
    /// Of the set of devices that `lanes` reflects.
    version: usize,
    pub(crate) bounce: Bounce,
    /// When frames run low, reclaims by itself instead of calling the reclaim thread: that one would
    /// run on another CPU, from where every eviction has to interrupt this one.
    pub reclaims: bool,
    /// Empty between calls; kept for its memory.
    done: Vec<Completion>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} in flight)", self.in_flight())
    }
}

impl Worker {
    /// A worker for `engine`. Its file descriptors are opened here, not in the middle of a program
    /// that counts on getting the lowest free number; those for an area that comes later, by
    /// [`Engine::swapon`].
    ///
    /// # Errors
    /// ENOMEM, when there is no address space for its bounce memory; what opening a queue says.
    pub fn new(engine: &Engine) -> std::io::Result<Self> {
        let mail = Arc::new(Mail(Mutex::new(LockClass::Control, Vec::new())));
        let version = engine.swaps.version();
        engine.swaps.register(&mail).map_err(std::io::Error::other)?;
        let bounce = Bounce::new(PageArena::new(BOUNCE_CHUNKS * Tuning::CHUNK_PAGES)?);
        let mut worker =
            Self { lanes: Vec::new(), mail, version, bounce, reclaims: false, done: Vec::new() };
        worker.open_mail();
        Ok(worker)
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().flatten()
    }

    fn lane(&mut self, area: AreaNo) -> &mut Lane {
        let number = area.0 as usize;
        if self.lanes.get(number).is_none_or(Option::is_none) {
            self.open_mail();
        }
        let lane = self.lanes.get_mut(number).and_then(Option::as_mut);
        lane.expect("every worker has a lane to every area whose slots are in use")
    }

    fn open_mail(&mut self) {
        for (area, lane) in self.mail.0.lock().drain(..) {
            let number = area.0 as usize;
            self.lanes.resize_with(self.lanes.len().max(number + 1), || None);
            self.lanes[number] = Some(lane);
        }
    }

    /// Lets go of the devices of areas that were swapped off.
    fn drop_gone(&mut self, engine: &Engine) {
        let version = engine.swaps.version();
        if version == self.version {
            return;
        }
        self.version = version;
        self.open_mail();
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if engine.swaps.device(AreaNo(number as u8)).is_none() {
                debug_assert!(lane.as_ref().is_none_or(|lane| lane.queue.in_flight() == 0));
                *lane = None;
            }
        }
    }

    /// Requests submitted and not yet completed.
    pub fn in_flight(&self) -> usize {
        self.lanes().map(|lane| lane.queue.in_flight()).sum()
    }

    /// File descriptors that become readable when [`poll`](Self::poll) has something to do.
    pub fn poll_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let busy = self.lanes().filter(|lane| lane.queue.in_flight() > 0);
        busy.filter_map(|lane| lane.queue.poll_fd())
    }

    /// Completes what has finished; returns how many requests that were. Never blocks on I/O.
    pub fn poll(&mut self, engine: &Engine) -> usize {
        let mut done = std::mem::take(&mut self.done);
        self.lanes.iter_mut().flatten().for_each(|lane| lane.queue.reap(&mut done));
        let count = done.len();
        for completion in done.drain(..) {
            match completion.request.op {
                IoOp::Read => engine.complete_read(self, completion),
                IoOp::Write => engine.complete_write(completion),
            }
        }
        self.done = done;
        self.drop_gone(engine);
        count
    }

    /// Blocks until something in flight has finished, and completes it.
    pub fn wait(&mut self, engine: &Engine) {
        let mut lanes = self.lanes.iter_mut().flatten();
        if let Some(lane) = lanes.find(|lane| lane.queue.in_flight() > 0) {
            lane.queue.wait();
        }
        self.poll(engine);
    }

    /// Completes everything in flight, and lets go of devices that were swapped off.
    pub fn finish(&mut self, engine: &Engine) {
        while self.in_flight() > 0 {
            self.wait(engine);
        }
        self.drop_gone(engine);
    }

    /// Hands a request to the device of `area`; the kernel sees it after [`flush`](Self::flush).
    pub(crate) fn submit(&mut self, area: AreaNo, request: IoRequest) {
        assert_no_lock_held("submitting");
        self.lane(area).queue.submit(request);
    }

    pub(crate) fn flush(&mut self) {
        self.lanes.iter_mut().flatten().for_each(|lane| lane.queue.flush());
    }

    /// See [`SwapDevice::holds`].
    pub(crate) fn holds(&mut self, entry: SwapEntry, content: &[u8]) -> bool {
        self.lane(entry.area()).device.holds(entry.slot(), content)
    }
}
