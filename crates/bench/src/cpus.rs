//! Virtual CPUs: a thread says which one it is.
//!
//! Owns: the calling thread's number. So a machine of two CPUs runs the per-CPU code of sixteen,
//! and one thread can play them all in turn. Threads that say nothing are CPU 0.
//! Not here: running on a real CPU; the scheduler does as it likes.

use overspill_base::clock::Cpus;
use std::cell::Cell;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Makes the calling thread CPU `cpu` from now on.
pub(crate) fn become_cpu(cpu: usize) {
    CPU.set(cpu);
}

/// `count` CPUs. Threads must not become one beyond them.
pub(crate) fn virtual_cpus(count: usize) -> Cpus {
    Cpus { count, current: || CPU.get() }
}
