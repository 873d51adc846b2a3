//! Machines: run tasks from start to end.
//!
//! Owns: the coroutines.
//! Invariants: a run ends when every task has ended; if none can continue, it panics with what each
//! of them waits for. A panic of a task is passed on to the caller of [`Machine::run`], and the
//! stacks of the other tasks are never read again.
//! Not here: whose turn it is ([`crate::core`]).

use crate::core::{self, State, TASKS_MAX};
use crate::costs::Costs;
use crate::explore::{Explorer, Schedule};
use crate::task::in_task;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// CPUs and sockets of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of CPUs.
    pub cpus: usize,
    /// Sockets, each with an equal number of adjacent CPUs, except for the last.
    pub sockets: usize,
    /// The CPU that all devices interrupt; none if each interrupts the CPU that submitted the
    /// request.
    pub interrupt_cpu: Option<u32>,
}

impl Shape {
    pub(crate) const NONE: Self = Self { cpus: 1, sockets: 1, interrupt_cpu: None };

    /// Returns the socket of a CPU.
    pub fn socket(self, cpu: u32) -> usize {
        cpu as usize / self.socket_cpus()
    }

    /// Returns the CPUs of a socket.
    pub fn socket_cpus(self) -> usize {
        self.cpus.div_ceil(self.sockets)
    }
}

/// Bytes of a task's stack.
const STACK_BYTES: usize = 256 << 10;

type Body = Coroutine<(), (), Result<(), Panic>, DefaultStack>;
type Panic = Box<dyn std::any::Any + Send>;

/// CPU time of a machine so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Nanoseconds that tasks were on their CPUs, spinning included.
    pub busy_ns: u64,
}

/// A machine and its tasks; one at a time on a thread.
pub struct Machine {
    bodies: Vec<ManuallyDrop<Body>>,
}

impl Machine {
    /// Makes a machine without tasks, with its clock at 0.
    ///
    /// # Panics
    /// Without CPUs or sockets, or with fewer CPUs than sockets.
    pub fn new(shape: Shape, costs: &'static Costs, schedule: Schedule) -> Self {
        assert!(shape.sockets > 0 && shape.cpus >= shape.sockets, "{shape:?} is no machine");
        assert!(!in_task(), "machines do not run machines");
        core::with(|core| core.begin(shape, costs, Explorer::new(schedule)));
        Self { bodies: Vec::new() }
    }

    /// Adds a task that begins at time 0 on `cpu`.
    ///
    /// # Panics
    /// If there is no such CPU, or there are too many tasks.
    pub fn spawn(&mut self, name: impl Into<String>, cpu: usize, body: impl FnOnce() + 'static) {
        assert!(self.bodies.len() < TASKS_MAX, "at most {TASKS_MAX} tasks");
        let number = core::with(|core| core.add(name.into(), cpu)) as usize;
        let stack = DefaultStack::new(STACK_BYTES).expect("address space for a stack");
        let body = Coroutine::with_stack(stack, move |yielder, ()| {
            core::with(|core| core.tasks.borrow_mut()[number].yielder = yielder);
            // A panic must not unwind past the end of this stack.
            let result = catch_unwind(AssertUnwindSafe(body));
            if result.is_ok() {
                core::with(|core| {
                    core.point();
                    core.end();
                });
            }
            result
        });
        self.bodies.push(ManuallyDrop::new(body));
    }

    /// Runs all tasks to their end.
    ///
    /// # Panics
    /// If a task does, with its message; if no task can continue.
    pub fn run(mut self) {
        while let Some(task) = core::with(core::Core::next) {
            let body = &mut self.bodies[task as usize];
            let result = body.resume(());
            core::with(core::Core::leave);
            if let CoroutineResult::Return(result) = result {
                // SAFETY: it has returned, is not resumed again, and this is the only drop.
                unsafe { ManuallyDrop::drop(body) };
                if let Err(panic) = result {
                    resume_unwind(panic);
                }
            }
        }
        let stuck = core::with(core::Core::stuck);
        assert!(stuck.is_empty(), "no task can go on: {}", stuck.join(", "));
    }
}

impl core::Core {
    /// Describes the tasks that have not ended.
    fn stuck(&self) -> Vec<String> {
        let tasks = self.tasks.borrow();
        let left = tasks.iter().filter(|task| task.state != State::Done);
        left.map(|task| format!("{} is {:?}", task.name, task.state)).collect()
    }
}

/// Returns the CPU time used so far by all tasks of this thread's machine.
pub fn usage() -> Usage {
    core::with(|core| {
        let now_ns = core.now_ns();
        let tasks = core.tasks.borrow();
        let busy = |(n, task): (usize, &core::Task)| {
            let clock_ns = if n as u32 == core.current() { now_ns } else { task.clock_ns };
            let awake_ns = match task.state {
                State::Spinning => now_ns.max(clock_ns),
                _ => clock_ns,
            };
            awake_ns.saturating_sub(task.asleep_ns)
        };
        Usage { busy_ns: tasks.iter().enumerate().map(busy).sum() }
    })
}
