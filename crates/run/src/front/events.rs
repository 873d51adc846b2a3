//! What the keeper says: its answers, and what it wants of the front.
//!
//! Owns: following it, in the order in which it is said.
//! Not here: what an answer means for who has asked (`joining`, `leaving`, `ending`, `traced`), how
//! threads are held (`crate::holding`), how a child is found (`crate::births`).

use super::Front;
use crate::keeper::{Bring, Event, Purpose};
use overspill_keeper::Wanted;

impl Front {
    /// Follows what the keeper has said since the last time.
    pub(super) fn follow_keeper(&mut self) {
        for event in self.keeper.take_events() {
            match event {
                Event::Wanted(wanted) => self.do_wanted(wanted),
                Event::Changed(areas) => self.changed = Some(areas),
                Event::Added(number, added) => self.added(number, added),
                Event::Ended(number) => self.ended(number),
                Event::Brought(Bring { number, from, purpose }, rest) => match purpose {
                    Purpose::Leaving => self.came_back(number, from, rest),
                    Purpose::Traced => self.came_for_tracer(number, rest),
                },
                Event::LetGo(number, is_gone) => self.let_go_of(number, is_gone),
            }
        }
    }

    fn do_wanted(&mut self, wanted: Wanted) {
        match wanted {
            Wanted::Hold(number) => self.hold(number),
            Wanted::Freeze(number) => {
                self.hold(number);
                self.stops.holding.freeze(number);
                self.keeper.frozen(number);
            }
            Wanted::Still(number) => {
                self.hold(number);
                self.stops.holding.ask(number);
            }
            // One that is about to be let go stands still until that is known.
            Wanted::Release(number) if self.guests.is_going(number) => {}
            Wanted::Release(number) => self.stops.holding.release(number),
            Wanted::Attach { child, source, birth } => {
                self.guests.note_fork(child, source, birth);
                self.family.refusals.note_message();
            }
            Wanted::Forget(child) => _ = self.guests.forget_child(child),
            Wanted::LetGo(number) => self.departing.push(number),
            Wanted::Fetch(birth) => {
                let fetched = self.guests.fetch(&birth, self.all());
                self.keeper.fetched(birth, fetched);
            }
        }
    }

    /// Tells the keeper of guests that stand still by now.
    pub(super) fn poll_held(&mut self) {
        self.stops.holding.poll();
        for (number, still) in self.stops.holding.answers() {
            self.keeper.stands(number, still);
        }
    }

    fn hold(&mut self, number: u64) {
        if let Some(pid) = self.guests.pid_of(number) {
            let gate = self.guests.of(pid).gate;
            self.stops.holding.hold(number, pid, gate);
        }
    }
}
