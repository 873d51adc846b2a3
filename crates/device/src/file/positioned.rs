//! A queue whose requests are done when `submit` returns, by preadv and pwritev.
//!
//! Owns: the system calls and the list of finished requests.
//! Invariants: nothing is in flight between calls, so nothing is to be waited for.
//! Not here: what a result means ([`super::transfer`]).

use super::transfer::{IoVec, Step, Target, Transfer};
use crate::{Completion, IoOp, IoQueue, IoRequest, failed};
use rustix::io::{Errno, IoSlice, IoSliceMut, preadv, pwritev};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One thread's way to a device without io_uring.
pub(super) struct PositionedQueue {
    target: Arc<Target>,
    transfer: Transfer,
    finished: Vec<Completion>,
}

impl PositionedQueue {
    /// A queue to `target`.
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self { target, transfer: Transfer::default(), finished: Vec::new() }
    }

    fn run(&mut self, request: IoRequest) -> Completion {
        self.transfer.begin(&request);
        loop {
            let result = move_pieces(&self.target, request.op, &self.transfer);
            match self.transfer.advance(result) {
                Step::Again => {}
                Step::Finished => return Completion { request, failures: Vec::new() },
                Step::Failed(trouble) => {
                    let error = self.target.error(request.op, request.slot, trouble);
                    return failed(request, &error);
                }
            }
        }
    }
}

/// One system call for all that remains of `transfer`, whose request the caller holds.
fn move_pieces(target: &Target, op: IoOp, transfer: &Transfer) -> Result<usize, Errno> {
    let offset = transfer.offset_bytes();
    match op {
        IoOp::Read => preadv(target, &mut slices_mut(transfer.pieces()), offset),
        IoOp::Write => pwritev(target, &slices(transfer.pieces()), offset),
    }
}

fn slices_mut(pieces: &[IoVec]) -> Vec<IoSliceMut<'_>> {
    // SAFETY: each piece lies in pages whose only handles are in the request that `run` holds
    // across the call. Were they elsewhere, the read would land in somebody else's page.
    let slice = |piece: &IoVec| unsafe { std::slice::from_raw_parts_mut(piece.base, piece.len) };
    pieces.iter().map(|piece| IoSliceMut::new(slice(piece))).collect()
}

fn slices(pieces: &[IoVec]) -> Vec<IoSlice<'_>> {
    // SAFETY: as in `slices_mut`; nobody writes these pages while the request owns them.
    let slice = |piece: &IoVec| unsafe { std::slice::from_raw_parts(piece.base, piece.len) };
    pieces.iter().map(|piece| IoSlice::new(slice(piece))).collect()
}

impl IoQueue for PositionedQueue {
    fn submit(&mut self, request: IoRequest) {
        let completion = self.run(request);
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
