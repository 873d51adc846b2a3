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
use crate::keeper::{Bring, KeeperError, Purpose};
use overspill_base::Bytes;
use overspill_guest::{Vpn, can_open, detach, open};
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// How long nothing of a guest may come back. Forked children may have to be attached to first,
/// which have taken all room there is.
const STUCK_WAIT: Duration = Duration::from_secs(10);

/// For how long it counts what was out.
const MOMENT: Duration = Duration::from_millis(200);

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
    /// the limit is set again. `None` if it is not known yet whether memory has room for them: it
    /// is to be asked again after the next turn.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was changed.
    pub fn let_go(&mut self) -> Option<Result<(), NoRoom>> {
        let has_room = self.check_room()?;
        if has_room.is_ok() {
            self.resting.begin_again();
            self.detaching = Detaching::ForGood;
        }
        Some(has_room)
    }

    /// Looks whether memory has room for all that was out a moment ago; `None` if that is not known
    /// yet.
    pub(super) fn check_room(&mut self) -> Option<Result<(), NoRoom>> {
        let moment = Instant::now().checked_sub(MOMENT)?;
        let (areas, _) = self.keeper.state_since(moment)?;
        let out = Bytes(areas.iter().map(|area| area.used.0).sum());
        Some(match (self.memory_free)() {
            Some(free) if out > free => Err(NoRoom { out, free }),
            _ => Ok(()),
        })
    }

    /// True while guests are let go.
    pub fn lets_go(&self) -> bool {
        self.detaching == Detaching::ForGood && !self.is_without_guests()
    }

    /// True if all were let go.
    pub fn has_let_go(&self) -> bool {
        self.detaching == Detaching::ForGood && self.is_without_guests()
    }

    pub(super) fn is_without_guests(&self) -> bool {
        self.guests.are_over()
            && !self.guests.have_children()
            && self.stops.stopping.since().is_none()
    }

    /// Goes on with each guest; returns how long to wait before the next turn.
    pub(super) fn let_guests_go(&mut self) -> Duration {
        if self.is_without_guests() {
            return FARTHEST_INTERVAL;
        }
        self.guests.pids().into_iter().for_each(|pid| self.go_on_with(pid));
        STOPPING_INTERVAL
    }

    /// Goes on with those that are about to filter their calls. Forked children among them are
    /// guests first.
    pub(super) fn let_departing_go(&mut self) {
        let Self { guests, departing, .. } = self;
        departing.retain(|it| guests.pid_of(*it).is_some() || guests.have_child(*it));
        let is_leaving =
            |guest: &Guest| guest.leaving == Leaving::LetGo || departing.contains(&guest.number);
        let leaving = guests.iter().filter(|(_, guest)| is_leaving(guest));
        let leaving: Vec<Pid> = leaving.map(|(pid, _)| pid).collect();
        leaving.into_iter().for_each(|pid| self.go_on_with(pid));
    }

    fn go_on_with(&mut self, pid: Pid) {
        let guest = self.guests.of(pid);
        let (number, gate) = (guest.number, guest.gate);
        match guest.leaving {
            Leaving::Returning(from) => {
                guest.leaving = Leaving::Asked;
                self.keeper.bring(Bring { number, from, purpose: Purpose::Leaving });
            }
            Leaving::Returned | Leaving::LetGo => {
                self.stops.holding.hold(number, pid, gate);
                if self.stops.holding.is_still(number) {
                    self.let_one_go(pid);
                }
            }
            // The keeper will answer.
            Leaving::Asked | Leaving::Going => {}
        }
    }

    /// Some of a guest has come back, from an address on, or cannot.
    pub(super) fn came_back(
        &mut self,
        number: u64,
        from: Vpn,
        rest: Result<Option<Vpn>, KeeperError>,
    ) {
        let Some(pid) = self.guests.pid_of(number) else { return };
        let guest = self.guests.of(pid);
        let came = rest.and_then(|rest| {
            guest.leaving = rest.map_or(Leaving::Returned, Leaving::Returning);
            note_stuck(guest, rest == Some(from))
        });
        came.unwrap_or_else(|why| self.cannot_leave(pid, &why));
    }

    /// Pages those that are left as before.
    pub(super) fn stay(&mut self) {
        self.resting.begin_again();
        if std::mem::replace(&mut self.detaching, Detaching::No) == Detaching::No {
            return;
        }
        for pid in self.guests.pids() {
            let guest = self.guests.of(pid);
            if !matches!(guest.leaving, Leaving::Going | Leaving::LetGo) {
                self.stops.holding.release(guest.number);
                self.page_on(pid);
            }
        }
    }

    /// Pages one as before of which some was brought back.
    pub(super) fn page_on(&mut self, pid: Pid) {
        let guest = self.guests.of(pid);
        guest.stay();
        self.keeper.stay(guest.number);
    }

    /// Has the keeper let one go whose threads stand still, and the agent when it has.
    fn let_one_go(&mut self, pid: Pid) {
        let guest = self.guests.of(pid);
        if guest.leaving == Leaving::LetGo {
            return self.end_agent_of(pid);
        }
        let number = guest.number;
        let held = self.stops.holding.held(number).expect("it stands still");
        // Nobody would answer a touch that was refused before.
        if guest.gate.is_none_or(|gate| can_open(held, gate).is_ok()) {
            guest.leaving = Leaving::Going;
            self.stops.holding.freeze(number);
            self.keeper.let_go(number);
        }
    }

    /// The keeper has let one go, or cannot.
    pub(super) fn let_go_of(&mut self, number: u64, is_gone: Result<bool, KeeperError>) {
        let Some(pid) = self.guests.pid_of(number) else { return };
        let guest = self.guests.of(pid);
        if matches!(is_gone, Ok(true)) {
            guest.leaving = Leaving::LetGo;
            return self.end_agent_of(pid);
        }
        guest.leaving = Leaving::NOT_BEGUN;
        let stuck = is_gone.and_then(|_| note_stuck(guest, true));
        self.stops.holding.release(number);
        stuck.unwrap_or_else(|why| self.cannot_leave(pid, &why));
    }

    /// Has the agent leave one that the keeper has let go, whose threads go on.
    fn end_agent_of(&mut self, pid: Pid) {
        let guest = self.guests.of(pid);
        let number = guest.number;
        // It may have been killed meanwhile.
        let Some(held) = self.stops.holding.held(number) else { return };
        let opened = guest.gate.is_none_or(|gate| open(held, gate).is_ok());
        if opened {
            guest.gate = None;
        }
        if opened && detach(held, &guest.agent).is_ok() {
            self.guests.remove(pid);
            self.note_departed(pid, number);
        }
        self.stops.holding.forget(number);
    }

    fn note_departed(&mut self, pid: Pid, number: u64) {
        if self.departing.contains(&number) {
            let line = self.family.is_outside(pid, "it filters its system calls");
            self.keeper.say(&line);
        }
    }

    /// All that are left stay, or one ends that could not go on.
    fn cannot_leave(&mut self, pid: Pid, why: &KeeperError) {
        let guest = self.guests.of(pid);
        // Its end is about to be seen.
        if guest.has_left(pid) {
            return;
        }
        let number = guest.number;
        match self.detaching {
            Detaching::No if self.departing.contains(&number) => {
                self.departing.retain(|departing| *departing != number);
                let line = format!("process {pid} is ended: it filters its system calls: {why}");
                self.keeper.say(&line);
                kill(pid);
            }
            // It was told to stay meanwhile.
            Detaching::No => {}
            Detaching::ToRest => self.stay(),
            Detaching::ForGood => {
                self.keeper.say(&format!("process {pid} stays in its limit: {why}"));
                self.stay();
            }
        }
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
