//! All orders of the calls of two threads, their messages, and the pager's steps.
//!
//! At every moment at which the kernel would let a page be put somewhere, the map must say of each
//! place what it holds.

use super::Endless;
use super::kernel::{Call, Kernel, Mapping, PLACES, THREADS, vpn};
use crate::Vpn;
use crate::map::{AtAddress, Look, Pages, SpaceMap, Witness};
use overspill_base::PageNo;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

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

#[derive(Clone)]
struct World {
    kernel: Kernel,
    has_marks: bool,
    map: SpaceMap,
    source: Endless,
    /// The content behind the engine's pages.
    store: BTreeMap<PageNo, u8>,
    /// The place registered, and not yet believed.
    candidate: Option<usize>,
    /// While threads are held: whether each may still make one call, because it was not in the
    /// kernel when it was told to stop.
    grace: Option<[bool; THREADS]>,
}

impl World {
    /// Each thread has one page, which is out.
    fn new(has_marks: bool) -> Self {
        let mut kernel = Kernel::default();
        let (mut map, mut source) = (SpaceMap::new(has_marks), Endless::default());
        let mut store = BTreeMap::new();
        for owner in 0..THREADS {
            let content = Some(owner as u8 + 1);
            let mapping = Mapping { is_registered: true, content, owner, is_dropping: false };
            kernel.mapped[owner] = Some(mapping);
            map.believe(vpn(owner).run(1));
            let bound = map.bind(vpn(owner), &mut source).expect("a piece");
            store.insert(bound.first, owner as u8 + 1);
        }
        Self { kernel, has_marks, map, source, store, candidate: None, grace: None }
    }

    fn steps(&self, calls_max: usize) -> Vec<Step> {
        let mut steps = vec![Step::Read, Step::Settle];
        for thread in 0..THREADS {
            if self.kernel.can_go_on(thread) {
                steps.push(Step::GoOn(thread));
            }
            let is_stopped = self.grace.is_some_and(|grace| !grace[thread]);
            if !self.kernel.is_in_call(thread)
                && !is_stopped
                && self.kernel.calls(thread) < calls_max
            {
                let calls =
                    self.kernel.choices(thread).into_iter().filter(|call| self.may_make(call));
                steps.extend(calls.map(|call| Step::Enter(thread, call)));
            }
        }
        match self.candidate {
            Some(_) => steps.push(Step::Confirm),
            None => steps.extend((0..PLACES).filter(|&p| self.may_register(p)).map(Step::Register)),
        }
        steps
    }

    /// A silent growth cannot be told from what was there before without marks.
    fn may_make(&self, call: &Call) -> bool {
        match call {
            // A kernel without marks does not report a call that fails.
            Call::GrowInto(..) | Call::FailToMapOver(_) => self.has_marks,
            _ => true,
        }
    }

    fn may_register(&self, place: usize) -> bool {
        let here = vpn(place).run(1);
        let known = !self.map.is_settled(&here) || self.map.unknown(&here).is_empty();
        // Without marks a late message about another mapping there would drop this one's content.
        let is_time = self.has_marks || !self.kernel.is_changing();
        !known && is_time && self.kernel.mapped[place].is_some()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Enter(thread, call) => {
                if let Some(grace) = &mut self.grace {
                    grace[thread] = false;
                }
                self.kernel.enter(thread, call);
            }
            Step::GoOn(thread) => self.kernel.go_on(thread),
            Step::Read => {
                if let Some(event) = self.kernel.read() {
                    self.map.apply(&event);
                    self.candidate = self.candidate.filter(|&at| !event.concerns(&vpn(at).run(1)));
                }
            }
            Step::Settle => self.map.settle(&mut Asked(&self.kernel)),
            // Between the look and the registration something else may have come there: any
            // mapping is hit.
            Step::Register(place) => {
                if let Some(mapping) = &mut self.kernel.mapped[place] {
                    mapping.is_registered = true;
                    self.candidate = Some(place);
                    self.map.doubt(vpn(place).run(1));
                }
            }
            Step::Confirm => self.confirm(),
        }
        self.hold_threads();
        self.settle_numbers();
    }

    fn confirm(&mut self) {
        let place = self.candidate.take().expect("a candidate");
        if Asked(&self.kernel).look(&vpn(place).run(1)) == Look::Registered {
            self.map.believe(vpn(place).run(1));
        }
    }

    fn hold_threads(&mut self) {
        match (self.map.must_hold_threads(), self.grace) {
            (true, None) => {
                self.grace = Some(std::array::from_fn(|thread| !self.kernel.is_in_call(thread)));
            }
            (false, Some(_)) => self.grace = None,
            _ => {}
        }
    }

    /// The engine discards at once.
    fn settle_numbers(&mut self) {
        for numbers in self.map.take_forgotten() {
            (numbers.start.0..numbers.end.0).for_each(|n| {
                self.store.remove(&PageNo(n));
            });
            self.map.release(numbers, &mut self.source);
        }
    }

    /// What must be true now.
    fn check(&self) -> Result<(), String> {
        self.map.check()?;
        if self.kernel.is_changing() {
            return Ok(());
        }
        let mut settled = self.clone();
        settled.map.settle(&mut Asked(&self.kernel));
        settled.map.check()?;
        settled.settle_numbers();
        for (place, mapping) in self.kernel.mapped.iter().enumerate() {
            let registered = mapping.filter(|mapping| mapping.is_registered);
            let held = match settled.map.at(vpn(place)) {
                AtAddress::Page(page) => settled.store.get(&page).copied(),
                AtAddress::Later => return Err(format!("place {place} is in doubt for ever")),
                AtAddress::Unbound if registered.is_none() => {
                    return Err(format!("place {place} is believed, but not registered"));
                }
                AtAddress::Unbound | AtAddress::Unknown => None,
            };
            let expected = registered.and_then(|mapping| mapping.content);
            let is_dropped = held.is_none() && mapping.is_some_and(|mapping| mapping.is_dropping);
            // Where the page table has no mark, stale content is not put.
            let is_unmarked = self.has_marks && expected.is_none() && registered.is_some();
            if held != expected && !is_dropped && !is_unmarked {
                return Err(format!("place {place} has {held:?}, should have {expected:?}"));
            }
        }
        Ok(())
    }

    /// All that decides what can happen from here, without the names of pages.
    fn key(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        let content = |page: PageNo| self.store.get(&page).copied();
        (&self.kernel, self.candidate, self.grace).hash(&mut hash);
        self.map.hash(&content, &mut hash);
        hash.finish()
    }
}

/// Plays everything that can happen with up to `calls_max` calls of each thread; returns how many
/// states there were.
///
/// # Panics
/// With the history, if something is wrong.
fn play(calls_max: usize, has_marks: bool) -> usize {
    let mut seen = HashSet::new();
    // The shortest histories first.
    let mut open = VecDeque::from([(World::new(has_marks), Vec::new())]);
    while let Some((world, history)) = open.pop_front() {
        for step in world.steps(calls_max) {
            let mut next = world.clone();
            next.take(step);
            if !seen.insert(next.key()) {
                continue;
            }
            let mut history = history.clone();
            history.push(step);
            if let Err(what) = next.check() {
                panic!("{what} after {history:?}");
            }
            open.push_back((next, history));
        }
    }
    seen.len()
}

fn play_all(has_marks: bool) {
    let states = play(2, has_marks);
    println!("{states} states");
    assert!(states > 100_000, "{states} states: the model does not move");
}

#[test]
fn every_order_of_two_calls_each_with_marks() {
    play_all(true);
}

#[test]
fn every_order_of_two_calls_each_without_marks() {
    play_all(false);
}
