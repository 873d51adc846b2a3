//! Thin wrappers of the calls by which the kernel's rules are tested.
//!
//! Owns: userfaultfd, memory, threads that wait in the kernel, forked and cloned processes, ptrace,
//! and what /proc says of pages and threads; each as little as the tests in `rules` need.
//! Invariants: memory that a test uses for its experiment comes from [`memory`] and holds no Rust
//! object, so whatever the kernel does to it breaks nothing else. Nothing is proved by a sleep:
//! a state is waited for, with a deadline.
//! Not here: anything of the product, on purpose. These tests say what the kernel does; whether the
//! product copes with it is tested where the product is.

pub mod alone;
pub mod kernel;
pub mod memory;
pub mod pages;
pub mod process;
pub mod ring;
pub mod threads;
#[cfg(target_arch = "x86_64")]
pub mod trace;
pub mod uffd;

use std::time::{Duration, Instant};

/// How long a state is waited for: an emulated machine is 20 times slower than a busy one.
const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until something is so.
///
/// # Panics
/// It is not within [`DEADLINE`].
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
