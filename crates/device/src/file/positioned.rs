//! Requests by preadv and pwritev.
//!
//! Owns: the system calls.
//! Invariants: a request whose pages are adjacent in memory allocates nothing, so it can be made in
//! a signal handler.
//! Not here: what a result means ([`super::transfer`]).

use super::transfer::{IoVec, Step, Target, Transfer};
use crate::synchronous::Perform;
use crate::{Completion, IoOp, IoRequest, failed};
use rustix::io::{Errno, IoSlice, IoSliceMut, pread, preadv, pwrite, pwritev};
use std::sync::Arc;

/// A thread's queue to a device without io_uring.
pub(super) struct Positioned {
    target: Arc<Target>,
    transfer: Transfer,
}

impl Positioned {
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self { target, transfer: Transfer::for_one_piece() }
    }
}

impl Perform for Positioned {
    fn perform(&mut self, request: IoRequest) -> Completion {
        self.transfer.begin(&request);
        loop {
            let result = move_pieces(&self.target, request.op, &self.transfer);
            match self.transfer.advance(result) {
                Step::Again => {}
                Step::Finished => return Completion { request, failures: Vec::new() },
                Step::Failed(failure) => {
                    let error = self.target.error(request.op, request.slot, failure);
                    return failed(request, &error);
                }
            }
        }
    }
}

/// Makes one system call for the rest of `transfer`, whose request the caller holds.
fn move_pieces(target: &Target, op: IoOp, transfer: &Transfer) -> Result<usize, Errno> {
    let offset = transfer.offset_bytes();
    match (op, transfer.pieces()) {
        (IoOp::Read, [piece]) => pread(target, bytes_mut(piece), offset),
        (IoOp::Write, [piece]) => pwrite(target, bytes(piece), offset),
        (IoOp::Read, pieces) => {
            let mut slices: Vec<_> =
                pieces.iter().map(|piece| IoSliceMut::new(bytes_mut(piece))).collect();
            preadv(target, &mut slices, offset)
        }
        (IoOp::Write, pieces) => {
            let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(bytes(piece))).collect();
            pwritev(target, &slices, offset)
        }
    }
}

#[expect(clippy::mut_from_ref, reason = "a piece is an address; who owns the pages is the request")]
fn bytes_mut(piece: &IoVec) -> &mut [u8] {
    // SAFETY: each piece is part of pages whose only handles are in the request that `perform`
    // holds across the call. Otherwise the read would land in memory with another owner.
    unsafe { std::slice::from_raw_parts_mut(piece.base, piece.len) }
}

fn bytes(piece: &IoVec) -> &[u8] {
    // SAFETY: as in `bytes_mut`; these pages are not written while the request owns them.
    unsafe { std::slice::from_raw_parts(piece.base, piece.len) }
}
