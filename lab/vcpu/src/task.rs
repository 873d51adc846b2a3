//! What a task can query and declare.
//!
//! Invariants: outside of a task everything takes no time, and the CPU is 0.
//! Not here: how its time passes ([`crate::core`]).

use crate::core::{NONE, with, with_task};
use crate::costs::Costs;
use std::cell::Cell;

/// Returns true inside a task.
pub fn in_task() -> bool {
    with(|core| core.current.get() != NONE)
}

/// Returns the running task's clock.
pub fn now_ns() -> u64 {
    with(|core| core.now_ns.get())
}

/// Returns the running task's CPU; 0 outside.
pub fn cpu() -> usize {
    with(|core| core.cpu.get() as usize)
}

/// Returns the number of CPUs of the machine; at least one.
pub fn cpus() -> usize {
    with(|core| core.shape.get().cpus.max(1))
}

/// Charges the running task for `ns` of work.
#[inline]
pub fn charge(ns: u64) {
    with_task(|core| core.charge(ns));
}

/// Returns the cost model of this thread's machine.
pub fn current_costs() -> &'static Costs {
    with(crate::core::Core::costs)
}

/// Charges the running task for work that `ns` computes from the cost model.
#[inline]
pub fn charge_by(ns: impl FnOnce(&Costs) -> u64) {
    with_task(|core| core.charge(ns(core.costs())));
}

/// The running task sleeps until `at_ns`, or not at all if that has passed.
pub fn sleep_until(at_ns: u64) {
    with_task(|core| {
        core.point();
        if at_ns > core.now_ns.get() {
            core.sleep(Some(at_ns), false);
        }
    });
}

/// Reads and replaces a word of the running task, or of this thread outside of tasks.
pub fn task_word(change: impl FnOnce(u32) -> u32) -> u32 {
    thread_local! {
        static OUTSIDE: Cell<u32> = const { Cell::new(0) };
    }
    with(|core| {
        let current = core.current.get();
        if current == NONE {
            return OUTSIDE.replace(change(OUTSIDE.get()));
        }
        let mut tasks = core.tasks.borrow_mut();
        let word = &mut tasks[current as usize].word;
        let next = change(*word);
        std::mem::replace(word, next)
    })
}
