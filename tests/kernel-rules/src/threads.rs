//! Threads that make a call and may wait in it.
//!
//! Owns: starting one, seeing that it waits, reading messages until it has ended.
//! Invariants: a thread says that it has come to its call; from then on, asleep means asleep in it.
//! Not here: ending a thread that waits for ever. The end of the process does that.

use crate::uffd::{Message, Uffd};
use crate::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;

/// A thread with a call to make.
#[derive(Debug)]
pub struct Caller<T> {
    handle: JoinHandle<T>,
    tid: Arc<AtomicI32>,
}

/// Makes a call in a thread of its own.
pub fn call<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Caller<T> {
    let tid = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&tid);
    let handle = std::thread::spawn(move || {
        own.store(rustix::thread::gettid().as_raw_pid(), Ordering::Release);
        body()
    });
    until("a thread that has started", || tid.load(Ordering::Acquire) != 0);
    Caller { handle, tid }
}

impl<T> Caller<T> {
    /// Its number.
    pub fn tid(&self) -> i32 {
        self.tid.load(Ordering::Acquire)
    }

    /// It has returned.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits until it sleeps in its call.
    pub fn until_asleep(&self) {
        until("a thread that waits", || is_asleep("self", self.tid()));
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end, or it panics.
    pub fn join(self) -> T {
        until("a thread that ends", || self.is_finished());
        self.handle.join().expect("a thread without a panic")
    }

    /// Reads messages until it has ended, and those that are left then. Answers none.
    pub fn finish(self, uffd: &Uffd) -> (T, Vec<Message>) {
        let mut messages = Vec::new();
        until("a thread that ends while messages are read", || {
            messages.extend(uffd.message());
            self.is_finished()
        });
        messages.extend(std::iter::from_fn(|| uffd.message()));
        (self.join(), messages)
    }
}

/// A thread of a process sleeps, interruptibly or not.
pub fn is_asleep(pid: &str, tid: i32) -> bool {
    matches!(state(pid, tid), 'S' | 'D')
}

/// The letter of a thread's state.
///
/// # Panics
/// There is no such thread.
pub fn state(pid: &str, tid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).expect("a thread");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in parentheses");
    rest.chars().next().expect("a state")
}
