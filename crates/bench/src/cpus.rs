//! Virtual CPUs: a thread chooses its CPU number.
//!
//! Owns: the calling thread's number. So a machine of two CPUs runs the per-CPU code of sixteen,
//! and one thread can play all of them in turn. Other threads are CPU 0.
//! Not here: pinning to real CPUs, which is left to the scheduler.

use overspill_base::clock::Cpus;
use std::cell::Cell;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Makes the calling thread CPU `cpu` from now on.
pub(crate) fn become_cpu(cpu: usize) {
    CPU.set(cpu);
}

/// Returns `count` virtual CPUs. Threads must not use higher numbers.
pub(crate) fn virtual_cpus(count: usize) -> Cpus {
    Cpus { count, current: || CPU.get() }
}
