//! Processes in ordinary memory, with threads that do what programs do.
//!
//! Owns: the address spaces, and the calls of their threads as steps. A thread that reads what is
//! not the truth panics.
//! Invariants, of `fs/userfaultfd.c` and `mm/`: a call that changes the address space is counted as
//! outstanding from its change on; its messages are queued in steps of their own, and it waits
//! until they are read. Content that is removed goes after that, page by page. Faults are read
//! before events. A thread that is held ends its call, and then stops. Where no message tells of
//! forks, who forks tells of them by letters, as a gate does, and its child has neither marks nor
//! registrations.
//! Not here: what an address space is (`space`), what calls do (`calls`), how letters tell of forks
//! (`births`), the seams (`super`), what a keeper does.

use super::Twin;
use super::births::About;
use super::gate::{Gates, Sent};
use super::signals::Call;
use super::space::{Space, Told};
use overspill_agent::Barrier;
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use overspill_guest::userfault::Fault;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where programs have memory.
pub(crate) const PLACE: Range<Vpn> = Vpn(0x1000)..Vpn(0x1000 + 600);
/// What all words of a page hold.
pub(crate) type Content = u64;

/// How programs behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) threads: usize,
    /// Most processes there ever are.
    pub(crate) spaces_max: usize,
    /// Mapped pages of a process, at most.
    pub(crate) pages_max: u64,
    /// Most steps that others make when the keeper calls.
    pub(crate) interruptions_max: u32,
    /// How often in a thousand an agent finds a page busy.
    pub(crate) busy_per_mille: u32,
    /// How often in a thousand calls a process ends.
    pub(crate) ends_per_mille: u32,
    /// Whether processes fork while other threads of theirs move memory.
    pub(crate) moves_at_forks: bool,
    /// Who tells of them.
    pub(crate) telling: Telling,
}

/// Who tells of what processes do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Telling {
    /// The kernel, by userfaultfds.
    Kernel,
    /// As that, and gates of forks.
    Letters,
    /// Gates of everything: what is out raises signals.
    Signals(Barrier),
}

/// What a thread still has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Touch {
        at: Vpn,
        write: Option<Content>,
    },
    Tell(Told),
    AwaitReading,
    /// What was told is outstanding no more.
    Settle,
    Drop(Vpn),
    /// A child runs from now on.
    Release(usize),
    Write(About),
    AwaitAnswer(About),
    /// The next one was refused.
    AwaitTouch,
    /// What the kernel does, between letters.
    Call(Call),
    /// The call that forks, between its letters.
    Fork,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) space: usize,
    pub(super) steps: VecDeque<Step>,
    /// Where it waits for a page.
    waits: Option<Vpn>,
    pub(super) was_read: bool,
    runs: bool,
    /// Its letter, and one more that says that its child has ended.
    pub(super) sent: Option<Sent>,
    pub(super) also_sent: Option<Sent>,
    /// By which letters know its fork.
    pub(super) fork: u64,
    /// Whether what it waits for was not mapped at some moment since.
    pub(super) was_unmapped: bool,
}

/// What is read.
pub(super) enum Unread {
    Fault(Fault),
    Event(Event),
    Fork,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: fastrand::Rng,
    pub(super) habits: Habits,
    pub(super) spaces: Vec<Space>,
    pub(super) threads: Vec<Thread>,
    pub(super) contents: Content,
    /// Whether threads begin anything.
    is_busy: bool,
    pub(super) gates: Gates,
}

/// All processes.
#[derive(Debug)]
pub(crate) struct World(Mutex<State>);

impl State {
    /// Lets a few threads go on.
    fn interrupt(&mut self) {
        let steps = self.random.u32(0..=self.habits.interruptions_max);
        for _ in 0..steps {
            self.run_one();
        }
    }

    /// Lets one thread make a step; false if none can.
    fn run_one(&mut self) -> bool {
        let ready: Vec<_> = (0..self.threads.len()).filter(|&n| self.can_go_on(n)).collect();
        let Some(&thread) = self.random.choice(&ready) else { return false };
        if self.threads[thread].steps.is_empty() {
            self.begin(thread);
        }
        self.go_on(thread);
        true
    }

    fn can_go_on(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        let space = &self.spaces[thread.space];
        if !thread.runs || space.has_ended {
            return false;
        }
        match thread.steps.front() {
            None => self.is_busy && !space.is_held,
            Some(Step::Touch { .. }) => thread.waits.is_none() && !space.is_held,
            Some(Step::AwaitReading) => thread.was_read,
            Some(Step::AwaitTouch) => thread.sent.is_some_and(|sent| self.gates.is_answered(sent)),
            Some(Step::AwaitAnswer(about)) => {
                thread.sent.is_some_and(|sent| self.gates.is_answered(sent))
                    || thread.also_sent.is_none() && self.is_about_dead(*about)
            }
            Some(_) => true,
        }
    }

    fn go_on(&mut self, number: usize) {
        let Some(step) = self.threads[number].steps.front().cloned() else { return };
        let space = self.threads[number].space;
        let is_done = match step {
            Step::Touch { at, write } => self.touch(number, at, write),
            // Nobody is told of who was let go.
            Step::Tell(_) if self.spaces[space].is_free => {
                self.threads[number].was_read = true;
                true
            }
            Step::Tell(told) => {
                self.spaces[space].events.push_back((number, told));
                self.spaces[space].ring();
                true
            }
            Step::AwaitReading => {
                self.threads[number].was_read = false;
                true
            }
            Step::Settle => {
                self.spaces[space].outstanding -= 1;
                true
            }
            Step::Drop(at) => {
                self.spaces[space].drop_page(at);
                true
            }
            Step::Release(child) => {
                let of_child = self.threads.iter_mut().filter(|thread| thread.space == child);
                of_child.for_each(|thread| thread.runs = true);
                true
            }
            Step::Write(about) => {
                self.threads[number].sent = Some(self.write(number, about));
                true
            }
            Step::AwaitAnswer(about) => self.take_answer(number, about),
            Step::AwaitTouch => {
                self.touch_again(number);
                false
            }
            Step::Call(call) => {
                let told = self.call(space, &call);
                let steps = &mut self.threads[number].steps;
                steps.pop_front();
                told.into_iter().rev().for_each(|step| steps.push_front(step));
                false
            }
            Step::Fork => {
                self.fork_by_call(number);
                true
            }
        };
        if is_done {
            self.threads[number].steps.pop_front();
        }
    }

    /// True if the page is there, or its touch is a mistake.
    fn touch(&mut self, number: usize, at: Vpn, write: Option<Content>) -> bool {
        if self.barrier().is_some() && !self.may_touch(number, at, write) {
            return false;
        }
        let is_drop = |step: &Step| matches!(step, Step::Drop(other) if *other == at);
        let is_dropped = self.is_in(self.threads[number].space, is_drop);
        let thread = &mut self.threads[number];
        let space = &mut self.spaces[thread.space];
        if !space.pages.contains_key(&at) {
            match space.mappings.get(&at) {
                None => return true,
                Some(false) => _ = space.pages.insert(at, Arc::new(0)),
                Some(true) => {
                    thread.waits = Some(at);
                    space.faults.push_back(Fault { at, thread: number as u32 });
                    space.ring();
                    return false;
                }
            }
        }
        let page = space.pages.get_mut(&at).expect("it is there");
        if **page == 0 && space.fading.contains(&at) {
            space.truth.remove(&at);
        }
        if !is_dropped {
            // What was read once is so from now on.
            space.fading.remove(&at);
        }
        let truth = space.truth.get(&at).copied().unwrap_or_default();
        assert_eq!(**page, truth, "process {} reads another page at {at:?}", thread.space);
        if let Some(content) = write {
            *page = Arc::new(content);
            space.truth.insert(at, content);
        }
        true
    }

    /// Begins a call of a thread's choice. While a process forks by letters that is no other one
    /// that changes its memory: what a child then has would be of before or after that.
    fn begin(&mut self, thread: usize) {
        let space = self.threads[thread].space;
        let is_of_fork = |step: &Step| match step {
            Step::Write(about) | Step::AwaitAnswer(about) => !about.is_of_memory(),
            step => *step == Step::Fork,
        };
        if self.spaces[space].is_free || self.is_in(space, is_of_fork) {
            self.threads[thread].steps = self.touches(space).unwrap_or_default().into();
            return;
        }
        if self.random.u32(0..1000) < self.habits.ends_per_mille {
            return self.end(space);
        }
        let steps = match self.random.u32(0..100) {
            0..70 => self.touches(space),
            70..80 => self.remove(space),
            80..85 => self.unmap(space),
            85..92 => self.map(space),
            92..98 => self.relocate(space),
            _ => match self.habits.telling {
                Telling::Kernel => self.fork(space),
                Telling::Letters | Telling::Signals(_) => self.fork_with_letters(space),
            },
        };
        self.threads[thread].steps = steps.unwrap_or_default().into();
    }

    /// With its children that wait for their pages: they see it.
    pub(super) fn end(&mut self, space: usize) {
        self.spaces[space].end();
        let threads = self.threads.iter_mut().filter(|thread| thread.space == space);
        let steps: Vec<Step> = threads.flat_map(|thread| thread.steps.drain(..)).collect();
        for step in steps {
            if let Step::AwaitAnswer(About::Forked(Some(child))) = step
                && self.is_in(child, |step| *step == Step::AwaitAnswer(About::Born))
            {
                self.end(child);
            }
        }
    }

    /// What raises signals of touches, if they do.
    pub(super) fn barrier(&self) -> Option<Barrier> {
        match self.habits.telling {
            Telling::Signals(barrier) => Some(barrier),
            Telling::Kernel | Telling::Letters => None,
        }
    }

    /// True if a thread of a process is about to make such a step.
    pub(super) fn is_in(&self, space: usize, is_such: impl Fn(&Step) -> bool) -> bool {
        let mut threads = self.threads.iter().filter(|thread| thread.space == space);
        threads.any(|thread| thread.steps.iter().any(&is_such))
    }

    pub(super) fn tell(&mut self, space: usize, told: Told, steps: &mut Vec<Step>) {
        self.spaces[space].outstanding += 1;
        steps.extend([Step::Tell(told), Step::AwaitReading, Step::Settle]);
    }

    pub(super) fn add_threads(&mut self, space: usize, count: usize, runs: bool) {
        let thread = |_| Thread {
            space,
            steps: VecDeque::new(),
            waits: None,
            was_read: false,
            runs,
            sent: None,
            also_sent: None,
            fork: 0,
            was_unmapped: false,
        };
        self.threads.extend((0..count).map(thread));
    }

    /// The next message of an address space, as the kernel orders them.
    pub(super) fn read(&mut self, space: usize) -> Option<Unread> {
        let this = &mut self.spaces[space];
        if let Some(fault) = this.faults.pop_front() {
            return Some(Unread::Fault(fault));
        }
        let Some((thread, told)) = this.events.pop_front() else {
            let _ = rustix::io::read(&*this.bell, &mut [0u8; 8]);
            return None;
        };
        self.threads[thread].was_read = true;
        Some(match told {
            Told::Event(event) => Unread::Event(event),
            Told::Fork(child) => {
                this.brought.push_back(child);
                Unread::Fork
            }
        })
    }

    /// Wakes who waits in a place: they touch it again.
    pub(super) fn wake(&mut self, space: usize, place: &Range<Vpn>) {
        let waiting = self.threads.iter_mut().filter(|thread| thread.space == space);
        let is_there = |thread: &&mut Thread| thread.waits.is_some_and(|at| place.contains(&at));
        for thread in waiting.filter(is_there) {
            let at = thread.waits.take().expect("it waits");
            // What was not read yet is no message any more.
            self.spaces[space].faults.retain(|fault| fault.at != at);
        }
    }

    /// Fills a missing page; false if one is there.
    pub(super) fn fill(&mut self, space: usize, at: Vpn, content: Content) -> bool {
        let this = &mut self.spaces[space];
        if this.pages.contains_key(&at) {
            return false;
        }
        this.marks.remove(&at);
        this.pages.insert(at, Arc::new(content));
        self.wake(space, &at.run(1));
        true
    }

    /// True if no thread of it is in the middle of a call.
    pub(super) fn stands(&self, space: usize) -> bool {
        let mut threads = self.threads.iter().filter(|thread| thread.space == space);
        threads.all(|thread| matches!(thread.steps.front(), None | Some(Step::Touch { .. })))
    }
}

impl World {
    /// Makes one with a process that has some memory, nothing of which is registered.
    pub(crate) fn new(habits: Habits, seed: u64) -> Arc<Self> {
        let mut state = State {
            random: fastrand::Rng::with_seed(seed),
            habits,
            spaces: vec![Space::new()],
            threads: Vec::new(),
            contents: 0,
            is_busy: true,
            gates: Gates::new(),
        };
        state.spaces[0].mappings.insert(PLACE.start.run(habits.pages_max / 2), false);
        state.add_threads(0, habits.threads, true);
        Arc::new(Self(Mutex::new(state)))
    }

    /// What is known of a process by whoever attaches to it.
    pub(crate) fn twin(self: &Arc<Self>, space: usize) -> Twin {
        let bell = self.lock().spaces[space].bell.clone();
        Twin::new(self.clone(), space, bell)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`lock`](Self::lock), after others have run for a moment.
    pub(super) fn enter(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.interrupt();
        state
    }

    /// Lets one thread make a step; false if none can.
    pub(crate) fn run_one(&self) -> bool {
        self.lock().run_one()
    }

    /// Lets threads end their calls, and begin none.
    pub(crate) fn calm(&self) {
        self.lock().is_busy = false;
    }

    /// True if none is in the middle of a call, or waits for a page.
    pub(crate) fn is_calm(&self) -> bool {
        let state = self.lock();
        let lives = |thread: &&Thread| !state.spaces[thread.space].has_ended;
        state.threads.iter().filter(lives).all(|thread| thread.steps.is_empty())
    }

    /// Has the first process touch an address.
    pub(crate) fn touch(&self, at: Vpn) {
        self.lock().threads[0].steps.push_back(Step::Touch { at, write: None });
    }

    /// Has each process touch all that it has.
    pub(crate) fn touch_all(&self) {
        let mut state = self.lock();
        for space in 0..state.spaces.len() {
            let places = state.spaces[space].mappings.iter();
            let pages = places.flat_map(|(place, _)| Vpn::each(place));
            let steps = pages.map(|at| Step::Touch { at, write: None }).collect();
            let mut threads = state.threads.iter_mut();
            let thread = threads.find(|thread| thread.space == space && thread.runs);
            if let Some(thread) = thread {
                thread.steps = steps;
            }
        }
    }

    /// Has the first process write a letter.
    pub(crate) fn send(&self, kind: u32, arguments: [u64; 4]) -> Sent {
        let state = self.lock();
        state.gates.send(state.spaces[0].page, kind, arguments)
    }

    /// The answer to that, if there is one.
    pub(crate) fn take_answer(&self, letter: Sent) -> Option<i64> {
        self.lock().gates.take_answer(letter)
    }

    /// What raises signals of touches, if they do.
    pub(super) fn barrier(&self) -> Option<Barrier> {
        self.lock().barrier()
    }

    /// The first process is about to filter its calls.
    pub(crate) fn wish_out(&self) {
        let state = self.lock();
        state.gates.wish_out(state.spaces[0].page);
    }

    /// Ends all.
    pub(crate) fn end_all(&self) {
        let mut state = self.lock();
        (0..state.spaces.len()).for_each(|space| state.end(space));
    }

    /// What threads are in the middle of, for a failure.
    pub(crate) fn describe(&self) -> String {
        let state = self.lock();
        let threads = state.threads.iter().filter(|thread| !thread.steps.is_empty());
        let threads = threads.map(|thread| {
            let Thread { space, steps, waits, was_read, runs, .. } = thread;
            let held = state.spaces[*space].is_held;
            format!("process {space}: {steps:?} waits {waits:?} {was_read} {runs} held {held}\n")
        });
        threads.collect()
    }
}
