//! Who joins the guests, and who cannot.
//!
//! Owns: the end of an attach. Who has stopped is attached to and given to the keeper, or refused:
//! then it goes on as it was, and is tried again or said to be outside the limit.
//! Invariant: who is let go stands in the keeper's lists with all that it has.
//! Not here: whom to stop (`looking`), the steps of an attach (`crate::attaching`), who is tried
//! again (`crate::refusals`).

use super::{ATTACHED_AT_A_TIME, Front};
use crate::attaching::{self, AttachingError, Newcomer};
use crate::births;
use crate::family::kill;
use crate::guest::Guest;
use crate::keeper::KeeperError;
use crate::refusals::OutsideProcess;
use crate::same::has_memory_of_its_own;
use crate::stopping::Stopped;
use crate::watch::{self, Watched, is_registered};
use overspill_base::Bytes;
use overspill_guest::{AttachError, Held, Kernel};
use overspill_keeper::GuestParts;
use rustix::process::Pid;
use std::time::Instant;

impl Front {
    /// Attaches to some of those that have stopped.
    pub(super) fn attach_stopped(&mut self) {
        for (pid, stopped) in self.stopping.take(ATTACHED_AT_A_TIME) {
            self.attach(pid, stopped);
        }
    }

    /// A child that has its parent's memory (vfork) is about to execute something else.
    pub(super) fn may_attach(&self, pid: Pid, process: &Watched) -> bool {
        !self.guests.contains_key(&pid)
            && !self.stopping.has(pid)
            && self.refusals.may_try(pid)
            && process.parent.is_none_or(|parent| has_memory_of_its_own(pid, parent))
    }

    fn attach(&mut self, pid: Pid, (stopped, since): Stopped) {
        let (is_registered, born) = (is_registered(pid), births::number_of(&self.forked, pid));
        let is_gated = self.letters.are_of(pid);
        if !is_registered && born.is_none() && is_gated {
            // A child whose birth is under way, which it has to be let go for.
            drop(stopped);
            return self.refuse(pid, &AttachingError::Untold(pid));
        }
        if let Some(number) = born.filter(|_| stopped.is_ok() && !is_gated) {
            // It executes another program by now, and is one like others.
            self.forked.remove(&number);
            return self.keeper.ended(number);
        }
        let newcomer = match (born, is_registered) {
            (Some(number), _) => Newcomer::Born(number),
            (None, true) => Newcomer::Forked(&self.forked),
            (None, false) => Newcomer::New(self.number + 1),
        };
        let taken = stopped.map_err(AttachingError::from).and_then(|mut held| {
            let machine = (&self.ground, self.memory.pages_floor());
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
        let is_registered = matches!(error, AttachingError::Attach(AttachError::NoFork { .. }));
        if is_registered && self.has_had_no_guest() {
            return self.is_outside(pid, &AttachingError::PagesItself(pid).to_string());
        }
        let process = self.outside_process(pid, error.to_string());
        let line = outside_line(&process);
        if self.refusals.refuse(process, error) {
            self.keeper.say(&line);
        }
    }

    /// Then no process can be the child of one.
    fn has_had_no_guest(&self) -> bool {
        self.number == 0 && self.forked.is_empty()
    }

    /// A process stays outside the limit, which is said.
    pub(super) fn is_outside(&mut self, pid: Pid, why: &str) {
        let process = self.outside_process(pid, why.to_owned());
        self.keeper.say(&outside_line(&process));
        self.refusals.is_outside(process);
    }

    fn outside_process(&self, pid: Pid, why: String) -> OutsideProcess {
        let memory_max = Bytes::of_pages(self.seen.get(&pid).map_or(0, |seen| seen.last.pages));
        OutsideProcess { pid, name: watch::name_of(pid), why, memory_max }
    }

    /// The keeper lets it go when all that it has is in the lists.
    fn add(
        &mut self,
        (held, since): (Held<'static, Kernel>, Instant),
        guest: Guest,
        parts: GuestParts,
    ) {
        let (pid, number) = (held.pid(), guest.number);
        if self.forked.remove(&number).is_none() {
            self.number = number;
        }
        let gate = guest.gate;
        let file = guest.letters;
        self.guests.insert(pid, guest);
        if let Some(file) = file {
            let is_living = |file: &_| self.guests.values().any(|it| it.letters == Some(*file));
            self.letters.add(file, is_living);
        }
        self.refusals.is_inside(pid);
        self.cores.note(pid);
        self.holding.keep(number, held, gate, since);
        self.leave_room();
        match self.keeper.add(number, parts) {
            Ok(()) => {}
            // What it has may be in its own agent's way, or it has changed it: others go on.
            Err(KeeperError::Refused(why)) => {
                self.keeper.say(&format!("process {pid} is ended, as it cannot be paged: {why}"));
                kill(pid);
                self.holding.forget(number);
            }
            Err(error) => {
                // If it has ended, that is why.
                self.look_at_keeper();
                self.fail(&format!("process {pid} cannot be paged, so the run is ended: {error}"));
            }
        }
    }
}

fn outside_line(OutsideProcess { name, why, .. }: &OutsideProcess) -> String {
    format!("{name} is outside the limit: {why}")
}
