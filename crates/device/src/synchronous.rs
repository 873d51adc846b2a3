//! Queues to devices whose requests are complete when `submit` returns.
//!
//! Owns: the list of requests that are complete and not reaped.
//! Invariants: nothing is in flight between calls, so there is nothing to wait for. As long as no
//! more than `depth` requests are left unreaped, the list allocates nothing, so that a request can
//! be made in a signal handler.
//! Not here: performing them ([`Perform`]).

use crate::{Completion, IoQueue, IoRequest};
use std::os::fd::BorrowedFd;

/// Performs a request on the calling thread.
pub(crate) trait Perform: Send {
    fn perform(&mut self, request: IoRequest) -> Completion;
}

/// A thread's queue to such a device.
pub(crate) struct SynchronousQueue<P> {
    performer: P,
    finished: Vec<Completion>,
}

impl<P: Perform> SynchronousQueue<P> {
    pub(crate) fn new(performer: P, depth: u32) -> Self {
        Self { performer, finished: Vec::with_capacity(depth as usize) }
    }
}

impl<P: Perform> IoQueue for SynchronousQueue<P> {
    fn submit(&mut self, request: IoRequest) {
        let completion = self.performer.perform(request);
        self.finished.push(completion);
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.finished);
    }

    fn wait(&mut self) {}

    fn in_flight(&self) -> usize {
        self.finished.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
