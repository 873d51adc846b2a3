//! The cost of locks, per class.
//!
//! Owns: the counters, and the switch between counting every acquisition and only contended ones.
//! Invariants: counting takes no lock and shares no cache line between CPUs, so that it does not
//! cause the contention it measures: each CPU adds to its own shard, and only readers visit all.
//! Counters grow; the longest wait and hold are reset by [`count_locks`]`(true)`. They are the
//! machine's own atomics under the model checker too: no algorithm reads them.
//! Not here: the locks.
//! Rejected: thread-local counters. Their destructors, and in the preload object their memory,
//! would be in what is paged.
//!
//! Taking and releasing an uncontended lock takes 5.1 ns with counting off, 5.2 ns with a bare
//! `std::sync::Mutex`, and 65 ns with counting on (`overspill-lab locks`, medians of five rounds
//! in turn; two CPUs of a virtual machine, AMD EPYC, Linux 6.18).

use super::{LockClass, LockStats};
use crate::clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const CLASSES: usize = LockClass::ALL.len();
/// More than most machines have CPUs; on larger ones, some share.
const SHARDS: usize = 64;

struct Cell {
    acquisitions: AtomicU64,
    contended: AtomicU64,
    wait_ns: AtomicU64,
    wait_max_ns: AtomicU64,
    hold_max_ns: AtomicU64,
}

/// Aligned to two cache lines, because the hardware fetches them in pairs.
#[repr(align(128))]
struct Shard([Cell; CLASSES]);

impl Cell {
    const fn new() -> Self {
        Self {
            acquisitions: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            wait_max_ns: AtomicU64::new(0),
            hold_max_ns: AtomicU64::new(0),
        }
    }
}

static SHARD: [Shard; SHARDS] = [const { Shard([const { Cell::new() }; CLASSES]) }; SHARDS];

static COUNTING: AtomicBool = AtomicBool::new(false);

/// Starts or stops counting every acquisition and timing every hold, in the whole process. Starting
/// resets the longest wait and hold. A lock held at that moment is not counted.
pub fn count_locks(on: bool) {
    if on {
        for cell in SHARD.iter().flat_map(|shard| &shard.0) {
            cell.wait_max_ns.store(0, Relaxed);
            cell.hold_max_ns.store(0, Relaxed);
        }
    }
    COUNTING.store(on, Relaxed);
}

/// Returns the cost of each class so far. Never blocks.
pub fn lock_table() -> Vec<(LockClass, LockStats)> {
    LockClass::ALL.iter().map(|&class| (class, sum(class))).collect()
}

fn sum(class: LockClass) -> LockStats {
    let cells = || SHARD.iter().map(|shard| &shard.0[class as usize]);
    let total = |of: fn(&Cell) -> &AtomicU64| cells().map(|cell| of(cell).load(Relaxed)).sum();
    let longest = |of: fn(&Cell) -> &AtomicU64| cells().map(|cell| of(cell).load(Relaxed)).max();
    LockStats {
        acquisitions: total(|cell| &cell.acquisitions),
        contended: total(|cell| &cell.contended),
        wait_ns: total(|cell| &cell.wait_ns),
        wait_max_ns: longest(|cell| &cell.wait_max_ns).unwrap_or(0),
        hold_max_ns: longest(|cell| &cell.hold_max_ns).unwrap_or(0),
    }
}

fn cell(class: LockClass) -> &'static Cell {
    &SHARD[rustix::thread::sched_getcpu() % SHARDS].0[class as usize]
}

/// A hold of a lock; ends when dropped.
pub(super) struct Hold {
    class: LockClass,
    /// 0 if it is not timed.
    since_ns: u64,
}

impl Hold {
    /// Begins the hold of a lock of `class` that was just taken.
    #[inline]
    pub(super) fn begin(class: LockClass) -> Self {
        let since_ns = if COUNTING.load(Relaxed) { count(class) } else { 0 };
        Self { class, since_ns }
    }

    pub(super) fn class(&self) -> LockClass {
        self.class
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        if self.since_ns != 0 {
            note_hold(self.class, clock::now_ns() - self.since_ns);
        }
    }
}

/// Counts an acquisition; returns when the hold began.
#[cold]
fn count(class: LockClass) -> u64 {
    cell(class).acquisitions.fetch_add(1, Relaxed);
    clock::now_ns()
}

#[cold]
fn note_hold(class: LockClass, ns: u64) {
    raise(&cell(class).hold_max_ns, ns);
}

/// Stores only if that changes something: most values are not the longest.
fn raise(longest: &AtomicU64, ns: u64) {
    if ns > longest.load(Relaxed) {
        longest.fetch_max(ns, Relaxed);
    }
}

/// A wait for a lock that is held.
pub(super) struct Wait {
    class: LockClass,
    since_ns: u64,
}

impl Wait {
    pub(super) fn begin(class: LockClass) -> Self {
        Self { class, since_ns: clock::now_ns() }
    }

    /// Ends the wait; the lock is held from now on.
    pub(super) fn end(self) -> Hold {
        let now_ns = clock::now_ns();
        let wait_ns = now_ns - self.since_ns;
        let cell = cell(self.class);
        cell.contended.fetch_add(1, Relaxed);
        cell.wait_ns.fetch_add(wait_ns, Relaxed);
        raise(&cell.wait_max_ns, wait_ns);
        if !COUNTING.load(Relaxed) {
            return Hold { class: self.class, since_ns: 0 };
        }
        cell.acquisitions.fetch_add(1, Relaxed);
        Hold { class: self.class, since_ns: now_ns }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// The switch and the counters are the process's; tests that count exclude each other.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// The cost of `f` in locks of `class`, which no other test of this crate uses.
    fn cost(class: LockClass, counting: bool, f: impl FnOnce()) -> LockStats {
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let before = sum(class);
        count_locks(counting);
        f();
        count_locks(false);
        sum(class) - before
    }

    fn sleep() {
        std::thread::sleep(Duration::from_millis(20));
    }

    /// A thread waits for the lock for 20 ms, however late a busy machine starts it.
    fn contend(lock: &Mutex<u32>) {
        std::thread::scope(|s| {
            let (tell, told) = std::sync::mpsc::channel();
            let held = lock.lock();
            s.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                *lock.lock() += 1;
            });
            let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
            sleep();
            drop(held);
        });
    }

    #[test]
    fn without_counting_only_contended_acquisitions_are_seen() {
        let lock = Mutex::new(LockClass::Ranges, 0);
        let stats = cost(LockClass::Ranges, false, || {
            *lock.lock() += 1;
            contend(&lock);
        });
        assert_eq!((stats.acquisitions, stats.contended), (0, 1));
        assert!(stats.wait_ns > 0);
    }

    #[test]
    fn counting_sees_every_acquisition_and_the_longest_wait_and_hold() {
        let lock = Mutex::new(LockClass::Control, 0);
        let stats = cost(LockClass::Control, true, || {
            drop(lock.try_lock());
            contend(&lock);
        });
        // The failed try, the holder, the waiter.
        assert_eq!((stats.acquisitions, stats.contended), (3, 1));
        assert!(stats.hold_max_ns >= 20_000_000, "{stats:?}");
        assert!(stats.wait_ns == stats.wait_max_ns && stats.wait_ns > 1_000_000, "{stats:?}");
    }

    #[test]
    fn a_failed_try_is_no_acquisition() {
        let lock = Mutex::new(LockClass::Readahead, ());
        let stats = cost(LockClass::Readahead, true, || {
            let _held = lock.lock();
            assert!(lock.try_lock().is_none());
        });
        assert_eq!((stats.acquisitions, stats.contended), (1, 0));
    }

    #[test]
    fn a_wait_on_a_condition_is_no_hold() {
        let (lock, condition) = (Mutex::new(LockClass::Wait, ()), Condvar::new());
        let begun = std::time::Instant::now();
        let stats = cost(LockClass::Wait, true, || {
            drop(condition.wait_for(lock.lock(), Duration::from_millis(20)));
        });
        assert_eq!(stats.acquisitions, 2);
        let all_ns = begun.elapsed().as_nanos() as u64;
        assert!(stats.hold_max_ns + 20_000_000 <= all_ns, "{stats:?} in {all_ns} ns");
    }

    #[test]
    fn threads_on_all_cpus_lose_no_count() {
        let lock = Mutex::new(LockClass::Staging, 0u64);
        let stats = cost(LockClass::Staging, true, || {
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| (0..1000).for_each(|_| *lock.lock() += 1));
                }
            });
        });
        assert_eq!(stats.acquisitions, 4000);
        assert_eq!(*lock.lock(), 4000);
    }

    #[test]
    fn counting_again_starts_the_longest_afresh() {
        let lock = Mutex::new(LockClass::Pager, ());
        cost(LockClass::Pager, true, || {
            let _held = lock.lock();
            sleep();
        });
        let stats = cost(LockClass::Pager, true, || drop(lock.lock()));
        assert!(stats.hold_max_ns < 20_000_000, "{stats:?}");
    }
}
