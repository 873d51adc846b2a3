//! Letting guests go: they become processes like others.
//!
//! Owns: the order. Forked children become guests first, for only those can be let go. Of each
//! guest the keeper brings most pages back while it goes on; then it stands still, has the rest
//! brought back, and loses its agent.
//! Invariants: nobody new is told to stop meanwhile. A guest whose pages cannot be brought back is
//! paged on, and with it all that are left; the keeper says so soon where something else is to be
//! done first, and that is done in between. One that the keeper has let go, and whose agent cannot
//! leave now, is tried again: its threads go on in between.
//! Not here: bringing pages back (`overspill_keeper`), the farewell (`overspill_guest::detach`).

use super::looking::FARTHEST_INTERVAL;
use super::{Detaching, Front, STOPPING_INTERVAL};
use crate::family::kill;
use crate::guest::{Guest, Leaving};
use crate::keeper::KeeperError;
use overspill_base::Bytes;
use overspill_guest::{can_open, detach, open};
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// How long nothing of a guest may come back. Forked children may have to be attached to first,
/// which have taken all room there is.
const STUCK_WAIT: Duration = Duration::from_secs(10);

/// Memory has no room for what is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{out} are out, and memory has room for {free}: it stays in its limit; free memory, or raise \
     the limit by and by"
)]
pub struct NoRoom {
    out: Bytes,
    free: Bytes,
}

impl Front {
    /// Has all guests become processes like others, turn by turn; none is paged from then on until
    /// the limit is set again.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was changed.
    pub fn let_go(&mut self) -> Result<(), NoRoom> {
        self.check_room()?;
        self.resting.begin_again();
        self.detaching = Detaching::ForGood;
        Ok(())
    }

    /// Looks whether memory has room for all that is out.
    pub(super) fn check_room(&self) -> Result<(), NoRoom> {
        let areas = self.state().map(|(areas, _)| areas).unwrap_or_default();
        let out = Bytes(areas.iter().map(|area| area.used.0).sum());
        match (self.memory_free)() {
            Some(free) if out > free => Err(NoRoom { out, free }),
            _ => Ok(()),
        }
    }

    /// True while guests are let go.
    pub fn lets_go(&self) -> bool {
        self.detaching == Detaching::ForGood && !self.is_without_guests()
    }

    /// True if all were let go.
    pub fn has_let_go(&self) -> bool {
        self.detaching == Detaching::ForGood && self.is_without_guests()
    }

    /// Of a child the keeper may have told while its parent was let go.
    pub(super) fn is_without_guests(&self) -> bool {
        self.guests.are_over()
            && !self.guests.have_children()
            && !self.keeper.wants_something()
            && self.stops.stopping.since().is_none()
    }

    /// Goes on with each guest; returns how long to wait before the next turn.
    pub(super) fn let_guests_go(&mut self) -> Duration {
        if self.is_without_guests() {
            return FARTHEST_INTERVAL;
        }
        for pid in self.guests.pids() {
            if let Err(why) = self.go_on_with(pid)
                // Its end is about to be seen.
                && !self.guests.of(pid).has_left(pid)
            {
                if self.detaching == Detaching::ForGood {
                    self.keeper.say(&format!("process {pid} stays in its limit: {why}"));
                }
                self.stay();
                break;
            }
        }
        STOPPING_INTERVAL
    }

    /// Goes on with those that are about to filter their calls. Forked children among them are
    /// guests first.
    pub(super) fn let_departing_go(&mut self) {
        for number in std::mem::take(&mut self.departing) {
            let Some(pid) = self.guests.pid_of(number) else {
                if self.guests.have_child(number) {
                    self.departing.push(number);
                }
                continue;
            };
            match self.go_on_with(pid) {
                Ok(()) if self.guests.has(pid) => self.departing.push(number),
                Ok(()) => {
                    let line = self.family.is_outside(pid, "it filters its system calls");
                    self.keeper.say(&line);
                }
                Err(_) if self.guests.of(pid).has_left(pid) => {}
                Err(why) => {
                    let line =
                        format!("process {pid} is ended: it filters its system calls: {why}");
                    self.keeper.say(&line);
                    kill(pid);
                }
            }
        }
    }

    fn go_on_with(&mut self, pid: Pid) -> Result<(), KeeperError> {
        let guest = self.guests.of(pid);
        let number = guest.number;
        if let Leaving::Returning(from) = guest.leaving {
            let rest = self.keeper.bring(number, from)?;
            let guest = self.guests.of(pid);
            guest.leaving = rest.map_or(Leaving::Returned, Leaving::Returning);
            return note_stuck(guest, rest == Some(from));
        }
        let gate = guest.gate;
        self.stops.holding.hold(number, pid, gate);
        if self.stops.holding.is_still(number) { self.let_one_go(pid) } else { Ok(()) }
    }

    /// Pages those that are left as before.
    pub(super) fn stay(&mut self) {
        self.resting.begin_again();
        if std::mem::replace(&mut self.detaching, Detaching::No) == Detaching::No {
            return;
        }
        for guest in self.guests.iter_mut().filter(|guest| guest.leaving != Leaving::LetGo) {
            (guest.leaving, guest.stuck) = (Leaving::NOT_BEGUN, None);
            self.keeper.stay(guest.number);
            self.stops.holding.release(guest.number);
        }
    }

    fn let_one_go(&mut self, pid: Pid) -> Result<(), KeeperError> {
        let guest = self.guests.of(pid);
        let number = guest.number;
        let held = self.stops.holding.held(number).expect("it stands still");
        if guest.leaving != Leaving::LetGo {
            // Nobody would answer a touch that was refused before.
            if guest.gate.is_some_and(|gate| can_open(held, gate).is_err()) {
                return Ok(());
            }
            if !self.keeper.let_go(number)? {
                guest.leaving = Leaving::NOT_BEGUN;
                self.stops.holding.release(number);
                return note_stuck(guest, true);
            }
            guest.leaving = Leaving::LetGo;
        }
        let opened = guest.gate.is_none_or(|gate| open(held, gate).is_ok());
        if opened {
            guest.gate = None;
        }
        if opened && detach(held, &guest.agent).is_ok() {
            self.guests.remove(pid);
        }
        self.stops.holding.forget(number);
        Ok(())
    }
}

/// Notes whether something of a guest came back.
///
/// # Errors
/// Nothing has for too long.
fn note_stuck(guest: &mut Guest, is_stuck: bool) -> Result<(), KeeperError> {
    let since = is_stuck.then(|| guest.stuck.unwrap_or_else(Instant::now));
    guest.stuck = since;
    match since {
        Some(since) if since.elapsed() > STUCK_WAIT => Err(KeeperError::NoRoom(STUCK_WAIT)),
        _ => Ok(()),
    }
}
