//! Waiting on a word of memory, between all threads of this address space.

use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

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
