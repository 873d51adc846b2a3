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
use overspill_device::{Completion, IoOp, IoQueue, IoRequest, failed};
use std::os::fd::BorrowedFd;

/// Requests a worker keeps in flight per device.
const QUEUE_DEPTH: u32 = 64;
/// Readahead windows a worker keeps in flight.
const BOUNCE_CHUNKS: usize = 4;

/// What one thread needs to work for an [`Engine`].
pub struct Worker {
    /// By area; opened at the first request.
    queues: Vec<Option<Box<dyn IoQueue>>>,
    pub(crate) bounce: Bounce,
    finished: Vec<Completion>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} in flight)", self.in_flight())
    }
}

impl Worker {
    /// A worker for `engine`.
    ///
    /// # Errors
    /// ENOMEM, when there is no address space for its bounce memory.
    pub fn new(engine: &Engine) -> std::io::Result<Self> {
        Ok(Self {
            queues: (0..engine.device_count()).map(|_| None).collect(),
            bounce: Bounce::new(PageArena::new(BOUNCE_CHUNKS * Tuning::CHUNK_PAGES)?),
            finished: Vec::new(),
        })
    }

    /// Requests submitted and not yet completed.
    pub fn in_flight(&self) -> usize {
        self.finished.len() + self.queues.iter().flatten().map(|q| q.in_flight()).sum::<usize>()
    }

    /// File descriptors that become readable when [`poll`](Self::poll) has something to do.
    pub fn poll_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().flatten().filter(|q| q.in_flight() > 0).filter_map(|q| q.poll_fd())
    }

    /// Completes what has finished; returns how many requests that were. Never blocks on I/O.
    pub fn poll(&mut self, engine: &Engine) -> usize {
        let mut done = std::mem::take(&mut self.finished);
        for queue in self.queues.iter_mut().flatten() {
            queue.reap(&mut done);
        }
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
        if self.finished.is_empty()
            && let Some(queue) = self.queues.iter_mut().flatten().find(|q| q.in_flight() > 0)
        {
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
    pub(crate) fn submit(&mut self, engine: &Engine, area: AreaNo, request: IoRequest) {
        let queue = &mut self.queues[area.0 as usize];
        if queue.is_none() {
            match engine.device(area).open_queue(QUEUE_DEPTH) {
                Ok(opened) => *queue = Some(opened),
                Err(error) => {
                    self.finished.push(failed(request, &error));
                    return;
                }
            }
        }
        if let Some(queue) = queue {
            queue.submit(request);
        }
    }

    pub(crate) fn flush(&mut self) {
        for queue in self.queues.iter_mut().flatten() {
            queue.flush();
        }
    }
}
