//! Other processes: forked ones, and ones that share this address space.
//!
//! Owns: making and ending them; a page of numbers that forked ones share with their parent.
//! Invariants: a forked child ends without running what its parent would at exit. A child that is
//! dropped is killed and waited for.
//! Not here: exec; no rule needs it.

use crate::memory::Range;
use crate::{threads, until};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A child process.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
}

/// Forks; the child runs `body` and ends, with status 0 if it did not panic.
///
/// # Panics
/// There is no child.
pub fn fork(body: impl FnOnce()) -> Child {
    // SAFETY: the child has this thread only, and all others of a rule are in calls of the kernel,
    // so none of them holds a lock that the child could want.
    match unsafe { libc::fork() } {
        0 => {
            let failed = catch_unwind(AssertUnwindSafe(body)).is_err();
            // SAFETY: it ends the process at once.
            unsafe { libc::_exit(c_int::from(failed)) }
        }
        pid => Child { pid: Pid::from_raw(pid).expect("a child") },
    }
}

/// Starts a process in this address space (`CLONE_VM` and nothing else), which sleeps.
///
/// # Panics
/// There is none.
pub fn agent() -> Child {
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    let stack = Range::anonymous(16);
    // SAFETY: the new process has a stack of its own, calls the kernel only, and never returns.
    let pid = unsafe {
        libc::clone(sleep_for_ever, stack.end() as *mut c_void, flags, std::ptr::null_mut())
    };
    Child { pid: Pid::from_raw(pid).expect("a process in this address space") }
}

extern "C" fn sleep_for_ever(_: *mut c_void) -> c_int {
    loop {
        let _ = rustix::event::poll(&mut [], None);
    }
}

impl Child {
    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Its number, for paths of /proc.
    pub fn name(&self) -> String {
        self.pid.as_raw_pid().to_string()
    }

    /// Its main thread sleeps.
    pub fn is_asleep(&self) -> bool {
        threads::is_asleep(&self.name(), self.pid.as_raw_pid())
    }

    /// Has it killed and waited for by whoever runs this program instead.
    pub fn let_go(self) {
        std::mem::forget(self);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end.
    pub fn end(self) -> WaitStatus {
        let mut status = None;
        until("a child that ends", || {
            status = waitpid(Some(self.pid), WaitOptions::NOHANG).expect("a child of this process");
            status.is_some()
        });
        std::mem::forget(self);
        status.expect("it was waited for").1
    }

    /// Waits for its end, which must be without a panic.
    ///
    /// # Panics
    /// It is not.
    pub fn succeed(self) {
        assert_eq!(self.end().exit_status(), Some(0), "the child's status");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// Numbers in memory that children made after it share.
#[derive(Clone, Copy, Debug)]
pub struct Board(&'static [AtomicU64; 64]);

impl Board {
    /// A new one, all zeros.
    ///
    /// # Panics
    /// The kernel has no memory.
    #[expect(clippy::new_without_default, reason = "it maps memory")]
    pub fn new() -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing else is there.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), 512, protection, MapFlags::SHARED) };
        // SAFETY: a page of zeros, which is never unmapped, is 64 atomic numbers.
        Self(unsafe { &*page.expect("shared memory").cast() })
    }

    /// Writes a number.
    pub fn set(self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Release);
    }

    /// Reads one.
    pub fn get(self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }

    /// Waits for one to be something else than zero, and reads it.
    pub fn wait(self, index: usize) -> u64 {
        until("a number from a child", || self.get(index) != 0);
        self.get(index)
    }
}
