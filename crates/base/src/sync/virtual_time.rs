//! Locks and atomics of virtual CPUs (`cfg(sim)`).
//!
//! Owns: values with the state of their cache line, and which classes of locks spin.
//! Invariants: one operating-system thread runs all tasks of a machine, so a load and a store make
//! a read-modify-write; every operation is a point where another task may run first. What a mutex
//! protects is in a std mutex as well, which is never contended: the virtual lock is taken first.
//! Not here: time, order, cost ([`overspill_vcpu`]). Orderings are accepted and have no effect: a
//! schedule is an interleaving of whole operations.

use super::LockClass;
use overspill_vcpu::costs::PROTECTED_LINES;
use overspill_vcpu::{Line, Lock, Queue, Waiting};
use std::ops::{Deref, DerefMut};
pub use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LockResult, MutexGuard, PoisonError};
use std::time::Duration;

/// Does nothing: operations are not reordered here.
pub fn fence(_: Ordering) {}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// As std's, in virtual time.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct $name {
            value: std::sync::atomic::$name,
            line: Line,
        }

        impl $name {
            /// Makes a value that is in no cache.
            pub const fn new(value: $value) -> Self {
                Self { value: std::sync::atomic::$name::new(value), line: Line::new() }
            }

            /// Reads it.
            #[inline]
            pub fn load(&self, _: Ordering) -> $value {
                self.line.read();
                self.value.load(Relaxed)
            }

            /// Replaces it.
            #[inline]
            pub fn store(&self, value: $value, _: Ordering) {
                self.line.write();
                self.value.store(value, Relaxed);
            }

            #[inline]
            fn change(&self, to: impl FnOnce($value) -> Option<$value>) -> Result<$value, $value> {
                self.line.update();
                let old = self.value.load(Relaxed);
                let new = to(old).ok_or(old)?;
                self.value.store(new, Relaxed);
                Ok(old)
            }

            /// Replaces it; returns the old value.
            pub fn swap(&self, value: $value, _: Ordering) -> $value {
                self.change(|_| Some(value)).unwrap_or_else(|old| old)
            }

            /// Replaces it if it is `current`.
            ///
            /// # Errors
            /// The different value.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                self.change(|old| (old == current).then_some(new))
            }

            /// Replaces it by the result of `f`, if any.
            ///
            /// # Errors
            /// The value if there is none.
            pub fn fetch_update(
                &self,
                _: Ordering,
                _: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.change(f)
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $value:ty, $($method:ident = |$old:ident, $operand:ident| $new:expr;)*) => {
        impl $name {
            $(
                /// As std's.
                #[inline]
                pub fn $method(&self, $operand: $value, _: Ordering) -> $value {
                    self.change(|$old| Some($new)).unwrap_or_else(|old| old)
                }
            )*
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);
        arithmetic!($name, $value,
            fetch_add = |old, by| old.wrapping_add(by);
            fetch_sub = |old, by| old.wrapping_sub(by);
            fetch_or = |old, bits| old | bits;
            fetch_and = |old, bits| old & bits;
            fetch_max = |old, least| old.max(least);
        );
    };
}

atomic!(AtomicBool, bool);
integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);

impl AtomicU64 {
    /// See [`peek`](super::peek).
    #[inline]
    pub(super) fn peek(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// How tasks wait for locks of a class: on their CPU for those that are spin locks in Linux, or
/// would be.
fn waiting(class: LockClass) -> Waiting {
    match class {
        LockClass::Pager
        | LockClass::Guards
        | LockClass::Ranges
        | LockClass::Swapon
        | LockClass::Devices
        | LockClass::Control
        | LockClass::Pool => Waiting::Sleeps,
        _ => Waiting::Spins,
    }
}

fn protected_lines(class: LockClass) -> u64 {
    match class {
        LockClass::Area => PROTECTED_LINES.area,
        LockClass::SwapCache => PROTECTED_LINES.trunk,
        LockClass::Lru => PROTECTED_LINES.lru,
        LockClass::FreeFrames => PROTECTED_LINES.free_frames,
        LockClass::AreaOrder => PROTECTED_LINES.area_order,
        LockClass::ClusterLists => PROTECTED_LINES.cluster_lists,
        LockClass::Readahead => PROTECTED_LINES.readahead,
        _ => PROTECTED_LINES.other,
    }
}

/// A mutex's inner part.
pub(super) struct Inner<T> {
    lock: Lock,
    value: std::sync::Mutex<T>,
}

/// The same, held.
pub(super) struct Guard<'a, T> {
    /// None only while it is being released.
    value: Option<MutexGuard<'a, T>>,
    inner: &'a Inner<T>,
}

impl<T> Inner<T> {
    pub(super) fn new(class: LockClass, value: T) -> Self {
        // Device interrupts end writes, and take these.
        let masks = matches!(class, LockClass::Lru | LockClass::SwapCache);
        let lock = Lock::new(class as u8, waiting(class), protected_lines(class), masks);
        Self { lock, value: std::sync::Mutex::new(value) }
    }

    /// Returns what it protects, for the task that has just taken the lock.
    fn guard(&self) -> Guard<'_, T> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { value: Some(value), inner: self }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.value.take().is_some() {
            self.inner.lock.release();
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("held until the drop")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("held until the drop")
    }
}

/// Never succeeds out of the queue's turn: see [`lock`].
pub(super) fn try_lock<T>(inner: &Inner<T>) -> Option<Guard<'_, T>> {
    inner.lock.try_acquire().then(|| inner.guard())
}

pub(super) fn lock<T>(inner: &Inner<T>) -> Guard<'_, T> {
    inner.lock.acquire();
    inner.guard()
}

/// A condition variable's inner part.
#[derive(Default)]
pub(super) struct Cond(Queue);

impl Cond {
    fn sleep<'a, T>(&self, mut guard: Guard<'a, T>, limit_ns: Option<u64>) -> Guard<'a, T> {
        let inner = guard.inner;
        drop(guard.value.take());
        self.0.wait(&inner.lock, limit_ns);
        lock(inner)
    }

    pub(super) fn wait<'a, T>(&self, guard: Guard<'a, T>) -> LockResult<Guard<'a, T>> {
        Ok(self.sleep(guard, None))
    }

    pub(super) fn wait_timeout<'a, T>(
        &self,
        guard: Guard<'a, T>,
        limit: Duration,
    ) -> LockResult<(Guard<'a, T>, ())> {
        Ok((self.sleep(guard, Some(limit.as_nanos() as u64)), ()))
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}
