//! Attaching to a process, and letting it go.
//!
//! Invariants: what is out of a process that is let go holds nothing that it could miss. Nobody is
//! told of what it does from then on.
//! Not here: what an attach hands over (`super`).

use super::world::{State, Step, Telling};
use overspill_guest::Vpn;
use overspill_wire::Descriptor;

impl State {
    /// False while a thread stands in its gate, but where it waits for a letter that can be written
    /// again.
    pub(super) fn may_attach(&self, space: usize) -> bool {
        let mut threads = self.threads.iter().filter(|thread| thread.space == space);
        threads.all(|thread| match thread.steps.front() {
            Some(Step::AwaitAnswer(about)) => about.may_be_written_again(),
            Some(Step::Touch { .. } | Step::AwaitTouch) | None => true,
            Some(_) => self.habits.telling == Telling::Kernel,
        })
    }

    /// Gives a process a gate of its own: who waits for an answer writes again.
    pub(super) fn join_gate(&mut self, space: usize) -> Option<[Descriptor; 2]> {
        if self.habits.telling == Telling::Kernel {
            return None;
        }
        for thread in self.threads.iter_mut().filter(|thread| thread.space == space) {
            match thread.steps.front() {
                Some(Step::AwaitAnswer(about)) => {
                    let again = Step::Write(*about);
                    thread.steps.push_front(again);
                }
                Some(Step::AwaitTouch) => _ = thread.steps.pop_front(),
                _ => {}
            }
        }
        let page = self.gates.add();
        self.spaces[space].page = page;
        Some(self.gates.files(page))
    }

    /// Lets a process go, which has all that it had: whoever waits goes on.
    pub(super) fn detach(&mut self, space: usize) {
        let this = &mut self.spaces[space];
        let lost = this.marks.iter().find(|at| this.truth.contains_key(at));
        assert!(lost.is_none(), "{lost:?} is out of who is let go");
        let mappings: Vec<_> = this.mappings.iter().map(|(place, _)| place.clone()).collect();
        mappings.into_iter().for_each(|place| this.mappings.insert(place, false));
        this.events.clear();
        this.marks.clear();
        (this.is_free, this.is_held) = (true, false);
        let threads = self.threads.iter_mut().filter(|thread| thread.space == space);
        threads.for_each(|thread| thread.was_read = true);
        self.wake(space, &(Vpn(0)..Vpn(u64::MAX)));
    }
}
