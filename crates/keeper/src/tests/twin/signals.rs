//! Guests without a userfaultfd: touches that are refused, and calls between two letters, step by
//! step, as a gate makes them.
//!
//! Invariants: what is out raises a signal, whatever becomes of its mapping: it has a guard, which
//! outlives the removal of content, or is shut. Memory that was never touched is filled by nobody.
//! What the keeper calls a mistake was not mapped at some moment since it was touched.
//! Not here: letters (`gate`), threads (`world`), what the agent does (`super`).

use super::births::About;
use super::world::{Content, State, Step};
use crate::guest::agent::{Leaving, Moved};
use overspill_agent::Barrier;
use overspill_agent::gate::{access, letter};
use overspill_base::PAGE_SIZE;
use overspill_guest::Vpn;
use rangemap::RangeMap;
use rustix::io::Errno;
use std::ops::Range;

/// What the kernel does in a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// It removes the content of a page.
    Empty(Vpn),
    Unmap(Range<Vpn>),
    Relocate(Range<Vpn>),
}

/// Where a range is, and how many bytes.
fn words(place: &Range<Vpn>) -> [u64; 2] {
    [place.start.address(), Vpn::pages(place) * PAGE_SIZE as u64]
}

fn letter(kind: u32, [first, second, third]: [u64; 3]) -> [Step; 2] {
    let about = About::Memory(kind, [first, second, third, 0]);
    [Step::Write(about), Step::AwaitAnswer(about)]
}

/// What is done between the letters of a change.
fn changing(steps: impl IntoIterator<Item = Step>, protects: bool) -> Vec<Step> {
    let begin = letter(letter::CHANGE, [0; 3]);
    let end = letter(letter::CHANGED, [u64::from(protects), 0, 0]);
    begin.into_iter().chain(steps).chain(end).collect()
}

pub(super) fn remove(place: &Range<Vpn>) -> Vec<Step> {
    let [start, bytes] = words(place);
    let told = letter(letter::REMOVED, [start, bytes, 0]);
    changing(Vpn::each(place).map(|at| Step::Call(Call::Empty(at))).chain(told), false)
}

pub(super) fn unmap(place: Range<Vpn>) -> Vec<Step> {
    changing([Step::Call(Call::Unmap(place))], false)
}

/// Where nobody knows what is shut but the keeper, it is asked.
pub(super) fn relocate(from: Range<Vpn>, barrier: Barrier) -> Vec<Step> {
    let [start, bytes] = words(&from);
    let look = letter(letter::LOOK, [start, bytes, 0]);
    let looks = look.into_iter().filter(|_| barrier == Barrier::NoAccess);
    changing(looks.chain([Step::Call(Call::Relocate(from))]), true)
}

impl State {
    /// What the kernel does in a call; returns what is to be told of it.
    pub(super) fn call(&mut self, space: usize, call: &Call) -> Vec<Step> {
        match call {
            Call::Empty(at) => {
                let space = &mut self.spaces[space];
                space.pages.remove(at);
                space.truth.remove(at);
                Vec::new()
            }
            Call::Unmap(place) => {
                self.spaces[space].unmap(place);
                self.note_unmapped(space, place);
                let [start, bytes] = words(place);
                letter(letter::UNMAPPED, [start, bytes, 0]).into()
            }
            Call::Relocate(from) => self.relocate_by_call(space, from),
        }
    }

    /// It fails where not all of that is mapped any more.
    fn relocate_by_call(&mut self, space: usize, from: &Range<Vpn>) -> Vec<Step> {
        let is_mapped = self.spaces[space].is_mapped(from);
        let Some(to) = self.free_place(space, Vpn::pages(from)).filter(|_| is_mapped) else {
            return Vec::new();
        };
        self.spaces[space].relocate(from, to.start);
        self.note_unmapped(space, from);
        let [start, bytes] = words(from);
        let moved = letter(letter::REMAPPED, [start, to.start.address(), bytes]);
        moved.into_iter().chain(letter(letter::UNMAPPED, [start, bytes, 0])).collect()
    }

    /// Who waits there may be told that it is a mistake.
    fn note_unmapped(&mut self, space: usize, place: &Range<Vpn>) {
        for thread in self.threads.iter_mut().filter(|thread| thread.space == space) {
            let is_there =
                |step: &Step| matches!(step, Step::Touch { at, .. } if place.contains(at));
            thread.was_unmapped |= thread.steps.get(1).is_some_and(is_there);
        }
    }

    /// True if nothing keeps a touch away; else that is told.
    pub(super) fn may_touch(&mut self, number: usize, at: Vpn, write: Option<Content>) -> bool {
        let space = &self.spaces[self.threads[number].space];
        let is_mapped = space.mappings.contains_key(&at);
        if space.is_free || is_mapped && !space.marks.contains(&at) {
            return true;
        }
        let kind = if write.is_some() { access::WRITE } else { 0 };
        let sent = self.gates.send(space.page, letter::FAULT, [at.address(), kind, 0, 0]);
        let thread = &mut self.threads[number];
        (thread.sent, thread.was_unmapped) = (Some(sent), !is_mapped);
        thread.steps.push_front(Step::AwaitTouch);
        false
    }

    /// Touches again what was refused, unless that was a mistake.
    pub(super) fn touch_again(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        let sent = thread.sent.expect("it was sent");
        let answer = self.gates.take_answer(sent).expect("it is answered");
        thread.steps.pop_front();
        if answer < 0 {
            assert!(thread.was_unmapped, "{:?} is called a mistake", thread.steps.front());
            thread.steps.pop_front();
        }
    }

    /// What the keeper says of a place is so.
    pub(super) fn check_look(&self, space: usize, [start, bytes]: [u64; 2], answer: i64) {
        let space = &self.spaces[space];
        let all = Vpn::range(&(start..start + bytes));
        let is_shut = space.marks.contains(&all.start);
        let alike = Vpn::each(&all).take_while(|at| space.marks.contains(at) == is_shut).count();
        let expected = (alike * PAGE_SIZE) as i64 | i64::from(is_shut);
        assert_eq!(answer, expected, "what is alike from {:?} on", all.start);
    }
}

/// What became of a run of which all goes or nothing.
pub(super) fn done(run: &Leaving, result: Result<(), Errno>) -> Moved {
    let pages = if result.is_ok() { Vpn::pages(&run.place) } else { 0 };
    Moved { pages, stopped: result.err() }
}

/// The parts of a mapping, with whether they are shut.
pub(super) fn parts(state: &State, space: usize, place: &Range<Vpn>) -> Vec<(Range<Vpn>, bool)> {
    let shuts = state.barrier() == Some(Barrier::NoAccess);
    let is_shut = |at: Vpn| shuts && state.spaces[space].marks.contains(&at);
    let parts: RangeMap<Vpn, bool> = Vpn::each(place).map(|at| (at.run(1), is_shut(at))).collect();
    parts.into_iter().collect()
}
