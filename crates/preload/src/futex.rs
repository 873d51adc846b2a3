//! Waiting on a word of memory, among all that have this address space.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

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
