//! A queue with its own ring.
//!
//! Owns: the ring, and the requests in flight.
//! Invariants:
//! * From the push of an entry until its completion is taken, the request and its iovecs stay
//!   unmoved in a [`Flight`]; the entry's user data is that flight's index.
//! * A flight has one entry in the ring at most, and there are as many flights as the submission
//!   ring has room for; so a push never fails and completions never overflow.
//! * After a fork the ring belongs to the parent alone. The child's copy of the queue neither
//!   submits nor waits when it is dropped; it only releases the mapping and the descriptor.
//!
//! Not here: what a result means ([`super::transfer`]).
//! Rejected: MADV_DONTFORK on the ring (a child that drops its copy would unmap what has been
//! mapped there since); IORING_SETUP_SINGLE_ISSUER (a queue may move to another thread); SQPOLL (a
//! spinning CPU per queue).

use super::transfer::{IoVec, Step, Target, Transfer};
use crate::error::DeviceError;
use crate::{Completion, IoOp, IoQueue, IoRequest, failed};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Checks whether this process may use io_uring, and whether the kernel's is new enough.
///
/// # Errors
/// ENOSYS from an old kernel, EPERM or EACCES from seccomp or a sysctl, ENOMEM from a limit.
pub(super) fn probe() -> Result<(), Errno> {
    let ring = IoUring::new(1).map_err(|error| errno_of(&error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| errno_of(&error))?;
    let needed =
        [opcode::Read::CODE, opcode::Write::CODE, opcode::Readv::CODE, opcode::Writev::CODE];
    if needed.iter().all(|&code| probe.is_supported(code)) { Ok(()) } else { Err(Errno::NOSYS) }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A thread's queue to a device through io_uring.
pub(super) struct UringQueue {
    ring: IoUring,
    target: Arc<Target>,
    flights: Box<[Flight]>,
    idle: Vec<usize>,
    finished: Vec<Completion>,
    owner: Pid,
}

/// Holds a request while the kernel has it.
#[derive(Default)]
struct Flight {
    request: Option<IoRequest>,
    transfer: Transfer,
}

/// The result of a call of io_uring_enter.
enum Entered {
    /// It took entries or waited.
    Fine,
    /// It has no memory, or no room for more completions: take some first.
    Congested,
}

impl UringQueue {
    /// Makes a queue of `depth` requests, at least one, to `target`.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] if the system refuses another ring.
    pub(super) fn new(target: Arc<Target>, depth: u32) -> Result<Self, DeviceError> {
        let depth = depth.max(1);
        let ring = IoUring::new(depth).map_err(|error| DeviceError::Queue {
            name: target.name().to_owned(),
            errno: errno_of(&error),
        })?;
        Ok(Self {
            ring,
            target,
            flights: (0..depth).map(|_| Flight::default()).collect(),
            idle: (0..depth as usize).rev().collect(),
            finished: Vec::new(),
            owner: getpid(),
        })
    }

    fn flying(&self) -> usize {
        self.flights.len() - self.idle.len()
    }

    /// Puts the rest of a flight into the ring.
    fn push(&mut self, index: usize) {
        let Flight { request: Some(request), transfer } = &self.flights[index] else {
            unreachable!("flight {index} has no request");
        };
        let fd = types::Fd(self.target.as_fd().as_raw_fd());
        let entry = entry(fd, request.op, transfer).user_data(index as u64);
        // SAFETY: the entry's iovecs and pages stay in flight `index`, which `complete` empties
        // only when the kernel is done with the entry, and which Drop waits for. If they were freed
        // earlier, the device would write into memory that has another owner.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are no more flights than entries");
    }

    /// Takes completions from the ring. True if something was put into the ring again.
    fn drain(&mut self) -> bool {
        let mut pushed = false;
        while let Some(cqe) = self.next_completion() {
            pushed |= self.complete(cqe.user_data() as usize, cqe.result());
        }
        pushed
    }

    /// A separate function, so that the borrow of the ring ends before the result is handled.
    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Handles one result. True if the flight goes on.
    fn complete(&mut self, index: usize, result: i32) -> bool {
        let flight = &mut self.flights[index];
        let result = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        let step = flight.transfer.advance(result);
        if step == Step::Again {
            self.push(index);
            return true;
        }
        let request = flight.request.take().expect("a completion belongs to a flight");
        self.idle.push(index);
        self.finished.push(match step {
            Step::Failed(failure) => {
                let error = self.target.error(request.op, request.slot, failure);
                failed(request, &error)
            }
            _ => Completion { request, failures: Vec::new() },
        });
        false
    }

    /// Submits entries to the kernel, and waits until there are `want` completions.
    ///
    /// # Panics
    /// If the ring itself is gone, because its descriptor was closed or the process has forbidden
    /// itself io_uring: then requests in the ring can be neither completed nor returned.
    fn enter(&mut self, want: usize) -> Entered {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Entered::Fine,
            Err(error) => match errno_of(&error) {
                Errno::INTR => Entered::Fine,
                Errno::AGAIN | Errno::BUSY => Entered::Congested,
                errno => panic!(
                    "the io_uring of {} is lost ({errno}): was its descriptor closed?",
                    self.target.name()
                ),
            },
        }
    }

    /// Takes all available completions. What must be continued is submitted at once, because a
    /// caller that polls now will not call again before there is a result.
    fn collect(&mut self) {
        if self.drain() {
            self.flush();
        }
    }

    /// Waits for a completion, and takes all available ones.
    fn await_some(&mut self) {
        if let Entered::Congested = self.enter(1) {
            std::thread::yield_now();
        }
        self.collect();
    }
}

fn entry(fd: types::Fd, op: IoOp, transfer: &Transfer) -> squeue::Entry {
    let (pieces, offset) = (transfer.pieces(), transfer.offset_bytes());
    match (op, pieces) {
        (IoOp::Read, &[IoVec { base, len }]) => {
            opcode::Read::new(fd, base, len as u32).offset(offset).build()
        }
        (IoOp::Write, &[IoVec { base, len }]) => {
            opcode::Write::new(fd, base, len as u32).offset(offset).build()
        }
        (IoOp::Read, _) => opcode::Readv::new(fd, pieces.as_ptr().cast(), pieces.len() as u32)
            .offset(offset)
            .build(),
        (IoOp::Write, _) => opcode::Writev::new(fd, pieces.as_ptr().cast(), pieces.len() as u32)
            .offset(offset)
            .build(),
    }
}

impl IoQueue for UringQueue {
    fn submit(&mut self, request: IoRequest) {
        while self.idle.is_empty() {
            self.await_some();
        }
        let index = self.idle.pop().expect("just made sure of");
        let flight = &mut self.flights[index];
        flight.transfer.begin(&request);
        flight.request = Some(request);
        self.push(index);
    }

    fn flush(&mut self) {
        while !self.ring.submission().is_empty() {
            if let Entered::Congested = self.enter(0) {
                self.drain();
                std::thread::yield_now();
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.collect();
        done.append(&mut self.finished);
    }

    fn wait(&mut self) {
        self.collect();
        while self.finished.is_empty() && self.flying() > 0 {
            self.await_some();
        }
    }

    fn in_flight(&self) -> usize {
        self.flying() + self.finished.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if self.flying() > 0 && getpid() == self.owner {
            while self.flying() > 0 {
                self.await_some();
            }
        }
    }
}
