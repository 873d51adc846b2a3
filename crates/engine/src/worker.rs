//! A thread that serves faults or reclaims: its queues and its bounce memory.
//!
//! Owns: the requests it submitted until it reaps them, and memory reads land in. Every worker
//! reaps its own completions, so no I/O crosses threads.
//! Not here: the loop that drives it (`space`).

use crate::engine::Engine;
use crate::staging::Bounce;
use crate::tuning::Tuning;
use overspill_area::AreaNo;
use overspill_base::shared::PageArena;
use overspill_device::{IoOp, IoQueue, IoRequest, SwapDevice};
use std::os::fd::BorrowedFd;

/// Requests a worker keeps in flight per device.
const QUEUE_DEPTH: u32 = 64;
/// Readahead windows a worker keeps in flight.
const BOUNCE_CHUNKS: usize = 4;

/// What one thread needs to work for an [`Engine`].
pub struct Worker {
    /// By area.
    queues: Vec<Box<dyn IoQueue>>,
    pub(crate) bounce: Bounce,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} in flight)", self.in_flight())
    }
}

impl Worker {
    /// A worker for `engine`. All file descriptors it will ever have are opened here, not in the
    /// middle of a program that counts on getting the lowest free number.
    ///
    /// # Errors
    /// ENOMEM, when there is no address space for its bounce memory; what opening a queue says.
    pub fn new(engine: &Engine) -> std::io::Result<Self> {
        let open = |device: &std::sync::Arc<dyn SwapDevice>| device.open_queue(QUEUE_DEPTH);
        let queues = engine.devices().iter().map(open).collect::<Result<_, _>>();
        Ok(Self {
            queues: queues.map_err(std::io::Error::other)?,
            bounce: Bounce::new(PageArena::new(BOUNCE_CHUNKS * Tuning::CHUNK_PAGES)?),
        })
    }

    /// Requests submitted and not yet completed.
    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(|q| q.in_flight()).sum()
    }

    /// File descriptors that become readable when [`poll`](Self::poll) has something to do.
    pub fn poll_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().filter(|q| q.in_flight() > 0).filter_map(|q| q.poll_fd())
    }

    /// Completes what has finished; returns how many requests that were. Never blocks on I/O.
    pub fn poll(&mut self, engine: &Engine) -> usize {
        let mut done = Vec::new();
        self.queues.iter_mut().for_each(|queue| queue.reap(&mut done));
        let count = done.len();
        for completion in done {
            match completion.request.op {
                IoOp::Read => engine.complete_read(self, completion),
                IoOp::Write => engine.complete_write(completion),
            }
        }
        count
    }

    /// Blocks until something in flight has finished, and completes it.
    pub fn wait(&mut self, engine: &Engine) {
        if let Some(queue) = self.queues.iter_mut().find(|q| q.in_flight() > 0) {
            queue.wait();
        }
        self.poll(engine);
    }

    /// Completes everything in flight.
    pub fn finish(&mut self, engine: &Engine) {
        while self.in_flight() > 0 {
            self.wait(engine);
        }
    }

    /// Hands a request to the device of `area`; the kernel sees it after [`flush`](Self::flush).
    pub(crate) fn submit(&mut self, area: AreaNo, request: IoRequest) {
        self.queues[area.0 as usize].submit(request);
    }

    pub(crate) fn flush(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.flush());
    }
}
