//! Virtual CPUs: a thread chooses its CPU number. And the time that real ones spend.
//!
//! Owns: the calling thread's number. So a machine of two CPUs runs the per-CPU code of sixteen,
//! and one thread can play all of them in turn. Other threads are CPU 0.
//! Not here: pinning to real CPUs, which is left to the scheduler.

use overspill_base::clock::Cpus;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::Duration;

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

/// Returns the CPU time of all threads of this process so far. It does not run while other programs
/// have the CPUs.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
