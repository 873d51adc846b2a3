//! All orders of the calls of two threads, their messages, and the pager's steps; and of a thread's
//! calls while another one forks.
//!
//! At every moment at which the kernel would let a page be put somewhere, the map must say of each
//! place what it holds. Of a child that must be so when the fork is read: what it does not get is
//! lost, which only what is under way meanwhile can do, but never another page.

use super::Endless;
use super::kernel::{Call, Kernel, Mapping, Message, PLACES, THREADS, vpn};
use super::mix::{Mix, Seen};
use crate::Vpn;
use crate::map::{AtAddress, Covered, Event, Inherited, Look, Numbers, Pages, SpaceMap, Witness};
use overspill_base::PageNo;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::Range;
use std::rc::Rc;

/// The kernel as the map asks it.
struct Asked<'a>(&'a Kernel);

impl Witness for Asked<'_> {
    fn look(&mut self, place: &Range<Vpn>) -> Look {
        match self.0.is_changing() {
            true => Look::Changing,
            false if self.0.is_registered(place.start.0 as usize) => Look::Registered,
            false => Look::NotRegistered,
        }
    }

    /// Content that is out has a mark in the page table.
    fn pages(&mut self, place: &Range<Vpn>) -> Pages {
        let mapping = self.0.mapped[place.start.0 as usize];
        Pages { present: false, marked: mapping.is_some_and(|mapping| mapping.content.is_some()) }
    }
}

/// One step of somebody.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(usize, Call),
    GoOn(usize),
    Read,
    Settle,
    Register(usize),
    Confirm,
}

/// What the pager knows. Most states differ in the kernel only, so it is shared.
#[derive(Clone)]
struct Known {
    map: SpaceMap,
    /// The content behind the engine's pages.
    store: [Option<u8>; PLACES],
    /// Of all that decides what the map does, without the names of pages.
    key: u64,
    /// Where nothing is known.
    unknown: [bool; PLACES],
}

/// What happens to the map.
#[derive(Hash)]
enum Change {
    Apply(Event),
    Settle,
    Doubt(usize),
    Believe(usize),
}

impl Known {
    fn new(map: SpaceMap, store: [Option<u8>; PLACES]) -> Self {
        let mut new = Self { map, store, key: 0, unknown: [false; PLACES] };
        new.derive();
        new
    }

    /// Returns the same after a change. Only settling depends on the kernel.
    fn after(&self, change: Change, kernel: &Kernel) -> Self {
        let mut next = self.clone();
        match change {
            Change::Apply(event) => next.map.apply(&event),
            Change::Settle => next.map.settle(&mut Asked(kernel)),
            Change::Doubt(place) => next.map.doubt(vpn(place).run(1)),
            Change::Believe(place) => next.map.believe(vpn(place).run(1)),
        }
        next.discard_forgotten();
        next.derive();
        next
    }

    /// The engine discards at once.
    fn discard_forgotten(&mut self) {
        for numbers in self.map.take_forgotten() {
            self.store[numbers.start.0 as usize..numbers.end.0 as usize].fill(None);
        }
    }

    fn derive(&mut self) {
        let mut hash = Mix::default();
        self.map.hash(&|page| self.content(page), &mut hash);
        self.key = hash.finish();
        self.unknown = std::array::from_fn(|at| {
            let here = vpn(at).run(1);
            self.map.is_settled(&here) && !self.map.unknown(&here).is_empty()
        });
    }

    fn content(&self, page: PageNo) -> Option<u8> {
        self.store[page.0 as usize]
    }

    /// What must be true of a child that has `mapped`.
    fn check_child(&self, Child { mapped, later, is_quiet, .. }: &Child) -> Result<(), String> {
        let registered =
            |at: usize| mapped.get(at).copied().flatten().filter(|mapping| mapping.is_registered);
        let mut has = |place: &Range<Vpn>| match registered(place.start.0 as usize) {
            Some(_) => Covered::All,
            None => Covered::Nothing,
        };
        let (child, inherited) = self.map.fork(later, &mut has, &mut Endless::default());
        child.check()?;
        for at in 0..PLACES {
            let held = match child.at(vpn(at)) {
                AtAddress::Page(page) => self.content(parents(&inherited, page)),
                _ => None,
            };
            let mapping = registered(at);
            let expected = mapping.and_then(|mapping| mapping.content);
            let is_lost = held.is_none() && !(*is_quiet && later.is_empty());
            let is_dropped = held.is_none() && mapping.is_some_and(|mapping| mapping.is_dropping);
            // Where the page table has no mark, or nothing is registered, stale content is not put.
            let is_unmarked = expected.is_none();
            if held != expected && !is_lost && !is_dropped && !is_unmarked {
                return Err(format!("a child has {held:?} at {at}, should have {expected:?}"));
            }
        }
        Ok(())
    }

    /// Otherwise settling changes nothing.
    fn can_settle(&self) -> bool {
        let map = &self.map;
        map.is_in_doubt() || !(map.live.doubtful.is_empty() && map.moves.is_empty())
    }
}

/// A child that is to get its map when nothing is outstanding.
#[derive(Clone)]
struct Child {
    /// Of its parent, when the message was read.
    known: Rc<Known>,
    mapped: [Option<Mapping>; PLACES],
    later: Vec<Event>,
    /// Whether nothing else was under way.
    is_quiet: bool,
}

impl Hash for Child {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.known.key, &self.mapped, &self.later, self.is_quiet).hash(state);
    }
}

/// The page of the parent's that a child's page is a copy of.
fn parents(inherited: &[Inherited], page: PageNo) -> PageNo {
    let skipped = |run: &Inherited| page.0.checked_sub(run.to.0).filter(|&n| n < run.pages);
    let found = inherited.iter().find_map(|run| Some(run.from.plus(skipped(run)? as usize)));
    found.expect("its own")
}

/// Changes that were made before.
#[derive(Default)]
struct Memory(HashMap<u64, Rc<Known>, BuildHasherDefault<Mix>>);

impl Memory {
    fn after(&mut self, known: &Known, change: Change, kernel: &Kernel) -> Rc<Known> {
        let mut hash = Mix::default();
        (known.key, &change).hash(&mut hash);
        if matches!(change, Change::Settle) {
            (kernel.is_changing(), &kernel.mapped).hash(&mut hash);
        }
        let made = self.0.entry(hash.finish());
        made.or_insert_with(|| Rc::new(known.after(change, kernel))).clone()
    }
}

#[derive(Clone)]
struct World {
    kernel: Kernel,
    /// Whether the last thread forks, and does nothing else.
    forks: bool,
    known: Rc<Known>,
    /// The place registered, and not yet believed.
    candidate: Option<usize>,
    /// While threads are held: whether each may still make one call, because it was not in the
    /// kernel when it was told to stop.
    grace: Option<[bool; THREADS]>,
    child: Option<Child>,
    /// What is wrong with a child's map.
    wrong: Option<String>,
}

impl World {
    /// Each thread has one page, which is out, or the first one has two.
    fn new(forks: bool) -> Self {
        let mut kernel = Kernel::default();
        let (mut map, mut source) = (SpaceMap::new(), Endless::default());
        let mut store = [None; PLACES];
        for place in 0..THREADS {
            let content = Some(place as u8 + 1);
            let owner = if forks { 0 } else { place };
            let mapping = Mapping { is_registered: true, content, owner, is_dropping: false };
            kernel.mapped[place] = Some(mapping);
            map.believe(vpn(place).run(1));
            let bound =
                map.bind(vpn(place), &(Vpn(0)..Vpn(u64::MAX)), &mut source).expect("a piece");
            store[bound.first.0 as usize] = content;
        }
        // Nothing else is bound, and a number is not given again.
        map.numbers = Numbers::default();
        let known = Rc::new(Known::new(map, store));
        Self { kernel, forks, known, candidate: None, grace: None, child: None, wrong: None }
    }

    fn steps(&self, calls_max: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.known.can_settle() {
            steps.push(Step::Settle);
        }
        if self.kernel.has_message() {
            steps.push(Step::Read);
        }
        for thread in 0..THREADS {
            if self.kernel.can_go_on(thread) {
                steps.push(Step::GoOn(thread));
            }
            let is_stopped = self.grace.is_some_and(|grace| !grace[thread]);
            if !self.kernel.is_in_call(thread)
                && !is_stopped
                && self.kernel.calls(thread) < calls_max
            {
                let calls = self.kernel.choices(thread).into_iter();
                let calls = calls.filter(|call| self.may_make(thread, call));
                steps.extend(calls.map(|call| Step::Enter(thread, call)));
            }
        }
        match self.candidate {
            Some(_) => steps.push(Step::Confirm),
            None => steps.extend((0..PLACES).filter(|&p| self.may_register(p)).map(Step::Register)),
        }
        steps
    }

    fn may_make(&self, thread: usize, call: &Call) -> bool {
        match call {
            Call::GrowInto(..) | Call::FailToMapOver(_) => true,
            _ => self.forks == (*call == Call::Fork) || thread == 0 && *call != Call::Fork,
        }
    }

    fn may_register(&self, place: usize) -> bool {
        self.known.unknown[place] && self.kernel.mapped[place].is_some()
    }

    fn take(&mut self, step: Step, memory: &mut Memory) {
        self.make(step, memory);
        if !self.kernel.is_changing()
            && let Some(child) = self.child.take()
        {
            self.wrong = child.known.check_child(&child).err();
        }
    }

    fn make(&mut self, step: Step, memory: &mut Memory) {
        match step {
            Step::Enter(thread, call) => {
                if let Some(grace) = &mut self.grace {
                    grace[thread] = false;
                }
                self.kernel.enter(thread, call);
            }
            Step::GoOn(thread) => self.kernel.go_on(thread),
            Step::Read => self.read(memory),
            Step::Settle => self.change(Change::Settle, memory),
            // Between the look and the registration something else may have come there: any
            // mapping is hit.
            Step::Register(place) => {
                self.kernel.mapped[place].as_mut().expect("seen there").is_registered = true;
                self.candidate = Some(place);
                self.change(Change::Doubt(place), memory);
            }
            Step::Confirm => self.confirm(memory),
        }
    }

    fn read(&mut self, memory: &mut Memory) {
        let is_quiet = self.kernel.is_quiet_but_for_a_fork() && !self.known.can_settle();
        match self.kernel.read().expect("a message") {
            Message::Event(event) => {
                self.candidate = self.candidate.filter(|&at| !event.concerns(&vpn(at).run(1)));
                self.child.iter_mut().for_each(|child| child.later.push(event.clone()));
                self.change(Change::Apply(event), memory);
            }
            Message::Fork(mapped) => {
                let (known, later) = (self.known.clone(), Vec::new());
                self.child = Some(Child { known, mapped, later, is_quiet });
            }
        }
    }

    fn confirm(&mut self, memory: &mut Memory) {
        let place = self.candidate.take().expect("a candidate");
        if Asked(&self.kernel).look(&vpn(place).run(1)) == Look::Registered {
            self.change(Change::Believe(place), memory);
        }
    }

    fn change(&mut self, change: Change, memory: &mut Memory) {
        self.known = memory.after(&self.known, change, &self.kernel);
        self.hold_threads();
    }

    fn hold_threads(&mut self) {
        match (self.known.map.must_hold_threads(), self.grace) {
            (true, None) => {
                self.grace = Some(std::array::from_fn(|thread| !self.kernel.is_in_call(thread)));
            }
            (false, Some(_)) => self.grace = None,
            _ => {}
        }
    }

    /// What must be true now.
    fn check(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)?;
        self.known.map.check()?;
        if self.kernel.is_changing() {
            return Ok(());
        }
        let settled = self.known.after(Change::Settle, &self.kernel);
        settled.map.check()?;
        for (place, mapping) in self.kernel.mapped.iter().enumerate() {
            let registered = mapping.filter(|mapping| mapping.is_registered);
            let held = match settled.map.at(vpn(place)) {
                AtAddress::Page(page) => settled.content(page),
                AtAddress::Later => return Err(format!("place {place} is in doubt for ever")),
                AtAddress::Unbound if registered.is_none() => {
                    return Err(format!("place {place} is believed, but not registered"));
                }
                AtAddress::Unbound | AtAddress::Unknown => None,
            };
            let expected = registered.and_then(|mapping| mapping.content);
            let is_dropped = held.is_none() && mapping.is_some_and(|mapping| mapping.is_dropping);
            // Where the page table has no mark, stale content is not put.
            let is_unmarked = expected.is_none() && registered.is_some();
            if held != expected && !is_dropped && !is_unmarked {
                return Err(format!("place {place} has {held:?}, should have {expected:?}"));
            }
        }
        Ok(())
    }

    /// Hashes all that decides what can happen from here.
    fn key(&self) -> u64 {
        let mut hash = Mix::default();
        (&self.kernel, self.candidate, self.grace, self.known.key).hash(&mut hash);
        (&self.child, &self.wrong).hash(&mut hash);
        hash.finish()
    }

    /// Hashes all that [`check`](Self::check) looks at.
    fn checked_key(&self) -> u64 {
        let mut hash = Mix::default();
        let mapped = (!self.kernel.is_changing()).then_some(&self.kernel.mapped);
        (self.known.key, mapped, &self.wrong).hash(&mut hash);
        hash.finish()
    }
}

/// The steps that led to each state.
#[derive(Default)]
struct Histories(Vec<(usize, Step)>);

impl Histories {
    /// Notes a step after the history `before`; returns its number. They count from 1.
    fn add(&mut self, before: usize, step: Step) -> usize {
        self.0.push((before, step));
        self.0.len()
    }

    fn of(&self, mut number: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while number > 0 {
            let (before, step) = self.0[number - 1];
            steps.insert(0, step);
            number = before;
        }
        steps
    }
}

/// Plays everything that can happen with up to `calls_max` calls of each thread; returns how many
/// states there were.
///
/// # Panics
/// With the history, if something is wrong.
fn play(start: World, calls_max: usize) -> usize {
    let mut histories = Histories::default();
    let (mut memory, mut checked) = (Memory::default(), Seen::default());
    let mut seen = Seen::from_iter([start.key()]);
    // The shortest histories first.
    let mut open = VecDeque::from([(start, 0)]);
    while let Some((world, before)) = open.pop_front() {
        for step in world.steps(calls_max) {
            let mut next = world.clone();
            next.take(step, &mut memory);
            if !seen.insert(next.key()) {
                continue;
            }
            let history = histories.add(before, step);
            if checked.insert(next.checked_key())
                && let Err(what) = next.check()
            {
                panic!("{what} after {:?}", histories.of(history));
            }
            open.push_back((next, history));
        }
    }
    seen.len()
}

fn play_all(start: World) {
    let states = play(start, 2);
    println!("{states} states");
    assert!(states > 100_000, "{states} states: the model does not move");
}

#[test]
fn every_order_of_two_calls_each() {
    play_all(World::new(false));
}

#[test]
fn every_order_of_two_calls_and_a_fork() {
    play_all(World::new(true));
}
