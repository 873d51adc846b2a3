//! System calls, where they cannot be caught: Syscall User Dispatch is x86's only (Linux 6.18).
//!
//! What the `calls` module offers there; a run whose way needs more is refused.

use crate::pager::Process;
use libc::c_long;

pub(crate) fn begin(process: &Process) -> Result<(), String> {
    match process.session.settings().way.catches_calls() {
        true => Err("system calls cannot be caught on this processor".into()),
        false => Ok(()),
    }
}

pub(crate) fn begin_thread(_: &Process) -> Result<(), String> {
    Ok(())
}

pub(crate) fn begin_in_child(_: &Process) {}

pub(crate) fn are_caught() -> bool {
    false
}

pub(crate) fn settle(_: &Process, _: usize, _: usize) {}

/// Makes a system call. Sets `errno` if it fails.
///
/// # Safety
/// The call's own contract.
pub(crate) unsafe fn uncaught(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: contract.
    unsafe { libc::syscall(number, a, b, c, d, e, f) as isize }
}

#[derive(Debug)]
pub(crate) struct Locked;

impl Locked {
    pub(crate) fn take() -> Self {
        Self
    }
}

#[derive(Debug)]
pub(crate) struct Passing;

impl Passing {
    pub(crate) fn begin() -> Self {
        Self
    }
}
