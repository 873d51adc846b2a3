//! Errands: system calls that only the pager's own process can make.
//!
//! Under `overspill run` the pager is a process of its own in the program's address space. Its
//! descriptors are in its table and in no other, so a thread of the program that needs one asks the
//! pager to make the call. In a library there is one process, and every call is made where it
//! stands.
//! Owns: which of the two it is. Not here: how the pager is asked (the preload object).

use std::sync::OnceLock;

/// Runs what it is given in the pager's process, and returns when that is done.
pub type Runner = fn(&mut dyn FnMut());

static RUNNER: OnceLock<Runner> = OnceLock::new();

/// From now on errands are run by `runner`, which runs those of the pager's own threads in place.
pub fn set_runner(runner: Runner) {
    // The second call of a process changes nothing: there is one pager.
    let _ = RUNNER.set(runner);
}

/// Runs `f` where the pager's descriptors are. It must touch no memory that is paged.
///
/// # Panics
/// When the runner breaks its promise to run what it is given.
pub fn run<R>(f: impl FnOnce() -> R) -> R {
    let Some(runner) = RUNNER.get() else { return f() };
    let (mut f, mut result) = (Some(f), None);
    runner(&mut || result = f.take().map(|f| f()));
    result.expect("an errand is run once")
}
