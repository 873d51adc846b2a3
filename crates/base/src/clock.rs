//! Monotonic time and CPU numbers.

#[cfg(not(any(loom, sim)))]
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the monotonic clock. In a model it stands still: the checker takes what differs
/// from run to run for its own mistake.
#[inline]
pub fn now_ns() -> u64 {
    #[cfg(loom)]
    return 0;
    #[cfg(sim)]
    return overspill_vcpu::now_ns();
    #[cfg(not(any(loom, sim)))]
    {
        let t = clock_gettime(ClockId::Monotonic);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// The calling thread's CPU, below [`cpu_count`]. Only a hint: the thread may have migrated since.
#[inline]
pub fn current_cpu() -> usize {
    #[cfg(loom)]
    return 0;
    #[cfg(sim)]
    return overspill_vcpu::cpu();
    #[cfg(not(any(loom, sim)))]
    {
        rustix::thread::sched_getcpu() % cpu_count()
    }
}

/// The CPUs that per-CPU state is laid out for.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    /// Number of CPUs; at least one.
    pub count: usize,
    /// The calling thread's CPU, below `count`. Benchmarks and simulators give each thread its own.
    pub current: fn() -> usize,
}

impl Cpus {
    /// The machine's CPUs.
    pub fn native() -> Self {
        Self { count: cpu_count(), current: current_cpu }
    }

    /// Returns the calling thread's CPU.
    #[inline]
    pub fn current(&self) -> usize {
        (self.current)()
    }
}

/// Number of CPUs this process may run on when first called; at least one.
pub fn cpu_count() -> usize {
    #[cfg(sim)]
    return overspill_vcpu::cpus();
    #[cfg(not(sim))]
    native_cpu_count()
}

#[cfg(not(sim))]
fn native_cpu_count() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    match COUNT.load(Relaxed) {
        0 => {
            let n = std::thread::available_parallelism().map_or(1, |n| n.get());
            COUNT.store(n, Relaxed);
            n
        }
        n => n,
    }
}
