//! The clock of the running task, and switching to the task whose turn it is.
//!
//! Owns: tasks, CPUs, and the order in which they run.
//! Invariants: `now`, `current` and `turn` are those of the running task; a task is in the heap
//! exactly if it can run at its key or its timer ends then. A CPU runs one task; others that could
//! run on it wait in its queue.
//! Not here: making tasks and running them to their end ([`crate::machine`]).

use crate::costs::Costs;
use crate::explore::Explorer;
use crate::machine::Shape;
use crate::tally::Tallies;
use corosensei::Yielder;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// No task, or no waiter.
pub(crate) const NONE: u32 = u32::MAX;
/// Bits of a key that number the task; its clock is above them.
const TASK_BITS: u32 = 11;
/// Most tasks of one machine.
pub(crate) const TASKS_MAX: usize = 1 << TASK_BITS;
/// How long a task keeps its CPU when others wait for it.
const SLICE_NS: u64 = 1_000_000;

/// What a task that does not run waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Its turn.
    Ready,
    /// A lock, occupying its CPU.
    Spinning,
    /// A lock, a condition or a time; another task may use its CPU.
    Asleep,
    /// Nothing: it has ended.
    Done,
}

/// One task's part of the machine.
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) cpu: u32,
    pub(crate) clock_ns: u64,
    pub(crate) state: State,
    /// Distinguishes its current key in the heap from outdated ones.
    pub(crate) serial: u32,
    /// The next task in the queue it waits in.
    pub(crate) next: u32,
    /// When its wait began.
    pub(crate) since_ns: u64,
    /// When its timer ends.
    until_ns: u64,
    /// True if woken by its timer, not by another task.
    pub(crate) timed_out: bool,
    pub(crate) asleep_ns: u64,
    pub(crate) path: u8,
    pub(crate) word: u32,
    pub(crate) spin_locks: u32,
    pub(crate) yielder: *const Yielder<(), ()>,
}

/// One CPU.
#[derive(Default)]
pub(crate) struct Cpu {
    pub(crate) task: Option<u32>,
    queue: VecDeque<u32>,
    free_at_ns: u64,
    slice_from_ns: u64,
    /// Time taken by interrupts since its task last ran.
    pub(crate) stolen_ns: u64,
    /// How many times its interrupts are masked now.
    pub(crate) masked: u32,
}

/// The whole state, one per operating-system thread.
pub(crate) struct Core {
    pub(crate) current: Cell<u32>,
    pub(crate) cpu: Cell<u32>,
    pub(crate) now_ns: Cell<u64>,
    /// The least key of the other tasks.
    turn: Cell<u64>,
    /// When the running task must yield its CPU to another one.
    slice_end_ns: Cell<u64>,
    exploring: Cell<bool>,
    pub(crate) shape: Cell<Shape>,
    costs: Cell<&'static Costs>,
    pub(crate) tasks: RefCell<Vec<Task>>,
    pub(crate) cpus: RefCell<Vec<Cpu>>,
    heap: RefCell<BinaryHeap<Reverse<(u64, u32)>>>,
    pub(crate) explorer: RefCell<Explorer>,
    pub(crate) tallies: Tallies,
}

thread_local! {
    static CORE: Core = const {
        Core {
        current: Cell::new(NONE),
        cpu: Cell::new(0),
        now_ns: Cell::new(0),
        turn: Cell::new(u64::MAX),
        slice_end_ns: Cell::new(u64::MAX),
        exploring: Cell::new(false),
        shape: Cell::new(Shape::NONE),
        costs: Cell::new(&Costs::DEFAULT),
        tasks: RefCell::new(Vec::new()),
        cpus: RefCell::new(Vec::new()),
        heap: RefCell::new(BinaryHeap::new()),
        explorer: RefCell::new(Explorer::none()),
        tallies: Tallies::new(),
        }
    };
}

pub(crate) fn with<R>(f: impl FnOnce(&Core) -> R) -> R {
    CORE.with(f)
}

/// Runs `f` if a task is running.
#[inline]
pub(crate) fn with_task(f: impl FnOnce(&Core)) {
    CORE.with(|core| {
        if core.current.get() != NONE {
            f(core);
        }
    });
}

fn key(clock_ns: u64, task: u32) -> u64 {
    clock_ns << TASK_BITS | u64::from(task)
}

impl Core {
    #[inline]
    pub(crate) fn costs(&self) -> &'static Costs {
        self.costs.get()
    }

    #[inline]
    pub(crate) fn cpu(&self) -> u32 {
        self.cpu.get()
    }

    pub(crate) fn current(&self) -> u32 {
        self.current.get()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    #[inline]
    pub(crate) fn charge(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    /// Returns the cost of transferring a line written by `writer` to the running task's CPU.
    pub(crate) fn transfer_ns(&self, writer: Option<u32>) -> u64 {
        let costs = self.costs();
        match writer {
            None => costs.memory_ns,
            Some(cpu) if cpu == self.cpu.get() => costs.load_ns,
            Some(cpu) => self.distance_ns(cpu, self.cpu.get()),
        }
    }

    pub(crate) fn distance_ns(&self, from: u32, to: u32) -> u64 {
        let shape = self.shape.get();
        if shape.socket(from) == shape.socket(to) {
            self.costs().transfer_ns
        } else {
            self.costs().transfer_far_ns
        }
    }

    /// Returns a pseudorandom number below `count`, the same in every run; none if it is 0.
    pub(crate) fn chance(&self, count: usize) -> Option<usize> {
        let mut random = fastrand::Rng::with_seed(self.now_ns.get());
        (count > 0).then(|| random.usize(..count))
    }

    /// Lets all tasks with an earlier time run.
    #[inline]
    pub(crate) fn point(&self) {
        if self.exploring.get() {
            return self.explore_point();
        }
        let now_ns = self.now_ns.get();
        if now_ns >= self.slice_end_ns.get() && self.yield_cpu() {
            return;
        }
        self.give_way(now_ns);
    }

    fn give_way(&self, place: u64) {
        if key(place, self.current.get()) > self.turn.get() {
            self.push_current(place);
            self.suspend();
        }
    }

    /// A point that exists only when schedules are explored.
    #[inline]
    pub(crate) fn explore_point(&self) {
        if self.exploring.get() {
            let place = self.explorer.borrow_mut().at_point(self.current.get());
            self.give_way(place);
        }
    }

    /// Returns the place in the order of a task that could run at `clock_ns`.
    fn place(&self, clock_ns: u64, task: u32) -> u64 {
        if self.exploring.get() { self.explorer.borrow().place(task) } else { clock_ns }
    }

    fn push_current(&self, place: u64) {
        let current = self.current.get();
        let serial = self.tasks.borrow()[current as usize].serial;
        self.push(place, current, serial);
    }

    fn push(&self, place: u64, task: u32, serial: u32) {
        let key = key(place, task);
        self.heap.borrow_mut().push(Reverse((key, serial)));
        self.turn.set(self.turn.get().min(key));
    }

    /// Runs other tasks until this one's turn comes again.
    fn suspend(&self) {
        let yielder = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[self.current.get() as usize];
            task.clock_ns = self.now_ns.get();
            task.yielder
        };
        // SAFETY: the yielder lives on the coroutine's own stack until that ends, and only the
        // running task, which owns it, gets here. Another task would resume on a stack that is not
        // its own.
        unsafe { (*yielder).suspend(()) };
    }

    /// Makes the task whose turn it is the running one and returns it; none if none can run.
    pub(crate) fn next(&self) -> Option<u32> {
        let task = loop {
            let Reverse((key, serial)) = self.heap.borrow_mut().pop()?;
            let number = (key & (TASKS_MAX as u64 - 1)) as u32;
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[number as usize];
            if task.serial != serial {
                continue;
            }
            if task.state == State::Asleep {
                // Its timer has ended.
                task.timed_out = true;
                let until_ns = task.until_ns;
                drop(tasks);
                self.wake(number, until_ns);
                continue;
            }
            drop(tasks);
            if !self.was_interrupted(number) {
                break number;
            }
        };
        self.dispatch(task);
        Some(task)
    }

    /// Charges a task that is about to run for interrupts; then it may be another one's turn.
    fn was_interrupted(&self, number: u32) -> bool {
        let mut tasks = self.tasks.borrow_mut();
        let task = &mut tasks[number as usize];
        let stolen_ns = std::mem::take(&mut self.cpus.borrow_mut()[task.cpu as usize].stolen_ns);
        if stolen_ns == 0 {
            return false;
        }
        task.clock_ns += stolen_ns;
        let (clock_ns, serial) = (task.clock_ns, task.serial);
        drop(tasks);
        self.push(self.place(clock_ns, number), number, serial);
        true
    }

    fn dispatch(&self, number: u32) {
        let (clock_ns, cpu) = {
            let task = &self.tasks.borrow()[number as usize];
            (task.clock_ns, task.cpu)
        };
        let cpus = self.cpus.borrow();
        let mine = &cpus[cpu as usize];
        let wanted = !mine.queue.is_empty();
        self.slice_end_ns.set(if wanted { mine.slice_from_ns + SLICE_NS } else { u64::MAX });
        let now_ns = if self.exploring.get() { clock_ns.max(self.now_ns.get()) } else { clock_ns };
        self.now_ns.set(now_ns);
        self.current.set(number);
        self.cpu.set(cpu);
        let least = self.heap.borrow().peek().map_or(u64::MAX, |Reverse((key, _))| *key);
        self.turn.set(least);
    }

    /// No task runs any more.
    pub(crate) fn leave(&self) {
        self.current.set(NONE);
    }

    /// The running task waits for a lock and keeps its CPU.
    pub(crate) fn spin(&self) {
        self.set_state(State::Spinning, None, false);
        self.suspend();
    }

    /// The running task releases its CPU until it is woken, or until `until_ns`. Returns true if it
    /// was not woken.
    ///
    /// When schedules are explored, `impatient` timers end only if nothing else can run: their
    /// waiters treat a timeout as a failure.
    pub(crate) fn sleep(&self, until_ns: Option<u64>, impatient: bool) -> bool {
        self.set_state(State::Asleep, until_ns, impatient);
        self.release_cpu();
        self.suspend();
        self.tasks.borrow()[self.current.get() as usize].timed_out
    }

    fn set_state(&self, state: State, until_ns: Option<u64>, impatient: bool) {
        let (current, now_ns) = (self.current.get(), self.now_ns.get());
        let serial = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[current as usize];
            task.state = state;
            task.serial += 1;
            task.since_ns = now_ns;
            task.timed_out = false;
            task.until_ns = until_ns.unwrap_or(u64::MAX);
            task.serial
        };
        if let Some(until_ns) = until_ns {
            let place = match self.exploring.get() {
                true if impatient => Explorer::LAST,
                true => self.explorer.borrow_mut().new_place(current),
                false => until_ns,
            };
            self.push(place, current, serial);
        }
    }

    /// A task that slept can run from `at_ns` on, when its CPU is free.
    pub(crate) fn wake(&self, number: u32, at_ns: u64) {
        let cpu = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[number as usize];
            debug_assert_eq!(task.state, State::Asleep);
            task.state = State::Ready;
            task.serial += 1;
            task.clock_ns = at_ns.max(task.since_ns);
            task.cpu
        };
        let idle = {
            let mut cpus = self.cpus.borrow_mut();
            let cpu = &mut cpus[cpu as usize];
            if cpu.task.is_some() {
                cpu.queue.push_back(number);
            }
            cpu.task.is_none()
        };
        if idle {
            self.start_on(cpu, number);
        }
    }

    /// A spinning task gets what it waited for at `at_ns`.
    pub(crate) fn resume_spinner(&self, number: u32, at_ns: u64) {
        let serial = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[number as usize];
            debug_assert_eq!(task.state, State::Spinning);
            task.state = State::Ready;
            task.serial += 1;
            task.clock_ns = at_ns;
            task.serial
        };
        self.push(self.place(at_ns, number), number, serial);
    }

    /// Starts a task that can run on an idle CPU.
    fn start_on(&self, cpu: u32, number: u32) {
        let (serial, clock_ns) = {
            let mut tasks = self.tasks.borrow_mut();
            let mut cpus = self.cpus.borrow_mut();
            let (task, cpu) = (&mut tasks[number as usize], &mut cpus[cpu as usize]);
            cpu.task = Some(number);
            task.clock_ns = task.clock_ns.max(cpu.free_at_ns);
            task.asleep_ns += task.clock_ns - task.since_ns.min(task.clock_ns);
            cpu.slice_from_ns = task.clock_ns;
            (task.serial, task.clock_ns)
        };
        self.push(self.place(clock_ns, number), number, serial);
    }

    /// The running task leaves its CPU to the next task that can run there.
    pub(crate) fn release_cpu(&self) {
        let cpu = self.cpu.get();
        let next = {
            let mut cpus = self.cpus.borrow_mut();
            let cpu = &mut cpus[cpu as usize];
            cpu.task = None;
            cpu.free_at_ns = self.now_ns.get() + self.costs().switch_ns;
            cpu.queue.pop_front()
        };
        if let Some(next) = next {
            self.start_on(cpu, next);
        }
    }

    /// Yields the CPU to waiting tasks; false if the running task keeps it for a spinning lock.
    fn yield_cpu(&self) -> bool {
        let current = self.current.get();
        {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[current as usize];
            if task.spin_locks > 0 {
                return false;
            }
            task.serial += 1;
            task.clock_ns = self.now_ns.get();
            task.since_ns = self.now_ns.get();
        }
        self.cpus.borrow_mut()[self.cpu.get() as usize].queue.push_back(current);
        self.release_cpu();
        self.suspend();
        true
    }

    /// Prepares for the tasks of a machine.
    pub(crate) fn begin(&self, shape: Shape, costs: &'static Costs, explorer: Option<Explorer>) {
        self.shape.set(shape);
        self.costs.set(costs);
        self.exploring.set(explorer.is_some());
        *self.explorer.borrow_mut() = explorer.unwrap_or(Explorer::none());
        self.now_ns.set(0);
        self.turn.set(u64::MAX);
        self.tasks.borrow_mut().clear();
        self.heap.borrow_mut().clear();
        let mut cpus = self.cpus.borrow_mut();
        cpus.clear();
        // One more, outside the sockets, for work that is no CPU's.
        cpus.resize_with(shape.cpus + 1, Cpu::default);
        self.tallies.clear();
    }

    /// Adds a task that can run at once.
    pub(crate) fn add(&self, name: String, cpu: usize) -> u32 {
        let number = {
            let mut tasks = self.tasks.borrow_mut();
            tasks.push(Task {
                name,
                cpu: cpu as u32,
                clock_ns: 0,
                state: State::Asleep,
                serial: 0,
                next: NONE,
                since_ns: 0,
                until_ns: u64::MAX,
                timed_out: false,
                asleep_ns: 0,
                path: 0,
                word: 0,
                spin_locks: 0,
                yielder: std::ptr::null(),
            });
            tasks.len() as u32 - 1
        };
        self.explorer.borrow_mut().add(number);
        self.wake(number, 0);
        number
    }

    /// Ends the running task.
    pub(crate) fn end(&self) {
        self.set_state(State::Done, None, false);
        self.tasks.borrow_mut()[self.current.get() as usize].clock_ns = self.now_ns.get();
        self.release_cpu();
    }
}
