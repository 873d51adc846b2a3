//! Ends: of guests, of the keeper, of the run.
//!
//! Owns: what follows from them, and what is known of a run at its end.
//! Invariants: no guest without a keeper: if that ends, all processes of the run are killed. What a
//! guest's end leaves, an agent and whoever else has the guest's memory, ends with it.
//! Not here: letting guests go, who go on (`leaving`).

use super::Front;
use super::family::All;
use crate::family::kill;
use crate::guest::{Guest, Leaving};
use crate::refusals::OutsideProcess;
use crate::same::have_same_memory;
use overspill_base::Bytes;
use overspill_keeper::{AreaState, KeeperState};
use rustix::process::Pid;
use std::time::Duration;

/// How long the keeper may take to know of the last ends.
const KNOWN_WAIT: Duration = Duration::from_secs(30);

/// What is known of a run at its end.
#[derive(Debug, Default)]
pub struct RunEnd {
    /// Its swap areas.
    pub areas: Vec<AreaState>,
    /// How things were in its keeper.
    pub keeper: KeeperState,
    /// The most memory that its processes had together, as far as the limit counts it.
    pub held_most: Bytes,
    /// The most that they held above the limit for longer than a moment.
    pub excess_most: Bytes,
    /// Its processes that were outside the limit.
    pub outside: Vec<OutsideProcess>,
    /// True if it was ended because the keeper had.
    pub has_failed: bool,
}

impl Front {
    /// Ends the keeper. No process of the run is left.
    pub fn end(mut self) -> RunEnd {
        // Its holder may have ended all guests before that was seen here.
        self.look_at_keeper();
        self.end_guests(&All::new());
        // It is noticed by its end if it does not answer.
        let _ = self.keeper.wait(KNOWN_WAIT);
        self.follow_keeper();
        let (areas, keeper) = match self.has_failed {
            true => {
                self.keeper.kill();
                Default::default()
            }
            false => self.keeper.end().unwrap_or_default(),
        };
        RunEnd {
            areas,
            keeper,
            held_most: self.room.held_most(),
            excess_most: self.room.excess().most(),
            outside: self.family.refusals.outside(),
            has_failed: self.has_failed,
        }
    }

    /// Without a keeper the run ends.
    pub(super) fn look_at_keeper(&mut self) {
        if self.keeper.has_ended() {
            self.fail(
                "the keeper has ended, so the run is ended: no page that is out can come back",
            );
        }
    }

    /// Ends the run, and says why: the first reason.
    pub(super) fn fail(&mut self, line: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            self.keeper.say(line);
        }
    }

    /// Lets go the guests that have ended, or execute another program. Those that left cores stay
    /// until these are complete.
    pub(super) fn end_guests(&mut self, all: &All) {
        self.guests.look(all);
        let pids = self.guests.pids();
        self.guests.cores.look(&pids);
        for pid in pids {
            let guest = self.guests.of(pid);
            if guest.has_left(pid) {
                let guest = self.guests.remove(pid);
                self.stops.holding.forget(guest.number);
                let begun = self.guests.cores.begin(pid, guest, |line| self.keeper.say(line));
                begun.into_iter().for_each(|guest| self.forget(pid, guest, all));
            } else if guest.leaving != Leaving::LetGo && guest.lacks_agent() {
                if guest.is_to_be_told() {
                    let line = format!("process {pid} is ended: its agent was killed");
                    self.keeper.say(&line);
                }
                kill(pid);
                self.stops.holding.forget(guest.number);
            }
        }
        for (pid, guest) in self.guests.cores.filled(|line| self.keeper.say(line)) {
            self.forget(pid, guest, all);
        }
    }

    /// Without its agent and the keeper missing pages would read as zeros: so who else has the
    /// guest's memory ends first.
    fn forget(&mut self, pid: Pid, guest: Guest, all: &All) {
        let shares = |other: &Pid| have_same_memory(*other, guest.agent.pid) == Some(true);
        all.keys().copied().filter(|&other| other != pid).filter(shares).for_each(kill);
        self.guests.forget_births(guest.number);
        self.keeper.ended(guest.number);
        self.guests.end(pid, guest);
    }

    /// The keeper does nothing for a guest any more, and ends a process whose agent is gone: now
    /// its agent may end.
    pub(super) fn ended(&mut self, number: u64) {
        self.guests.take_ended(number).iter().for_each(Guest::end_agent);
    }
}
