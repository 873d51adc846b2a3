//! What a pager outside a program needs the kernel to do, one test a rule.
//!
//! Owns: the facts. A rule that differs by version has a table of versions and is asserted on both
//! sides; a kernel without the feature prints `skipped:` and why. What a rule leaves open is
//! counted and printed as `found:`.
//! Invariants: each test runs in a process of its own ([`overspill_kernel_rules::alone`]). Where a
//! race is meant, the bound says what must hold whoever wins.
//! Not here: how the keeper copes; how fast anything is.

mod agent;
mod content;
mod events;
mod fork;
mod locked;
mod markers;
mod moves;
mod order;
mod probe;
mod registration;
mod removal;
mod touches;
#[cfg(target_arch = "x86_64")]
mod trace;
