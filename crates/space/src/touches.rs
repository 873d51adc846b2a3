//! Touches that are reported by the threads themselves, in their handlers of SIGSEGV.
//!
//! Owns: the table of waiting threads. A thread posts the address it touched and sleeps; a handler
//! thread of the pager takes it as it would a message of a userfaultfd; whoever settles the page
//! wakes all that wait there, and they touch it again.
//! Invariants: a place belongs to the thread that has taken it until that thread gives it back. A
//! thread that is woken for nothing touches again and comes back.
//!
//! ```text
//! FREE ──thread──> TAKEN ──thread──> POSTED ──pager──> READ ──pager──> SETTLED ──thread──> FREE
//!                                       └────────pager────────────────────^
//! ```
//!
//! Not here: the signal (`preload`), what a fault needs (`engine`).

use crate::words::FaultMessage;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::io::Errno;
use rustix::thread::futex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize};

/// Threads that can wait at a time; more of them try again and again.
const PLACES: usize = 4096;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const POSTED: u32 = 2;
const READ: u32 = 3;
const SETTLED: u32 = 4;

/// A thread that waits.
#[derive(Debug)]
struct Place {
    state: AtomicU32,
    address: AtomicUsize,
}

/// The threads that wait, and the bell for the pager.
#[derive(Debug)]
pub(crate) struct Touches {
    places: Box<[Place]>,
    /// The places from here on were never taken.
    used: AtomicUsize,
    /// Counts what was posted.
    posts: AtomicU32,
    /// What of it has been read.
    read: AtomicU32,
    /// True from when the leading handler sleeps until the bell rings: who posts rings it.
    is_idle: AtomicBool,
    /// An eventfd, open for good.
    bell: AtomicI32,
}

impl Touches {
    pub(crate) fn new() -> Result<Self, Errno> {
        let place = || Place { state: AtomicU32::new(FREE), address: AtomicUsize::new(0) };
        Ok(Self {
            places: std::iter::repeat_with(place).take(PLACES).collect(),
            used: AtomicUsize::new(0),
            posts: AtomicU32::new(0),
            read: AtomicU32::new(0),
            is_idle: AtomicBool::new(true),
            bell: AtomicI32::new(new_bell()?),
        })
    }

    /// Waits until the page at `address` may have been settled, on a thread that has touched it.
    /// May be called in a signal handler.
    pub(crate) fn wait(&self, address: usize) {
        let Some(place) = self.take() else { return std::thread::yield_now() };
        place.address.store(address, Relaxed);
        // Release: the pager reads the address after this.
        place.state.store(POSTED, Release);
        self.posts.fetch_add(1, SeqCst);
        // Pairs with `sleeps`: it says that it is idle, then looks for posts; we post, then look
        // whether it is idle. In SeqCst's total order one of the two sees the other.
        if self.is_idle.load(SeqCst) {
            let _ = futex::wake(&self.posts, futex::Flags::PRIVATE, 1);
        }
        loop {
            let state = place.state.load(Acquire);
            if state == SETTLED {
                break;
            }
            let _ = futex::wait(&place.state, futex::Flags::PRIVATE, state, None);
        }
        place.state.store(FREE, Release);
    }

    fn take(&self) -> Option<&Place> {
        let free =
            |place: &&Place| place.state.compare_exchange(FREE, TAKEN, AcqRel, Relaxed).is_ok();
        let index = self.places.iter().position(|place| free(&place))?;
        self.used.fetch_max(index + 1, Release);
        self.places.get(index)
    }

    fn used(&self) -> &[Place] {
        &self.places[..self.used.load(Acquire)]
    }

    /// Reads what was posted into `out`; returns how much. Never blocks.
    pub(crate) fn read(&self, out: &mut [FaultMessage]) -> usize {
        let posts = self.posts.load(Acquire);
        if posts == self.read.load(Relaxed) {
            return 0;
        }
        let mut count = 0;
        for place in self.used() {
            let Some(message) = out.get_mut(count) else { return count };
            if place.state.compare_exchange(POSTED, READ, AcqRel, Relaxed).is_ok() {
                // A filter of the program's may forbid it to ask for its number.
                *message = FaultMessage { address: place.address.load(Relaxed), thread: 0 };
                count += 1;
            }
        }
        // What was posted meanwhile is counted later than `posts`.
        self.read.store(posts, Relaxed);
        count
    }

    /// Wakes the threads that wait in a range.
    pub(crate) fn wake(&self, addresses: Range<usize>) {
        for place in self.used() {
            let state = place.state.load(Acquire);
            let waits = (state == POSTED || state == READ)
                && addresses.contains(&place.address.load(Relaxed));
            // If it fails, another has read it, and the fault will be served.
            if waits && place.state.compare_exchange(state, SETTLED, AcqRel, Relaxed).is_ok() {
                let _ = futex::wake(&place.state, futex::Flags::PRIVATE, 1);
            }
        }
    }

    /// Says that nobody reads from now on; false if there is something to read.
    pub(crate) fn sleeps(&self) -> bool {
        let _ = rustix::io::read(self.bell(), &mut [0u8; 8]);
        self.is_idle.store(true, SeqCst);
        self.posts.load(SeqCst) == self.read.load(Relaxed)
    }

    /// What becomes readable when something is posted while nobody reads.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        // SAFETY: open for good.
        unsafe { BorrowedFd::borrow_raw(self.bell.load(Relaxed)) }
    }

    /// Rings the bell for the posts, forever: the threads that post have no descriptors of the
    /// pager's.
    pub(crate) fn ring(&self) -> ! {
        loop {
            let seen = self.posts.load(SeqCst);
            if seen != self.read.load(Relaxed) && self.is_idle.swap(false, SeqCst) {
                let _ = rustix::io::write(self.bell(), &1u64.to_ne_bytes());
            }
            let _ = futex::wait(&self.posts, futex::Flags::PRIVATE, seen, None);
        }
    }
}

fn new_bell() -> Result<RawFd, Errno> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into_raw_fd())
}
