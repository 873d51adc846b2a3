//! Waiting on a word of memory, between all threads of this address space.

use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A lock that a forked child can reset, since its holder does not exist there.
///
/// ```text
/// FREE ──> HELD ──a thread waits──> AWAITED ──> FREE
/// ```
#[derive(Debug)]
pub(crate) struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Locks. Acquire pairs with the Release of [`leave`](Self::leave).
    pub(crate) fn enter(&self) {
        if self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
            return;
        }
        while self.0.swap(AWAITED, Acquire) != FREE {
            let _ = futex::wait(&self.0, Flags::PRIVATE, AWAITED, None);
        }
    }

    pub(crate) fn leave(&self) {
        if self.0.swap(FREE, Release) == AWAITED {
            wake(&self.0);
        }
    }

    /// Resets the lock in a forked child, where there is one thread.
    pub(crate) fn renew(&self) {
        self.0.store(FREE, Relaxed);
    }
}

/// Sleeps while `asleep` is true of the word. Its last value was loaded with Acquire.
pub(crate) fn wait_while(word: &AtomicU32, asleep: impl Fn(u32) -> bool) {
    loop {
        let seen = word.load(Acquire);
        if !asleep(seen) {
            return;
        }
        let _ = futex::wait(word, Flags::PRIVATE, seen, None);
    }
}

/// Wakes all waiters on the word in this address space.
pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
}
