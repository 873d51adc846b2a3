//! The lock order, checked at every acquisition in builds with debug assertions.
//!
//! Owns: which classes the calling thread holds, and which were ever taken while which was held.
//! Invariants: a lock is taken only below every lock the thread holds, in the order of
//! [`LockClass::ALL`]; two locks of one class are never held together. So the graph of nested
//! acquisitions has no cycle, in whatever mixture of tunings a test runs. This module is empty in
//! release builds, and under the model checker, which finds deadlocks itself and runs all its
//! threads on one. What a thread holds is a number without a destructor, so that the preload object
//! can have debug assertions too.
//! Rejected: recording the graph and searching it for cycles. That accepts any order that is the
//! same everywhere, even one that contradicts the documented one.

use super::LockClass;

/// A hold of a lock; ends when dropped.
pub(super) struct Held(#[cfg(all(debug_assertions, not(loom)))] LockClass);

#[cfg(all(debug_assertions, not(loom)))]
mod recorder {
    use super::{Held, LockClass};
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const CLASSES: usize = LockClass::ALL.len();
    const _: () = assert!(CLASSES <= u32::BITS as usize);

    #[cfg(not(sim))]
    thread_local! {
        /// A bit per class that this thread holds.
        static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// The same for the running task.
    #[cfg(sim)]
    static HELD: OfTask = OfTask;
    #[cfg(sim)]
    struct OfTask;

    #[cfg(sim)]
    impl OfTask {
        fn get(&self) -> u32 {
            overspill_vcpu::task_word(|held| held)
        }

        fn set(&self, held: u32) {
            overspill_vcpu::task_word(|_| held);
        }
    }

    /// Per class: a bit for every class that was taken while it was held.
    static BELOW: [AtomicU32; CLASSES] = [const { AtomicU32::new(0) }; CLASSES];

    pub(super) fn classes(bits: u32) -> impl Iterator<Item = LockClass> {
        LockClass::ALL.into_iter().filter(move |&class| bits & bit(class) != 0)
    }

    fn bit(class: LockClass) -> u32 {
        1 << class as u32
    }

    /// Those classes in `held` that must not be held when `class` is taken.
    pub(super) fn offending(held: u32, class: LockClass) -> u32 {
        held & !(bit(class) - 1)
    }

    pub(super) fn held() -> u32 {
        HELD.get()
    }

    pub(super) fn below(class: LockClass) -> u32 {
        BELOW[class as usize].load(Relaxed)
    }

    impl Held {
        pub(in super::super) fn begin(class: LockClass) -> Self {
            let held = HELD.get();
            if offending(held, class) != 0 && !std::thread::panicking() {
                let above: Vec<LockClass> = classes(offending(held, class)).collect();
                panic!(
                    "a lock of class {class:?} is taken under {above:?}, against the lock order"
                );
            }
            classes(held).for_each(|above| {
                BELOW[above as usize].fetch_or(bit(class), Relaxed);
            });
            HELD.set(held | bit(class));
            Self(class)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !bit(self.0));
        }
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
impl Held {
    #[inline(always)]
    pub(super) fn begin(_: LockClass) -> Self {
        Self()
    }
}

/// Returns every pair of classes of which the second was taken while the first was held, in this
/// process so far. Empty without debug assertions.
pub fn lock_order() -> Vec<(LockClass, LockClass)> {
    #[cfg(all(debug_assertions, not(loom)))]
    return LockClass::ALL
        .into_iter()
        .flat_map(|above| recorder::classes(recorder::below(above)).map(move |b| (above, b)))
        .collect();
    #[cfg(not(all(debug_assertions, not(loom))))]
    Vec::new()
}

/// Asserts, if debug assertions are on, that the calling thread holds no lock while it is `doing`
/// something that may sleep.
///
/// # Panics
/// If it holds one.
#[inline(always)]
pub fn assert_no_lock_held(doing: &str) {
    #[cfg(all(debug_assertions, not(loom)))]
    {
        let held: Vec<LockClass> = recorder::classes(recorder::held()).collect();
        assert!(held.is_empty() || std::thread::panicking(), "{doing} under {held:?}");
    }
    let _ = doing;
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::super::{Condvar, LockClass, Mutex};
    use super::*;

    fn lock(class: LockClass) -> Mutex<()> {
        Mutex::new(class, ())
    }

    #[test]
    fn locks_taken_downwards_are_recorded() {
        let (outer, inner) = (lock(LockClass::SlotCache), lock(LockClass::Cluster));
        {
            let _outer = outer.lock();
            let _inner = inner.try_lock();
        }
        assert!(lock_order().contains(&(LockClass::SlotCache, LockClass::Cluster)));
        // Released in any order.
        let first = outer.lock();
        let second = inner.lock();
        drop(first);
        drop(second);
        assert_no_lock_held("the end of a test");
    }

    #[test]
    #[should_panic(expected = "Cluster is taken under [Lru]")]
    fn a_lock_taken_upwards_is_a_bug() {
        let (outer, inner) = (lock(LockClass::Lru), lock(LockClass::Cluster));
        let _outer = outer.lock();
        let _inner = inner.lock();
    }

    #[test]
    #[should_panic(expected = "against the lock order")]
    fn two_locks_of_one_class_are_not_held_together() {
        let (first, second) = (lock(LockClass::Cluster), lock(LockClass::Cluster));
        let _first = first.lock();
        let _second = second.lock();
    }

    #[test]
    #[should_panic(expected = "sleeping under [Staging]")]
    fn sleeping_under_a_lock_is_a_bug() {
        let lock = lock(LockClass::Staging);
        let _held = lock.lock();
        assert_no_lock_held("sleeping");
    }

    #[test]
    fn a_wait_on_a_condition_lets_go() {
        let (outer, condition) = (lock(LockClass::Wait), Condvar::new());
        let guard = condition.wait_for(outer.lock(), std::time::Duration::ZERO);
        assert_eq!(recorder::offending(recorder::held(), LockClass::Wait).count_ones(), 1);
        drop(guard);
        assert_no_lock_held("the end of a test");
    }
}
