//! The only module that names locks and atomics.
//!
//! Owns: the switch between the machine's own primitives, the model checker's (`--cfg loom`) and
//! those of virtual CPUs (`cfg(sim)`, in the packages below `lab/sim/twins`); the lock classes,
//! what is counted per class ([`accounts`]), and the check of their order ([`order`]).
//! Invariants: a contended acquisition always costs two clock readings; an uncontended one only
//! between [`count_locks`]`(true)` and `(false)`, and its release one more. There is no poisoning:
//! a panic while a lock is held aborts the product (`panic = "abort"`), and in tests the test has
//! failed anyway.
//! Not here: the page lock (a bit in a frame's flags, see the engine's `frames`).
//! Rejected: `parking_lot`, whose contended path keeps thread-local state. In the preload object
//! that state may be in memory we page ourselves; std's futex mutex touches none.
//!
//! # Lock order
//!
//! Acquire downwards only; locks on one line, and two of one class, are never held together. Builds
//! with debug assertions check it at every acquisition, by the order of [`LockClass::ALL`].
//!
//! ```text
//! the pager (overspill; held while its threads are parked, or an area is added)
//!   guards, ranges (space: which address ranges are mapped and protected)
//!   agent (keeper: held while it is asked)
//!     guest (keeper: what is known of a guest's addresses; also under a page lock)
//!       filler, letters, threads of a guest (keeper: asked with the guest held)
//!     pieces (keeper: whose page numbers these are; leaf)
//!     limit (keeper: held while the engine is told)
//!     page lock (a bit in the frame; sleeps; held across I/O)
//!       adding an area (held while its device is opened)
//!         devices in use (held while queues to them are opened)
//!       swap-cache trunk
//!         order of the areas (leaf)
//!         slot cache (per CPU)
//!           per-CPU cluster
//!             area, where it is scanned (Linux turned this and the cluster round in 6.14)
//!               cluster
//!                 cluster lists
//!     batch of rotations (per CPU)
//!       LRU batch (per CPU)
//!         LRU lists (leaf)
//!     free frames of a CPU
//!       free frames of all (leaf)
//!     staging chunks (leaf)   readahead streams (leaf)   refault distances (leaf)
//!     page wait table (leaf; held only around a condition variable)
//!   idle workers of a pool (leaf)
//! the socket to the process that serves a device (leaf; held while it answers)
//! control: lists and settings, held for a moment (leaf)
//! ```

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(any(loom, sim)))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(sim)]
pub use virtual_time::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
// Nothing here depends on the ordering of reference counts, so models use the real type too.
pub use std::sync::Arc;

#[cfg_attr(sim, path = "sync/virtual_accounts.rs")]
mod accounts;
mod lock_stats;
mod order;
#[cfg(sim)]
mod virtual_time;
pub use accounts::{count_locks, lock_table};
pub use lock_stats::LockStats;
pub use order::{assert_no_lock_held, lock_order};

use accounts::Hold;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// What a lock protects. Contention is counted per class, as in the kernel's published results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LockClass {
    /// A pager as a whole: held while its threads are parked or stopped, or an area is added.
    Pager,
    /// Protections that are not what the table of ranges says.
    Guards,
    /// The table of mapped ranges.
    Ranges,
    /// An agent, while it is asked for something.
    Agent,
    /// The map of a guest's addresses.
    Guest,
    /// An agent that puts pages back, too: asked with its guest held.
    Filler,
    /// What the gate of a guest writes.
    Letters,
    /// Whether the threads of a guest are held.
    GuestThreads,
    /// Pieces of the page table that guests have.
    Pieces,
    /// The limit of a run, while the engine is told.
    Limit,
    /// Serialises the adding of areas.
    Swapon,
    /// The devices in use, and the workers that have queues to them.
    Devices,
    /// One 64 MiB trunk of the swap cache.
    SwapCache,
    /// The order in which areas are used.
    AreaOrder,
    /// A CPU's cache of allocated slots, and its batch of freed ones.
    SlotCache,
    /// A CPU's current cluster.
    CpuCluster,
    /// An area's own lock, where it is scanned.
    Area,
    /// One cluster's counters.
    Cluster,
    /// An area's lists of clusters, where it has them.
    ClusterLists,
    /// A CPU's batch of pages to rotate.
    RotateBatch,
    /// A CPU's batch of pages to be added to the LRU lists.
    LruBatch,
    /// The active and inactive lists.
    Lru,
    /// A CPU's list of free frames.
    OwnFrames,
    /// The list of free frames.
    FreeFrames,
    /// Staging memory for writeback and reads in flight.
    Staging,
    /// Readahead state.
    Readahead,
    /// Which pages are out, in the order of their evictions.
    Distances,
    /// The page wait table and the reclaim thread's wake-up.
    Wait,
    /// Idle workers and free page numbers of a pool.
    Pool,
    /// The socket through which a device is asked.
    ServedDevice,
    /// Anything that no fault waits for.
    Control,
}

impl LockClass {
    /// Every class, in lock order.
    pub const ALL: [LockClass; 31] = [
        LockClass::Pager,
        LockClass::Guards,
        LockClass::Ranges,
        LockClass::Agent,
        LockClass::Guest,
        LockClass::Filler,
        LockClass::Letters,
        LockClass::GuestThreads,
        LockClass::Pieces,
        LockClass::Limit,
        LockClass::Swapon,
        LockClass::Devices,
        LockClass::SwapCache,
        LockClass::AreaOrder,
        LockClass::SlotCache,
        LockClass::CpuCluster,
        LockClass::Area,
        LockClass::Cluster,
        LockClass::ClusterLists,
        LockClass::RotateBatch,
        LockClass::LruBatch,
        LockClass::Lru,
        LockClass::OwnFrames,
        LockClass::FreeFrames,
        LockClass::Staging,
        LockClass::Readahead,
        LockClass::Distances,
        LockClass::Wait,
        LockClass::Pool,
        LockClass::ServedDevice,
        LockClass::Control,
    ];
}

/// A mutual-exclusion lock with a class.
///
/// `lock` blocks until the holder releases it; not reentrant.
pub struct Mutex<T> {
    class: LockClass,
    inner: native::Inner<T>,
}

/// Gives access to what a [`Mutex`] protects. Dropping it ends the hold and releases the lock.
#[must_use = "the lock is let go at once"]
pub struct MutexGuard<'a, T> {
    // Before `inner`, so that the hold ends while the lock is still held: a thread woken by the
    // release may take this CPU, and that would look like a long hold.
    hold: Hold,
    #[expect(dead_code, reason = "held for its drop")]
    order: order::Held,
    inner: native::Guard<'a, T>,
}

impl<'a, T> MutexGuard<'a, T> {
    #[inline]
    fn begin(hold: Hold, inner: native::Guard<'a, T>) -> Self {
        Self { order: order::Held::begin(hold.class()), hold, inner }
    }

    /// Ends the hold, before sleeping on a condition variable.
    fn suspend(self) -> (LockClass, native::Guard<'a, T>) {
        let Self { hold, order: _, inner } = self;
        (hold.class(), inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Mutex<T> {
    /// Makes a lock of `class` around `value`.
    pub fn new(class: LockClass, value: T) -> Self {
        #[cfg(not(sim))]
        let inner = native::Inner::new(value);
        #[cfg(sim)]
        let inner = native::Inner::new(class, value);
        Self { class, inner }
    }

    /// Takes the lock; waits for it if it is held.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = native::try_lock(&self.inner)?;
        Some(MutexGuard::begin(Hold::begin(self.class), inner))
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        let wait = accounts::Wait::begin(self.class);
        let inner = native::lock(&self.inner);
        MutexGuard::begin(wait.end(), inner)
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
    /// Makes a condition variable without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Releases the lock and sleeps until notified; may wake spuriously. The time asleep is no
    /// hold, and taking the lock again is an acquisition.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let (class, inner) = guard.suspend();
        let inner = self.0.wait(inner).unwrap_or_else(|e| e.into_inner());
        MutexGuard::begin(Hold::begin(class), inner)
    }

    /// As [`wait`](Self::wait), for at most `limit`.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        let (class, inner) = guard.suspend();
        let inner = self.0.wait_timeout(inner, limit).unwrap_or_else(|e| e.into_inner()).0;
        MutexGuard::begin(Hold::begin(class), inner)
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Wakes one waiter. Nothing that is simulated does.
    #[cfg(not(sim))]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// A load used only as a guess: code that reads many adjacent words charges that as
/// [`work`](crate::work), and virtual CPUs need not stop at each.
#[inline(always)]
pub fn peek(word: &AtomicU64) -> u64 {
    #[cfg(not(sim))]
    return word.load(Ordering::Relaxed);
    #[cfg(sim)]
    word.peek()
}

#[cfg(sim)]
use virtual_time as native;

#[cfg(not(any(loom, sim)))]
mod native {
    use std::sync::TryLockError;

    pub(super) type Inner<T> = std::sync::Mutex<T>;
    pub(super) type Guard<'a, T> = std::sync::MutexGuard<'a, T>;
    pub(super) type Cond = std::sync::Condvar;

    #[inline]
    pub(super) fn try_lock<T>(inner: &Inner<T>) -> Option<Guard<'_, T>> {
        match inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn lock<T>(inner: &Inner<T>) -> Guard<'_, T> {
        inner.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(loom)]
mod native {
    pub(super) type Inner<T> = loom::sync::Mutex<T>;
    pub(super) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;
    pub(super) type Cond = loom::sync::Condvar;

    pub(super) fn try_lock<T>(inner: &Inner<T>) -> Option<Guard<'_, T>> {
        inner.try_lock().ok()
    }

    pub(super) fn lock<T>(inner: &Inner<T>) -> Guard<'_, T> {
        inner.lock().unwrap_or_else(|e| e.into_inner())
    }
}
