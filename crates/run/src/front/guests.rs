//! The guests of a run, and the children that they have forked.
//!
//! Owns: which process has which number with the keeper, from the message of its fork, or its
//! attach, to its end.
//! Invariants: a number is given once. Of a child that is not attached to it may be known which
//! process it is, and is not known to be another's then.
//! Not here: what a guest is (`crate::guest`), finding a child (`crate::births`).

use crate::attaching::Newcomer;
use crate::births::{self, Child, Children, LetterFiles};
use crate::cores::Cores;
use crate::guest::{Guest, Leaving};
use crate::watch::{Watched, is_registered};
use overspill_keeper::{Birth, GuestMark, SourceParts};
use rustix::fd::OwnedFd;
use rustix::process::Pid;
use std::collections::HashMap;

/// All guests of a run.
#[derive(Default)]
pub(super) struct Guests {
    all: HashMap<Pid, Guest>,
    /// The last that was given.
    number: u64,
    /// Children that guests have forked, and that are not attached to.
    forked: Children,
    /// Those of which it is known who they are, and not yet that they have their pages: by their
    /// parent's number and that of the fork.
    fetched: HashMap<(u64, u64), Pid>,
    /// What guests' gates write in.
    letters: LetterFiles,
    /// Of those that have ended.
    pub(super) cores: Cores,
    /// Those that have ended, of which the keeper is told, by their numbers.
    ending: HashMap<u64, (Pid, Guest)>,
}

/// Why a process that has stopped is not to be attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hindrance {
    /// It was this child, and executes another program by now.
    Replaced(u64),
    /// It has a gate, and nobody has told of it.
    Untold,
}

impl Guests {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn has(&self, pid: Pid) -> bool {
        self.all.contains_key(&pid)
    }

    pub(super) fn get(&self, pid: Pid) -> Option<&Guest> {
        self.all.get(&pid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Pid, &Guest)> {
        self.all.iter().map(|(pid, guest)| (*pid, guest))
    }

    pub(super) fn pids(&self) -> Vec<Pid> {
        self.all.keys().copied().collect()
    }

    /// The guest that a process is.
    ///
    /// # Panics
    /// If it is none.
    pub(super) fn of(&mut self, pid: Pid) -> &mut Guest {
        self.all.get_mut(&pid).expect("it is there")
    }

    /// Which process the guest of a number is.
    pub(super) fn pid_of(&self, number: u64) -> Option<Pid> {
        self.iter().find(|(_, guest)| guest.number == number).map(|(pid, _)| pid)
    }

    /// True of one that stands still while the keeper lets it go.
    pub(super) fn is_going(&self, number: u64) -> bool {
        let mut all = self.all.values();
        all.any(|guest| guest.number == number && guest.leaving == Leaving::Going)
    }

    /// By which the keeper's record knows each.
    pub(super) fn marks(&self) -> HashMap<GuestMark, i32> {
        self.iter().map(|(pid, guest)| (guest.number.into(), pid.as_raw_pid())).collect()
    }

    /// True of the agent of one, or of one that has ended.
    pub(super) fn is_agent(&self, pid: Pid) -> bool {
        let ending = self.ending.values().map(|(_, guest)| guest);
        let mut all = self.all.values().chain(self.cores.guests()).chain(ending);
        all.any(|guest| guest.agent.pid == pid)
    }

    /// True if a process is one, or a child of one.
    pub(super) fn is_paged(&self, pid: Pid) -> bool {
        self.has(pid) || self.is_child(pid)
    }

    /// True if it is a child that a guest has forked.
    pub(super) fn is_child(&self, pid: Pid) -> bool {
        is_registered(pid) || births::number_of(&self.forked, pid).is_some()
    }

    /// True if there are children that are not attached to.
    pub(super) fn have_children(&self) -> bool {
        !self.forked.is_empty()
    }

    /// True if the child of this number is not attached to.
    pub(super) fn have_child(&self, number: u64) -> bool {
        self.forked.contains_key(&number)
    }

    /// True if there has been none, so that no process can be the child of one.
    pub(super) fn have_never_been(&self) -> bool {
        self.number == 0 && self.forked.is_empty()
    }

    /// True if nothing of any is left.
    pub(super) fn are_over(&self) -> bool {
        self.all.is_empty() && self.cores.is_idle() && self.ending.is_empty()
    }

    /// Takes note of a child of which the keeper tells.
    pub(super) fn note_fork(&mut self, child: u64, source: SourceParts, birth: Option<(u64, u64)>) {
        let fetched = birth.and_then(|birth| self.fetched.remove(&birth));
        self.forked.insert(child, Child::new(source, fetched));
    }

    /// What tells of a child that a guest has made, of the processes of a run.
    pub(super) fn fetch(
        &mut self,
        birth: &Birth,
        mut family: HashMap<Pid, Watched>,
    ) -> Option<OwnedFd> {
        let forked = || self.forked.get(&birth.parent).and_then(Child::process);
        let parent = self.pid_of(birth.parent).or_else(forked)?;
        family.retain(|pid, _| !self.is_known(*pid));
        let (fetched, pid) = births::fetch(birth, parent, &family)?;
        self.fetched.insert((birth.parent, birth.fork), pid);
        Some(fetched)
    }

    /// True if it is known which guest or child of one a process is.
    fn is_known(&self, pid: Pid) -> bool {
        let mut children = self.forked.values().filter_map(Child::process);
        self.has(pid)
            || children.any(|child| child == pid)
            || self.fetched.values().any(|child| *child == pid)
    }

    /// Forgets children that have ended before they had their pages.
    pub(super) fn look(&mut self, family: &HashMap<Pid, Watched>) {
        self.fetched.retain(|_, pid| family.contains_key(pid));
    }

    /// Forgets a child that is not attached to; true if there was one.
    pub(super) fn forget_child(&mut self, number: u64) -> bool {
        self.forked.remove(&number).is_some()
    }

    /// As what a process is attached to that was to stop.
    ///
    /// # Errors
    /// [`Hindrance`].
    pub(super) fn newcomer(&self, pid: Pid, has_stopped: bool) -> Result<Newcomer<'_>, Hindrance> {
        let is_gated = self.letters.are_of(pid);
        match births::number_of(&self.forked, pid) {
            Some(number) if has_stopped && !is_gated => Err(Hindrance::Replaced(number)),
            Some(number) => Ok(Newcomer::Born(number)),
            None if is_registered(pid) => Ok(Newcomer::Forked(&self.forked)),
            None if is_gated => Err(Hindrance::Untold),
            None => Ok(Newcomer::New(self.number + 1)),
        }
    }

    /// Takes one that was attached to.
    pub(super) fn add(&mut self, pid: Pid, guest: Guest) {
        if !self.forget_child(guest.number) {
            self.number = guest.number;
        }
        let file = guest.letters;
        self.all.insert(pid, guest);
        if let Some(file) = file {
            let is_living = |file: &_| self.all.values().any(|it| it.letters == Some(*file));
            self.letters.add(file, is_living);
        }
        self.cores.note(pid);
    }

    /// Takes one out, which has ended or is let go.
    pub(super) fn remove(&mut self, pid: Pid) -> Guest {
        self.all.remove(&pid).expect("it is there")
    }

    /// Keeps one that has ended until the keeper knows of that.
    pub(super) fn end(&mut self, pid: Pid, guest: Guest) {
        self.ending.insert(guest.number, (pid, guest));
    }

    /// True of a process that was one of these, and may execute another program.
    pub(super) fn is_ending(&self, pid: Pid) -> bool {
        self.ending.values().any(|(ending, _)| *ending == pid)
    }

    /// Takes one of which the keeper knows that it has ended.
    pub(super) fn take_ended(&mut self, number: u64) -> Option<Guest> {
        self.ending.remove(&number).map(|(_, guest)| guest)
    }

    /// Forgets children that one was about to have.
    pub(super) fn forget_births(&mut self, parent: u64) {
        self.fetched.retain(|(of, _), _| *of != parent);
    }
}
