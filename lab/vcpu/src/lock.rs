//! Locks and queues of waiting tasks, in virtual time.
//!
//! Owns: the holder of a lock, its waiters, the order of hand-over, and the cost.
//! Invariants: a lock is free or has one holder; waiters get it in the order of arrival (Linux's
//! ticket and queued spin locks), unless the machine is older than that. Waiting time is tallied by
//! the lock's class and the waiter's path.
//! Not here: what the lock protects.
//!
//! What a lock protects moves with it: taking it on another CPU than the last holder's transfers as
//! many lines as its class says ([`crate::costs::ProtectedLines`]), during the hold.

use crate::core::{self, Core, NONE, State};
use crate::line::Line;
use crate::task::in_task;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The holder outside of tasks.
const OUTSIDE: u32 = u32::MAX;

/// How a task waits for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// On its CPU, which stays busy.
    Spins,
    /// Off its CPU.
    Sleeps,
}

/// A lock without data.
#[derive(Debug)]
pub struct Lock {
    class: u8,
    waiting: Waiting,
    /// Protected lines that a hold touches.
    lines: u64,
    /// Taken with interrupts off, as in Linux if an interrupt takes it too.
    masks: bool,
    /// The holder plus one; 0 if free.
    holder: AtomicU32,
    waiters: Queue,
    line: Line,
    since_ns: AtomicU64,
}

/// Waiting tasks, first come, first served.
#[derive(Debug)]
pub struct Queue {
    head: AtomicU32,
    tail: AtomicU32,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    /// Makes an empty queue.
    pub const fn new() -> Self {
        Self { head: AtomicU32::new(NONE), tail: AtomicU32::new(NONE) }
    }

    fn is_empty(&self) -> bool {
        self.head.load(Relaxed) == NONE
    }

    fn push(&self, core: &Core, task: u32) {
        let mut tasks = core.tasks.borrow_mut();
        tasks[task as usize].next = NONE;
        match self.tail.swap(task, Relaxed) {
            NONE => self.head.store(task, Relaxed),
            last => tasks[last as usize].next = task,
        }
    }

    fn pop(&self, core: &Core) -> Option<u32> {
        let first = self.head.load(Relaxed);
        if first == NONE {
            return None;
        }
        let next = core.tasks.borrow()[first as usize].next;
        self.head.store(next, Relaxed);
        if next == NONE {
            self.tail.store(NONE, Relaxed);
        }
        Some(first)
    }

    fn remove(&self, core: &Core, task: u32) {
        let waiting: Vec<u32> = std::iter::from_fn(|| self.pop(core)).collect();
        waiting.into_iter().filter(|&other| other != task).for_each(|other| self.push(core, other));
    }

    /// Releases `lock` and sleeps here until notified, or until `limit_ns` have passed. The running
    /// task does not hold the lock afterwards.
    pub fn wait(&self, lock: &Lock, limit_ns: Option<u64>) {
        core::with_task(|core| {
            let me = core.current();
            self.push(core, me);
            lock.release();
            let until_ns = limit_ns.map(|limit_ns| core.now_ns() + limit_ns);
            // Notified while the lock was released: then it is no longer in the queue.
            if !self.contains(core, me) {
                return;
            }
            if core.sleep(until_ns, true) {
                self.remove(core, me);
            }
        });
    }

    fn contains(&self, core: &Core, task: u32) -> bool {
        let tasks = core.tasks.borrow();
        let mut at = self.head.load(Relaxed);
        while at != NONE && at != task {
            at = tasks[at as usize].next;
        }
        at == task
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        core::with_task(|core| {
            core.point();
            while let Some(task) = self.pop(core) {
                let asleep = core.tasks.borrow()[task as usize].state == State::Asleep;
                if asleep {
                    core.charge(core.costs().wake_ns);
                    core.wake(task, core.now_ns() + core.costs().wake_latency_ns);
                }
            }
        });
    }
}

impl Lock {
    /// Makes a free lock of a class, whose holds touch this many protected lines, with interrupts
    /// off or not.
    pub const fn new(class: u8, waiting: Waiting, lines: u64, masks: bool) -> Self {
        Self {
            class,
            waiting,
            lines,
            masks,
            holder: AtomicU32::new(0),
            waiters: Queue::new(),
            line: Line::new(),
            since_ns: AtomicU64::new(0),
        }
    }

    /// Takes the lock when its turn has come.
    ///
    /// # Panics
    /// If it is held outside of tasks, where nothing could release it.
    pub fn acquire(&self) {
        if !in_task() {
            let before = self.holder.swap(OUTSIDE, Relaxed);
            assert_eq!(before, 0, "a lock of class {} is held outside of tasks", self.class);
            return;
        }
        core::with_task(|core| {
            core.point();
            if self.masks {
                core.mask();
            }
            if self.is_free(core) {
                self.take_free(core);
            } else {
                self.wait_for(core);
            }
        });
    }

    /// Takes the lock if it need not wait.
    pub fn try_acquire(&self) -> bool {
        if !in_task() {
            return self.holder.compare_exchange(0, OUTSIDE, Relaxed, Relaxed).is_ok();
        }
        core::with(|core| {
            core.point();
            let free = self.is_free(core);
            if free {
                if self.masks {
                    core.mask();
                }
                self.take_free(core);
            } else {
                core.charge(core.transfer_ns(self.line.writer()));
            }
            free
        })
    }

    fn is_free(&self, core: &Core) -> bool {
        self.holder.load(Relaxed) == 0 && (self.waiters.is_empty() || core.costs().unfair_locks)
    }

    fn take_free(&self, core: &Core) {
        let before = self.line.writer();
        self.holder.store(core.current() + 1, Relaxed);
        core.charge(core.transfer_ns(before) + core.costs().update_ns);
        self.hold(core, before, None);
    }

    /// The running task gets the lock, which was `before`'s.
    fn hold(&self, core: &Core, before: Option<u32>, waited_ns: Option<u64>) {
        let me = core.current() as usize;
        let path = {
            let task = &mut core.tasks.borrow_mut()[me];
            task.spin_locks += u32::from(self.waiting == Waiting::Spins);
            task.path
        };
        self.line.give(core.cpu());
        self.since_ns.store(core.now_ns(), Relaxed);
        core.tallies.acquired(self.class, path, waited_ns);
        if before.is_some_and(|cpu| cpu != core.cpu()) {
            core.charge(self.lines * core.transfer_ns(before));
        }
    }

    fn wait_for(&self, core: &Core) {
        let arrived_ns = core.now_ns();
        loop {
            self.waiters.push(core, core.current());
            match self.waiting {
                Waiting::Spins => core.spin(),
                Waiting::Sleeps => drop(core.sleep(None, false)),
            }
            // Handed over; an unfair lock may be taken again by now.
            let holder = self.holder.load(Relaxed);
            if holder == core.current() + 1 {
                break;
            }
            if holder == 0 {
                self.holder.store(core.current() + 1, Relaxed);
                break;
            }
        }
        let before = self.line.writer();
        self.hold(core, before, Some(core.now_ns() - arrived_ns));
    }

    /// Releases the lock; the longest waiter gets it.
    pub fn release(&self) {
        if !in_task() {
            return self.holder.store(0, Relaxed);
        }
        core::with_task(|core| {
            core.point();
            let (held_ns, me) = (core.now_ns() - self.since_ns.load(Relaxed), core.current());
            let path = {
                let task = &mut core.tasks.borrow_mut()[me as usize];
                task.spin_locks -= u32::from(self.waiting == Waiting::Spins);
                task.path
            };
            core.tallies.released(self.class, path, held_ns);
            core.charge(core.costs().load_ns);
            self.holder.store(0, Relaxed);
            self.hand_over(core);
            if self.masks {
                core.unmask();
            }
        });
    }

    fn hand_over(&self, core: &Core) {
        let costs = core.costs();
        let next = if costs.unfair_locks { self.luckiest(core) } else { self.waiters.pop(core) };
        let Some(next) = next else { return };
        let cpu = core.tasks.borrow()[next as usize].cpu;
        // The line of the lock, and that of the waiter's queue node.
        let at_ns = core.now_ns() + 2 * core.distance_ns(core.cpu(), cpu);
        if !costs.unfair_locks {
            self.holder.store(next + 1, Relaxed);
        }
        match self.waiting {
            Waiting::Spins => core.resume_spinner(next, at_ns),
            Waiting::Sleeps => {
                core.charge(costs.wake_ns);
                core.wake(next, at_ns + costs.wake_latency_ns);
            }
        }
    }

    /// Returns the waiter that first sees a lock without a queue free: any of them.
    fn luckiest(&self, core: &Core) -> Option<u32> {
        let waiting: Vec<u32> = std::iter::from_fn(|| self.waiters.pop(core)).collect();
        let lucky = core.chance(waiting.len())?;
        let others = waiting.iter().filter(|&&task| task != waiting[lucky]);
        others.for_each(|&task| self.waiters.push(core, task));
        Some(waiting[lucky])
    }
}
