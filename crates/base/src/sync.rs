//! The one place that names a lock or an atomic.
//!
//! Owns: the switch between the machine's own primitives and the model checker's (`--cfg loom`),
//! and the lock classes with their contention counters.
//! Invariants: a contended acquisition, and only that, pays for two clock readings. Nothing here
//! poisons: a panic while a lock is held aborts the product (`panic = "abort"`), and in tests the
//! failing test is the news.
//! Not here: the page lock (a bit in a frame's flags, see the engine's `frames`).
//! Rejected: `parking_lot`, whose contended path keeps thread-local state. In the preload object
//! that state may sit in memory we page ourselves; std's futex mutex touches none.
//!
//! # Lock order
//!
//! Acquire downwards only; locks on one line are never held together.
//!
//! ```text
//! fork gate (preload; shared by every memory call, exclusive in fork)
//!   ranges (space: which address ranges are mapped)
//!     page lock (a bit in the frame; sleeps; the only one held across an ioctl or I/O)
//!       swap-cache trunk
//!         slot cache (per CPU)
//!           per-CPU cluster
//!             cluster
//!               cluster lists
//!     LRU batch (per CPU)
//!       LRU lists (leaf)
//!     frame free list (leaf)   staging chunks (leaf)   readahead streams (leaf)
//!     page wait table (leaf; held only around a condition variable)
//! ```

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
// Nothing here relies on the order of reference counts, so models use the real thing too.
pub use std::sync::Arc;

use std::time::Duration;

/// What a lock protects. Contention is counted per class, the form in which the kernel's own
/// results were published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum LockClass {
    /// Memory calls against fork.
    ForkGate,
    /// The table of mapped ranges.
    Ranges,
    /// One 64 MiB trunk of the swap cache.
    SwapCache,
    /// A CPU's cache of allocated slots, and its batch of freed ones.
    SlotCache,
    /// A CPU's current cluster.
    CpuCluster,
    /// One cluster's counters.
    Cluster,
    /// An area's free, nonfull and full lists.
    ClusterLists,
    /// A CPU's batch of pages on their way to the LRU lists.
    LruBatch,
    /// The active and inactive lists.
    Lru,
    /// The list of free frames.
    FreeFrames,
    /// Landing memory for pages under writeback and reads under way.
    Staging,
    /// Readahead state.
    Readahead,
    /// The page wait table and the reclaim thread's doorbell.
    Wait,
    /// Anything that no fault waits for.
    Control,
}

impl LockClass {
    /// Every class, in lock order where there is one.
    pub const ALL: [LockClass; 14] = [
        LockClass::ForkGate,
        LockClass::Ranges,
        LockClass::SwapCache,
        LockClass::SlotCache,
        LockClass::CpuCluster,
        LockClass::Cluster,
        LockClass::ClusterLists,
        LockClass::LruBatch,
        LockClass::Lru,
        LockClass::FreeFrames,
        LockClass::Staging,
        LockClass::Readahead,
        LockClass::Wait,
        LockClass::Control,
    ];
}

/// How often a class of locks made somebody wait, since the process started.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Contention {
    /// Acquisitions that found the lock held.
    pub contended: u64,
    /// Nanoseconds waited in all of them.
    pub wait_ns: u64,
}

/// Reads the counters of `class`. Never blocks.
pub fn contention(class: LockClass) -> Contention {
    native::contention(class)
}

/// A mutual-exclusion lock with a class.
///
/// Blocks in `lock` until the holder lets go; not reentrant.
pub struct Mutex<T> {
    class: LockClass,
    inner: native::Inner<T>,
}

/// The right to touch what a [`Mutex`] protects.
pub type MutexGuard<'a, T> = native::Guard<'a, T>;

impl<T> Mutex<T> {
    /// A lock of `class` around `value`.
    pub fn new(class: LockClass, value: T) -> Self {
        Self { class, inner: native::Inner::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    /// Takes the lock if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        native::try_lock(&self.inner)
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        native::lock_timed(self.class, &self.inner)
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mutex({:?})", self.class)
    }
}

/// A condition variable for one [`Mutex`].
#[derive(Default)]
pub struct Condvar(native::Cond);

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Condvar")
    }
}

impl Condvar {
    /// A condition variable nobody waits on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the lock back and sleeps until notified; wakes spuriously like any other.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(|e| e.into_inner())
    }

    /// As [`wait`](Self::wait), for at most `limit`.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, limit).unwrap_or_else(|e| e.into_inner()).0
    }

    /// Wakes every sleeper.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(not(loom))]
mod native {
    use super::{Contention, LockClass};
    use crate::clock;
    use std::sync::TryLockError;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    pub(super) type Inner<T> = std::sync::Mutex<T>;
    pub(super) type Guard<'a, T> = std::sync::MutexGuard<'a, T>;
    pub(super) type Cond = std::sync::Condvar;

    #[derive(Default)]
    struct Cell {
        contended: AtomicU64,
        wait_ns: AtomicU64,
    }

    static CELLS: [Cell; LockClass::ALL.len()] =
        [const { Cell { contended: AtomicU64::new(0), wait_ns: AtomicU64::new(0) } };
            LockClass::ALL.len()];

    pub(super) fn contention(class: LockClass) -> Contention {
        let cell = &CELLS[class as usize];
        Contention { contended: cell.contended.load(Relaxed), wait_ns: cell.wait_ns.load(Relaxed) }
    }

    pub(super) fn try_lock<T>(inner: &Inner<T>) -> Option<Guard<'_, T>> {
        match inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn lock_timed<T>(class: LockClass, inner: &Inner<T>) -> Guard<'_, T> {
        let start_ns = clock::now_ns();
        let guard = inner.lock().unwrap_or_else(|e| e.into_inner());
        let cell = &CELLS[class as usize];
        cell.contended.fetch_add(1, Relaxed);
        cell.wait_ns.fetch_add(clock::now_ns() - start_ns, Relaxed);
        guard
    }
}

#[cfg(loom)]
mod native {
    use super::{Contention, LockClass};

    pub(super) type Inner<T> = loom::sync::Mutex<T>;
    pub(super) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;
    pub(super) type Cond = loom::sync::Condvar;

    pub(super) fn contention(_: LockClass) -> Contention {
        Contention::default()
    }

    pub(super) fn try_lock<T>(inner: &Inner<T>) -> Option<Guard<'_, T>> {
        inner.try_lock().ok()
    }

    pub(super) fn lock_timed<T>(_: LockClass, inner: &Inner<T>) -> Guard<'_, T> {
        inner.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_contended_acquisitions_are_counted() {
        let lock = Mutex::new(LockClass::Control, 0);
        let before = contention(LockClass::Control).contended;
        *lock.lock() += 1;
        assert_eq!(contention(LockClass::Control).contended, before);

        std::thread::scope(|s| {
            let held = lock.lock();
            let waiter = s.spawn(|| *lock.lock() += 1);
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
            waiter.join().unwrap();
        });
        let after = contention(LockClass::Control);
        assert_eq!(after.contended, before + 1);
        assert!(after.wait_ns > 0);
    }
}
