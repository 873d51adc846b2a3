//! Virtual CPUs: tasks that run one at a time, each with its own clock.
//!
//! Owns: the scheduler ([`Machine`]), and what costs virtual time: cache lines that move between
//! CPUs ([`Line`]), locks and conditions that make a task wait ([`Lock`], [`Queue`]), and work that
//! is charged ([`charge`]). All costs are in [`costs`].
//! Invariants: one operating-system thread runs all tasks of a machine, so nothing here is a race.
//! The task with the least clock runs, the lower number on ties: at every point where tasks can
//! affect each other, everything earlier has happened. Nothing depends on addresses or the real
//! clock, so the same program and seed give the same run, bit for bit. Outside of a task everything
//! is free of cost, and locks must be unlocked.
//! Not here: what the tasks do; lock classes, which are only numbers here.
//! Rejected: a thread per virtual CPU, handed a token. A hand-over costs ten microseconds, a switch
//! of coroutines thirty nanoseconds, and there is one at almost every operation on a shared line.

mod core;
pub mod costs;
mod explore;
mod interrupts;
mod line;
mod lock;
mod machine;
mod tally;
mod task;

pub use costs::Costs;
pub use explore::Schedule;
pub use interrupts::{
    Interrupt, are_interrupts_masked, enter_interrupt, interrupt, must_devices_wait,
};
pub use line::Line;
pub use lock::{Lock, Queue, Waiting};
pub use machine::{Machine, Shape, Usage, usage};
pub use tally::{CLASSES, PATHS, PathGuard, Tally, enter_path, forget_longest, tally};
pub use task::{
    charge, charge_by, cpu, cpus, current_costs, in_task, now_ns, sleep_until, task_word,
};
