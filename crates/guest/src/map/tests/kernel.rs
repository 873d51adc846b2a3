//! A model of what the kernel does to an address space, and of when it says so.
//!
//! Owns: places of a page each, threads inside calls, and the queue of messages. A call changes the
//! places in one step; its messages are counted as outstanding from there on, queued one by one,
//! each in a step of its own, and each waits until it has been read and the thread has woken.
//! (`mm/mremap.c`, `mm/vma.c`, `mm/madvise.c`, `fs/userfaultfd.c`.)
//! Not here: pages that are present: all content is with the pager, or is zeros.

use crate::Vpn;
use crate::map::Event;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::rc::Rc;

pub(super) const PLACES: usize = 4;
pub(super) const THREADS: usize = 2;

/// What is mapped at a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Mapping {
    pub(super) is_registered: bool,
    /// What a read gives, `None` for zeros.
    pub(super) content: Option<u8>,
    /// The thread that made it, or moved it there, and may use it.
    pub(super) owner: usize,
    /// Whether its content is being dropped: until that is done, a read may give zeros already.
    pub(super) is_dropping: bool,
}

/// A call of a thread on its own mappings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Call {
    /// `mremap` to a place of the kernel's choice.
    Move(usize, usize),
    /// `mremap(MREMAP_FIXED)` over another mapping of the thread.
    MoveOver(usize, usize),
    /// `munmap`.
    Unmap(usize),
    /// `mmap(MAP_FIXED)` that fails.
    FailToMapOver(usize),
    /// `mmap` at a place of the kernel's choice.
    Map(usize),
    /// `MADV_DONTNEED`.
    DontNeed(usize),
    /// `mremap` that lets a mapping grow in place.
    GrowInto(usize, usize),
    /// `fork`: the child does nothing. One in a history is enough.
    Fork,
}

/// What is read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Message {
    Event(Event),
    /// With what the child has.
    Fork([Option<Mapping>; PLACES]),
}

/// What a thread still has to do in its call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Todo {
    Queue(Message),
    AwaitReading,
    Wake,
    DropContent(usize),
    /// From now on the thread knows of the mapping, and may use it.
    Own(usize),
}

#[derive(Clone, Debug, Default)]
struct Thread {
    /// Of its call, of which `done` were made. Shared by all states that the call goes through.
    steps: Rc<[Todo]>,
    done: usize,
    calls: usize,
    /// Whether a message of its was read that it waits for.
    was_read: bool,
}

impl Thread {
    fn todo(&self) -> &[Todo] {
        &self.steps[self.done..]
    }
}

impl Hash for Thread {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.todo(), self.calls, self.was_read).hash(state);
    }
}

/// Nobody: a mapping whose maker is still in its call.
const NOBODY: usize = usize::MAX;

#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Kernel {
    pub(super) mapped: [Option<Mapping>; PLACES],
    queue: VecDeque<(usize, Message)>,
    threads: [Thread; THREADS],
    has_forked: bool,
}

pub(super) fn vpn(place: usize) -> Vpn {
    Vpn(place as u64)
}

fn one(place: usize) -> Range<Vpn> {
    vpn(place).run(1)
}

impl Kernel {
    /// Messages that were promised and not yet acknowledged by their threads: `mmap_changing`.
    pub(super) fn is_changing(&self) -> bool {
        let outstanding = |todo: &Todo| matches!(todo, Todo::Queue(_) | Todo::Wake);
        self.threads.iter().any(|thread| thread.todo().iter().any(outstanding))
    }

    /// True if nobody is in the middle of a call but who has forked, and waits for the reading of
    /// that.
    pub(super) fn is_quiet_but_for_a_fork(&self) -> bool {
        let in_call = (0..THREADS).filter(|&thread| self.is_in_call(thread)).count();
        in_call == 1 && matches!(self.queue.front(), Some((_, Message::Fork(_))))
    }

    pub(super) fn is_registered(&self, place: usize) -> bool {
        self.mapped.get(place).is_some_and(|mapping| mapping.is_some_and(|m| m.is_registered))
    }

    pub(super) fn is_in_call(&self, thread: usize) -> bool {
        !self.threads[thread].todo().is_empty()
    }

    pub(super) fn calls(&self, thread: usize) -> usize {
        self.threads[thread].calls
    }

    /// The calls that a thread may make now.
    pub(super) fn choices(&self, thread: usize) -> Vec<Call> {
        let owns = |place: &usize| self.mapped[*place].is_some_and(|m| m.owner == thread);
        let own: Vec<usize> = (0..PLACES).filter(owns).collect();
        let free = (0..PLACES).filter(|&place| self.mapped[place].is_none());
        let free: Vec<usize> = free.collect();
        let mut calls: Vec<Call> = free.iter().map(|&to| Call::Map(to)).collect();
        if !self.has_forked {
            calls.push(Call::Fork);
        }
        for &place in &own {
            calls.extend([Call::Unmap(place), Call::FailToMapOver(place), Call::DontNeed(place)]);
            calls.extend(free.iter().map(|&to| Call::Move(place, to)));
            calls.extend(
                free.iter().filter(|&&to| to == place + 1).map(|&to| Call::GrowInto(place, to)),
            );
            let others = own.iter().filter(|&&to| to != place);
            calls.extend(others.map(|&to| Call::MoveOver(place, to)));
        }
        calls
    }

    /// Makes the change of a call; its messages are still to come.
    pub(super) fn enter(&mut self, thread: usize, call: Call) {
        let mut todo = Vec::new();
        match call {
            Call::Move(from, to) => self.relocate(from, to, &mut todo),
            Call::MoveOver(from, to) => {
                self.unmap(to, &mut todo);
                self.relocate(from, to, &mut todo);
            }
            Call::Unmap(place) => self.unmap(place, &mut todo),
            Call::FailToMapOver(place) => self.tell_unmapped(place, &mut todo),
            Call::Map(place) => self.map(place, false, &mut todo),
            Call::Fork => {
                self.has_forked = true;
                say(Message::Fork(self.mapped), &mut todo);
            }
            Call::GrowInto(from, place) => self.map(place, self.is_registered(from), &mut todo),
            Call::DontNeed(place) => {
                if self.is_registered(place) {
                    message(Event::Removed(one(place)), &mut todo);
                }
                self.mapped[place].as_mut().expect("the thread's own").is_dropping = true;
                todo.push(Todo::DropContent(place));
            }
        }
        let thread = &mut self.threads[thread];
        thread.calls += 1;
        (thread.steps, thread.done) = (todo.into(), 0);
    }

    fn relocate(&mut self, from: usize, to: usize, todo: &mut Vec<Todo>) {
        let mapping = self.mapped[from].take().expect("the thread's own");
        self.mapped[to] = Some(Mapping { owner: NOBODY, ..mapping });
        if mapping.is_registered {
            message(Event::Remapped { from: vpn(from), to: vpn(to), pages: 1 }, todo);
            message(Event::Unmapped(one(from)), todo);
        }
        todo.push(Todo::Own(to));
    }

    fn map(&mut self, place: usize, is_registered: bool, todo: &mut Vec<Todo>) {
        let owner = NOBODY;
        let mapping = Mapping { is_registered, content: None, owner, is_dropping: false };
        self.mapped[place] = Some(mapping);
        todo.push(Todo::Own(place));
    }

    fn unmap(&mut self, place: usize, todo: &mut Vec<Todo>) {
        self.tell_unmapped(place, todo);
        self.mapped[place] = None;
    }

    fn tell_unmapped(&self, place: usize, todo: &mut Vec<Todo>) {
        if self.is_registered(place) {
            message(Event::Unmapped(one(place)), todo);
        }
    }

    /// True if a thread can go on in its call.
    pub(super) fn can_go_on(&self, thread: usize) -> bool {
        let thread = &self.threads[thread];
        match thread.todo().first() {
            None => false,
            Some(Todo::AwaitReading) => thread.was_read,
            Some(_) => true,
        }
    }

    /// Lets a thread go on by one step.
    pub(super) fn go_on(&mut self, thread: usize) {
        let step = self.threads[thread].todo().first().expect("a step to make").clone();
        self.threads[thread].done += 1;
        match step {
            Todo::Queue(event) => self.queue.push_back((thread, event)),
            Todo::AwaitReading => self.threads[thread].was_read = false,
            Todo::Wake => {}
            Todo::DropContent(place) => {
                if let Some(mapping) = &mut self.mapped[place] {
                    (mapping.content, mapping.is_dropping) = (None, false);
                }
            }
            Todo::Own(place) => {
                if let Some(mapping) = &mut self.mapped[place] {
                    mapping.owner = thread;
                }
            }
        }
    }

    pub(super) fn has_message(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Reads one message.
    pub(super) fn read(&mut self) -> Option<Message> {
        let (thread, message) = self.queue.pop_front()?;
        self.threads[thread].was_read = true;
        Some(message)
    }
}

fn message(event: Event, todo: &mut Vec<Todo>) {
    say(Message::Event(event), todo);
}

fn say(message: Message, todo: &mut Vec<Todo>) {
    todo.extend([Todo::Queue(message), Todo::AwaitReading, Todo::Wake]);
}
