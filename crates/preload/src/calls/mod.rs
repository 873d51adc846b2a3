//! System calls, where the kernel cannot wait for a page that it misses in one.
//!
//! Owns: having the calls of every thread of the program caught, wherever they are made (libc's
//! inside, code that makes them without libc), by Syscall User Dispatch; bringing in what they
//! touch and holding it ([`hold`]); the signals that this needs ([`actions`], [`trap`]).
//! Invariants: a call of the program never meets a managed page that is out. The pager's own code
//! runs with calls passing and signals blocked.
//! Not here: what a call touches (`overspill_calls`). Not caught: threads made by a bare `clone`.
//! Rejected: a seccomp filter. It lasts through exec, cannot be switched by a thread's state, and
//! would end a child without us at its first call. Rewriting the program's code: cannot be done
//! unseen.
//!
//! ```text
//! program   syscall ──> SIGSYS ──> trap: hold ──> system::resume: syscall, let go ──> goes on
//! libc      read, write, ... ──> transfers: hold, pass · libc's own · let go
//! ```

mod actions;
mod context;
mod hold;
mod system;
mod thread;
mod transfers;
mod trap;

pub(crate) use hold::settle;
pub(crate) use system::call as uncaught;

use crate::pager::{Process, any_process};
use overspill::ways::Way;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// True once the calls of this program are caught.
static CATCHES: AtomicBool = AtomicBool::new(false);

/// Has the calls of the program's first thread caught, if this run needs it.
pub(crate) fn begin(process: &Process) -> Result<(), String> {
    let way = process.session.settings().way;
    if !way.catches_calls() {
        return Ok(());
    }
    actions::begin(way == Way::Touches);
    CATCHES.store(true, Relaxed);
    begin_thread(process)
}

/// Has the calls of a new thread of the program caught.
pub(crate) fn begin_thread(process: &Process) -> Result<(), String> {
    if !CATCHES.load(Relaxed) {
        return Ok(());
    }
    let begun = crate::signals::blocked(|| thread::begin(process));
    begun.map_err(|errno| {
        let error = std::io::Error::from_raw_os_error(errno);
        format!("cannot catch this thread's system calls: {error}")
    })?;
    thread::current().into_iter().for_each(actions::unblock);
    set(thread::CAUGHT);
    Ok(())
}

/// What no thread of the parent has locked in a forked child. Taken with all signals blocked.
#[derive(Debug)]
pub(crate) struct Locked {
    _threads: MutexGuard<'static, Vec<usize>>,
    _actions: actions::Locked,
}

impl Locked {
    pub(crate) fn take() -> Self {
        Self { _threads: thread::all(), _actions: actions::Locked::take() }
    }
}

/// Has the calls of a forked child's thread caught again.
pub(crate) fn begin_in_child(process: &Process) {
    if let Err(errno) = thread::begin_in_child(process) {
        let error = std::io::Error::from_raw_os_error(errno);
        crate::pager::say(&format!("cannot catch the system calls of a child: {error}"));
    }
}

/// True if calls of this program's threads are caught.
pub(crate) fn are_caught() -> bool {
    CATCHES.load(Relaxed)
}

/// Lets calls pass on this thread until dropped.
#[derive(Debug)]
pub(crate) struct Passing(Option<u8>);

impl Passing {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self(set(thread::PASS))
    }
}

impl Drop for Passing {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            set(before);
        }
    }
}

/// Sets whether this thread's calls are caught; returns what was set.
#[inline]
fn set(selector: u8) -> Option<u8> {
    let thread = thread::current()?;
    let before = std::mem::replace(&mut thread.selector, selector);
    // The next call is made by the kernel's reading of this byte.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    Some(before)
}

/// This thread and its process, if its calls are caught now.
#[inline]
fn here<'a>() -> Option<(&'a mut thread::Thread, &'static Process)> {
    let thread = thread::current().filter(|thread| thread.selector == thread::CAUGHT)?;
    Some((thread, any_process()?))
}
