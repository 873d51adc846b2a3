//! Forks of which letters tell, step by step, as a gate makes them.
//!
//! Invariants: nobody but who touches pages is in the middle of anything meanwhile: what a child
//! has would be of before or after that. That a child has ended before it had its pages its parent
//! says.
//! Not here: letters (`gate`), threads (`world`).

use super::gate::Sent;
use super::space::Space;
use super::world::{State, Step, Telling, Thread};
use overspill_agent::gate::letter;
use overspill_guest::Vpn;
use std::collections::BTreeSet;

/// What a letter is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// A fork that is to be.
    Fork,
    /// One that was, with the child, if there is one.
    Forked(Option<usize>),
    /// A child that is there.
    Born,
    /// Memory, of a guest without a userfaultfd: which letter, with what.
    Memory(u32, [u64; 4]),
}

impl About {
    /// True of those that are answered when there is an agent, or wait for such.
    pub(super) fn may_be_written_again(self) -> bool {
        matches!(self, Self::Fork | Self::Memory(letter::CHANGE | letter::REMOVED, _))
    }

    /// True of letters about memory alone.
    pub(super) fn is_of_memory(self) -> bool {
        matches!(self, Self::Memory(..))
    }
}

impl State {
    /// While nobody else is in the middle of anything but touches.
    pub(super) fn fork_with_letters(&mut self, space: usize) -> Option<Vec<Step>> {
        let is_call = |step: &Step| !matches!(step, Step::Touch { .. } | Step::AwaitTouch);
        if !self.may_fork(space) || self.is_in(space, is_call) {
            return None;
        }
        let about = About::Fork;
        Some(vec![Step::Write(about), Step::AwaitAnswer(about), Step::Fork])
    }

    /// Makes a child, or fails; both are told of.
    pub(super) fn fork_by_call(&mut self, number: usize) {
        let (space, fork) = (self.threads[number].space, self.threads[number].fork);
        let is_made = self.spaces.len() < self.habits.spaces_max && self.random.u32(0..8) > 0;
        let child = is_made.then_some(self.spaces.len());
        if let Some(child) = child {
            let parent = &self.spaces[space];
            let mappings = parent.mappings.iter().map(|(place, _)| (place.clone(), false));
            let born = Space {
                mappings: mappings.collect(),
                pages: parent.pages.clone(),
                marks: self.marks_of_child(space),
                truth: parent.truth.clone(),
                fading: parent.fading.clone(),
                page: parent.page,
                ..Space::new()
            };
            self.spaces.push(born);
            self.add_threads(child, 1, true);
            let thread = self.threads.last_mut().expect("it was just made");
            thread.fork = fork;
            thread.steps.extend([Step::Write(About::Born), Step::AwaitAnswer(About::Born)]);
        }
        let about = About::Forked(child);
        self.threads[number].steps.extend([Step::Write(about), Step::AwaitAnswer(about)]);
    }

    /// What keeps touches away is the child's, too, if that is not the kernel's for who has asked.
    fn marks_of_child(&self, parent: usize) -> BTreeSet<Vpn> {
        match self.habits.telling {
            Telling::Signals(_) => self.spaces[parent].marks.clone(),
            Telling::Kernel | Telling::Letters => BTreeSet::new(),
        }
    }

    pub(super) fn write(&self, number: usize, about: About) -> Sent {
        let Thread { space, fork, .. } = &self.threads[number];
        let (kind, arguments) = match about {
            About::Fork => (letter::FORK, [0; 4]),
            About::Forked(child) => {
                (letter::FORKED, [*fork, child.map_or(0, |child| child as u64 + 1), 0, 0])
            }
            About::Born => (letter::BORN, [*fork, *space as u64 + 1, 0, 0]),
            About::Memory(kind, arguments) => (kind, arguments),
        };
        self.gates.send(self.spaces[*space].page, kind, arguments)
    }

    pub(super) fn is_about_dead(&self, about: About) -> bool {
        matches!(about, About::Forked(Some(child)) if self.spaces[child].has_ended)
    }

    /// True if the answer is there, and what follows from it done. That a child has ended before
    /// nobody else would say.
    pub(super) fn take_answer(&mut self, number: usize, about: About) -> bool {
        let thread = &self.threads[number];
        let (space, sent) = (thread.space, thread.sent.expect("it was sent"));
        let Some(answer) = self.gates.take_answer(sent) else {
            self.threads[number].also_sent = Some(self.write(number, About::Forked(None)));
            return false;
        };
        if let Some(also) = self.threads[number].also_sent.take() {
            // It is answered at once.
            assert_eq!(self.gates.take_answer(also), Some(0));
        }
        match about {
            About::Fork if answer <= 0 => self.threads[number].steps.clear(),
            About::Fork => self.threads[number].fork = answer as u64,
            About::Forked(Some(child)) if answer < 0 => self.end(child),
            About::Forked(_) => {}
            About::Born if answer <= 0 => self.end(space),
            About::Born => self.spaces[space].page.number = answer as usize - 1,
            About::Memory(letter::LOOK, [start, bytes, ..]) => {
                self.check_look(space, [start, bytes], answer);
            }
            About::Memory(..) => assert_eq!(answer, 0),
        }
        true
    }
}
