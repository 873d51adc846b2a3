//! Letting guests go: they become processes like others.
//!
//! Owns: the order. Forked children become guests first, for only those can be let go; each guest
//! stands still, has its pages brought back by the keeper, and loses its agent.
//! Invariants: nobody new is told to stop meanwhile. A guest whose pages cannot be brought back is
//! paged on, and with it all that are left. One that the keeper has let go, and whose agent cannot
//! leave now, is tried again: its threads go on in between.
//! Not here: bringing pages back (`overspill_keeper`), the farewell (`overspill_guest::detach`).

use super::{Front, STOPPING_INTERVAL};
use crate::keeper::KeeperError;
use overspill_guest::detach;
use rustix::process::Pid;
use std::time::Duration;

impl Front {
    /// Has all guests become processes like others, turn by turn.
    pub fn let_go(&mut self) {
        self.is_leaving = true;
    }

    /// True while guests are let go.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// True if nobody is paged.
    pub fn has_let_go(&self) -> bool {
        self.guests.is_empty() && self.forked.is_empty() && self.stopping.since().is_none()
    }

    /// Lets go who stands still; returns how long to wait before the next turn.
    pub(super) fn let_guests_go(&mut self) -> Duration {
        let guests: Vec<_> = self.guests.iter().map(|(pid, guest)| (*pid, guest.number)).collect();
        for (pid, number) in guests {
            self.holding.hold(number, pid);
            if self.holding.is_still(number)
                && let Err(why) = self.let_one_go(pid)
            {
                self.keeper.say(&format!("process {pid} stays in its limit: {why}"));
                self.stay();
                break;
            }
        }
        STOPPING_INTERVAL
    }

    /// Pages those that are left as before.
    fn stay(&mut self) {
        self.is_leaving = false;
        let numbers: Vec<_> = self.guests.values().map(|guest| guest.number).collect();
        numbers.into_iter().for_each(|number| self.holding.release(number));
    }

    fn let_one_go(&mut self, pid: Pid) -> Result<(), KeeperError> {
        let guest = self.guests.get_mut(&pid).expect("it is there");
        if !guest.is_let_go {
            self.keeper.let_go(guest.number)?;
            guest.is_let_go = true;
        }
        let number = guest.number;
        let held = self.holding.held(number).expect("it stands still");
        if detach(held, &guest.agent).is_ok() {
            self.guests.remove(&pid);
        }
        self.holding.forget(number);
        Ok(())
    }
}
