//! A queue with its own ring.
//!
//! Owns: the ring, and the requests in flight.
//! Invariants:
//! * From the push of an entry until its completion is taken, the request and its iovecs stay
//!   unmoved in a [`Flight`]; the entry's user data is that flight's index.
//! * A flight has one entry in the ring at most, and there are as many flights as the submission
//!   ring has room for; so a push never fails and completions never overflow.
//! * A ring reads and writes, and nothing else: it is restricted before it is enabled, so it opens
//!   no file and no connection for who takes this process over. Filters of system calls do not see
//!   what a ring is asked for.
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
use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Checks whether this process may use io_uring, and whether the kernel's is new enough.
///
/// # Errors
/// ENOSYS from an old kernel, EPERM or EACCES from seccomp or a sysctl, ENOMEM from a limit.
pub(super) fn probe() -> Result<(), Errno> {
    if let Some(reserve) = RESERVE.get() {
        return reserve.probed;
    }
    let ring = IoUring::new(1).map_err(|error| errno_of(&error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| errno_of(&error))?;
    if NEEDED.iter().all(|&code| probe.is_supported(code)) { Ok(()) } else { Err(Errno::NOSYS) }
}

/// What a ring may be asked for.
const NEEDED: [u8; 4] =
    [opcode::Read::CODE, opcode::Write::CODE, opcode::Readv::CODE, opcode::Writev::CODE];

/// Makes a ring that does that alone, for so many requests.
fn restricted(depth: u32) -> std::io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(depth)?;
    let mut may = NEEDED.map(Restriction::sqe_op);
    ring.submitter().register_restrictions(&mut may)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// The rings of a process that cannot make any more.
static RESERVE: OnceLock<Reserve> = OnceLock::new();

struct Reserve {
    rings: Mutex<Vec<IoUring>>,
    depth: u32,
    /// Whether rings could be used when it was made.
    probed: Result<(), Errno>,
}

/// Makes up to `count` rings for queues of up to `depth` requests, as many as the system gives.
/// Queues of this process have these from then on, and no others: it can be kept from making any.
/// A second call changes nothing.
pub fn reserve_rings(count: usize, depth: u32) {
    let probed = probe();
    let rings = match probed {
        Ok(()) => (0..count).map_while(|_| restricted(depth).ok()).collect(),
        Err(_) => Vec::new(),
    };
    // A poor one was there before if this is not kept.
    let _ = RESERVE.set(Reserve { rings: Mutex::new(rings), depth, probed });
}

/// True if this process has all the rings that it ever will.
pub(super) fn has_reserve() -> bool {
    RESERVE.get().is_some()
}

impl Reserve {
    fn rings(&self) -> MutexGuard<'_, Vec<IoUring>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, depth: u32) -> Option<IoUring> {
        if depth <= self.depth { self.rings().pop() } else { None }
    }
}

/// A ring, which goes back to the reserve if there is one. Nothing is in it then.
struct Ring(ManuallyDrop<IoUring>);

impl Ring {
    /// Takes one for so many requests, or makes it.
    ///
    /// # Errors
    /// Of the system; EMFILE if the reserve has no more.
    fn new(depth: u32) -> Result<Self, Errno> {
        let ring = match RESERVE.get() {
            Some(reserve) => reserve.take(depth).ok_or(Errno::MFILE)?,
            None => restricted(depth).map_err(|error| errno_of(&error))?,
        };
        Ok(Self(ManuallyDrop::new(ring)))
    }
}

impl Deref for Ring {
    type Target = IoUring;

    fn deref(&self) -> &IoUring {
        &self.0
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut IoUring {
        &mut self.0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more: this is the only place where it is taken.
        let ring = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Some(reserve) = RESERVE.get() {
            reserve.rings().push(ring);
        }
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A thread's queue to a device through io_uring.
pub(super) struct UringQueue {
    ring: Ring,
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
        let ring = Ring::new(depth)
            .map_err(|errno| DeviceError::Queue { name: target.name().to_owned(), errno })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As who takes the process over might have it do.
    #[test]
    fn a_ring_neither_opens_nor_connects() {
        let mut ring = match restricted(4) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: no ring can be had: {error}"),
        };
        let (cwd, null) = (types::Fd(libc::AT_FDCWD), c"/dev/null");
        let opens = opcode::OpenAt::new(cwd, null.as_ptr()).build();
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        let sends = opcode::Send::new(types::Fd(1), null.as_ptr().cast(), 1).build();
        for entry in [opens, socket, sends] {
            // SAFETY: the path outlives the request, which is waited for.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().unwrap().result(), -libc::EACCES, "{entry:?}");
        }
        let mut probe = Probe::new();
        assert!(ring.submitter().register_probe(&mut probe).is_err(), "nor is anything registered");
    }
}
