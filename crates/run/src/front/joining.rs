//! Who joins the guests, and who cannot.
//!
//! Owns: the end of an attach. Who has stopped is attached to and given to the keeper, or refused:
//! then it goes on as it was, and is tried again or said to be outside the limit.
//! Invariant: who is let go stands in the keeper's lists with all that it has.
//! Not here: whom to stop (`looking`), the steps of an attach (`crate::attaching`), who is tried
//! again (`crate::refusals`).

use super::Front;
use super::guests::Hindrance;
use crate::attaching::{self, AttachingError};
use crate::family::kill;
use crate::guest::Guest;
use crate::keeper::KeeperError;
use crate::stopping::Stopped;
use crate::watch::Watched;
use overspill_guest::{Held, Kernel};
use overspill_keeper::GuestParts;
use rustix::process::Pid;
use std::time::Instant;

/// Processes attached to between two looks: each takes 1 to 5 ms.
const ATTACHED_AT_A_TIME: usize = 2;

impl Front {
    /// Attaches to some of those that have stopped.
    pub(super) fn attach_stopped(&mut self) {
        for (pid, stopped) in self.stops.stopping.take(ATTACHED_AT_A_TIME) {
            self.attach(pid, stopped);
        }
    }

    pub(super) fn may_attach(&self, pid: Pid, process: &Watched) -> bool {
        !self.guests.has(pid)
            && !self.guests.is_ending(pid)
            && !self.stops.stopping.has(pid)
            && self.family.may_try(pid, process)
    }

    fn attach(&mut self, pid: Pid, (stopped, since): Stopped) {
        let newcomer = match self.guests.newcomer(pid, stopped.is_ok()) {
            Ok(newcomer) => newcomer,
            Err(Hindrance::Untold) => {
                // A child whose birth is under way, which it has to be let go for.
                drop(stopped);
                return self.refuse(pid, &AttachingError::Untold(pid));
            }
            Err(Hindrance::Replaced(number)) => {
                // It is one like others.
                self.guests.forget_child(number);
                self.keeper.ended(number);
                return;
            }
        };
        let taken = stopped.map_err(AttachingError::from).and_then(|mut held| {
            let machine = (&self.ground, self.room.memory().pages_floor());
            let (guest, parts) = attaching::take(&mut held, machine, newcomer)?;
            Ok((held, guest, parts))
        });
        match taken {
            Ok((held, guest, parts)) => self.add((held, since), guest, parts),
            Err(error) => self.refuse(pid, &error),
        }
    }

    /// Notes that a process could not be attached to; says so when it is not tried again.
    pub(super) fn refuse(&mut self, pid: Pid, error: &AttachingError) {
        if let Some(line) = self.family.refuse(pid, error, !self.guests.have_never_been()) {
            self.keeper.say(&line);
        }
    }

    /// The keeper lets it go when all that it has is in the lists.
    fn add(
        &mut self,
        (held, since): (Held<'static, Kernel>, Instant),
        guest: Guest,
        parts: GuestParts,
    ) {
        let (pid, number, gate) = (held.pid(), guest.number, guest.gate);
        self.guests.add(pid, guest);
        self.family.refusals.is_inside(pid);
        self.stops.holding.keep(number, held, gate, since);
        self.leave_room();
        self.keeper.add(number, parts);
    }

    /// What the keeper says of one that was given to it.
    pub(super) fn added(&mut self, number: u64, added: Result<(), KeeperError>) {
        match added {
            Ok(()) => self.keeper.find_holder(),
            // What it has may be in its own agent's way, or it has changed it: others go on.
            Err(KeeperError::Refused(why)) => {
                // It may have ended meanwhile.
                if let Some(pid) = self.guests.pid_of(number) {
                    let line = format!("process {pid} is ended, as it cannot be paged: {why}");
                    self.keeper.say(&line);
                    kill(pid);
                    self.stops.holding.forget(number);
                }
            }
            Err(error) => {
                // If it has ended, that is why.
                self.look_at_keeper();
                self.fail(&format!("a process cannot be paged, so the run is ended: {error}"));
            }
        }
    }
}
