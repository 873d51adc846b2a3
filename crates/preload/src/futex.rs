//! Waiting on a word of memory, among all that have this address space.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// A lock that a forked child can make anew: there, whoever held it does not exist.
///
/// ```text
/// FREE ──> HELD ──somebody waits──> AWAITED ──> FREE
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

    /// Acquire pairs with the Release of [`leave`](Self::leave).
    pub(crate) fn enter(&self) {
        if self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
            return;
        }
        while self.0.swap(AWAITED, Acquire) != FREE {
            wait(&self.0, AWAITED, libc::FUTEX_PRIVATE_FLAG, None);
        }
    }

    pub(crate) fn leave(&self) {
        if self.0.swap(FREE, Release) == AWAITED {
            wake(&self.0);
        }
    }

    /// In a forked child, where there is one thread.
    pub(crate) fn renew(&self) {
        self.0.store(FREE, Relaxed);
    }
}

/// Sleeps while `asleep` says so of the word. Its last value was loaded with Acquire.
pub(crate) fn wait_while(word: &AtomicU32, asleep: impl Fn(u32) -> bool) {
    loop {
        let seen = word.load(Acquire);
        if !asleep(seen) {
            return;
        }
        wait(word, seen, libc::FUTEX_PRIVATE_FLAG, None);
    }
}

/// Sleeps until the word is not `seen`, somebody wakes us, or `limit` has passed; may return early.
pub(crate) fn wait(word: &AtomicU32, seen: u32, flag: i32, limit: Option<Duration>) {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads the word and the time.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | flag, seen, limit) };
}

/// Wakes everybody in this address space who waits on the word.
pub(crate) fn wake(word: &AtomicU32) {
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel does not look at the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, i32::MAX) };
}
