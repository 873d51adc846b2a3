//! Errands: system calls that only the pager's own process can make.
//!
//! Under `overspill run` the pager is a separate process in the program's address space. Its
//! descriptors are only in its own table, so a thread of the program that needs one asks the pager
//! to make the call. In a library there is one process, and calls are made directly.
//!
//! Owns: which of the two it is.
//! Not here: how the pager is asked (the preload object).

use std::sync::OnceLock;

/// Runs a closure in the pager's process, and returns when it is done.
pub type Runner = fn(&mut dyn FnMut());

static RUNNER: OnceLock<Runner> = OnceLock::new();

/// Sets the runner of all later errands; it runs those of the pager's own threads in place.
pub fn set_runner(runner: Runner) {
    // A second call in a process changes nothing: there is one pager.
    let _ = RUNNER.set(runner);
}

/// Runs `f` where the pager's descriptors are. It must not touch paged memory.
///
/// # Panics
/// If the runner does not run `f`.
pub fn run<R>(f: impl FnOnce() -> R) -> R {
    let Some(runner) = RUNNER.get() else { return f() };
    let (mut f, mut result) = (Some(f), None);
    runner(&mut || result = f.take().map(|f| f()));
    result.expect("an errand is run once")
}
