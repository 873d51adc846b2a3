//! What the keeper wants of the front: threads held, children found, guests let go.
//!
//! Owns: doing it, in the order in which it is wanted.
//! Not here: how threads are held (`crate::holding`), how a child is found (`crate::births`).

use super::Front;
use overspill_keeper::Wanted;

impl Front {
    /// Does what the keeper wants of guests' threads.
    pub(super) fn do_wanted(&mut self) {
        for wanted in self.keeper.take_wanted() {
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
