//! The processes of a run: whose memory is limited, and who belongs to it.
//!
//! Owns: which processes a run has, what they had at the last look and at the first, and who stays
//! outside the limit.
//! Invariants: what is ours is no part of a run. A process that has lost its parent stays a part,
//! and one that has its number later does not become one.
//! Not here: what they hold together (`room`), which of them are guests (`guests`).

use super::guests::Guests;
use crate::attaching::AttachingError;
use crate::family::{kill, reap};
use crate::keeper::KeeperProcess;
use crate::refusals::{OutsideProcess, Refusals};
use crate::same::has_memory_of_its_own;
use crate::watch::{self, Watched, is_running, parent_of, run_time, start_of};
use overspill_base::Bytes;
use overspill_guest::AttachError;
use rustix::process::{Pid, getpid};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a forked child may take to execute another program; longer if it hardly ran, and most
/// if it waits for a CPU: on a busy machine it may not have had its turn.
const CHILD_WAIT: Duration = Duration::from_millis(2);
const CHILD_WAIT_ASLEEP: Duration = Duration::from_millis(20);
const CHILD_WAIT_MOST: Duration = Duration::from_millis(100);
const CHILD_RUN: Duration = Duration::from_millis(1);
/// How long the message of its fork may be on its way.
const MESSAGE_WAIT: Duration = Duration::from_millis(20);

/// Processes by their numbers, with what they have.
pub(super) type All = HashMap<Pid, Watched>;

/// Whose memory is limited.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// That of a program which this process has started.
    Started {
        /// The program.
        program: Pid,
        /// Another child, which has nothing to do with it.
        other: Option<Pid>,
        /// Whether it is alone, but for children that have what it had.
        is_alone: bool,
    },
    /// That of a process which runs already, and of all that descend from it.
    Running(Pid),
}

/// A process of the run, as it was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// What it had a turn ago.
    pub(super) last: Watched,
    /// When it was seen first, and what it had then, in pages.
    since: Instant,
    first_pages: u64,
    /// When it has started, as the kernel tells, where its parent's end may take it out of sight.
    started: Option<u64>,
    /// Whether it is a forked child that is not to be stopped yet.
    is_young: bool,
}

impl Seen {
    fn new(process: Watched, started: Option<u64>) -> Self {
        Self {
            last: process,
            since: Instant::now(),
            first_pages: process.pages,
            started,
            is_young: false,
        }
    }

    /// True if the process of this number is the one that was seen.
    fn is_still(&self, pid: Pid) -> bool {
        self.started.is_some() && start_of(pid) == self.started
    }
}

/// The processes of a run.
pub(super) struct Family {
    subject: Subject,
    /// When a process has started that ran already, which with its number tells it from all others.
    subject_start: Option<u64>,
    /// Those that there were a turn ago.
    seen: HashMap<Pid, Seen>,
    pub(super) refusals: Refusals,
}

impl Family {
    pub(super) fn new(subject: Subject) -> Self {
        let subject_start = match subject {
            Subject::Started { .. } => None,
            Subject::Running(pid) => start_of(pid),
        };
        Self { subject, subject_start, seen: HashMap::new(), refusals: Refusals::default() }
    }

    /// The process that it begins with, if that ran already.
    pub(super) fn running(&self) -> Option<Pid> {
        match self.subject {
            Subject::Started { .. } => None,
            Subject::Running(pid) => Some(pid),
        }
    }

    /// Those that there were a turn ago.
    pub(super) fn seen(&self) -> impl Iterator<Item = (Pid, &Seen)> {
        self.seen.iter().map(|(pid, seen)| (*pid, seen))
    }

    /// All processes of the run by now, without what is ours.
    pub(super) fn all(&self, guests: &Guests, keeper: &KeeperProcess) -> All {
        let is_no_part = |pid| self.is_no_part(pid, guests, keeper);
        match self.subject {
            Subject::Started { program, is_alone, .. } => {
                // Its parent is nobody's concern: it is taken out again.
                let mut all = watch::family([(getpid(), None)], &is_no_part);
                all.remove(&getpid());
                if is_alone {
                    all.retain(|pid, _| *pid == program || guests.is_paged(*pid));
                }
                all
            }
            Subject::Running(first) => self.all_of(first, &is_no_part),
        }
    }

    /// What descends from a process that ran already, and those whose parents have ended since.
    fn all_of(&self, first: Pid, is_no_part: &dyn Fn(Pid) -> bool) -> All {
        let first = Some(first).filter(|first| start_of(*first) == self.subject_start);
        let with_parent = |pid| (pid, parent_of(pid));
        let mut all = watch::family(first.map(with_parent), is_no_part);
        let others = self.seen.iter().filter(|(pid, _)| !all.contains_key(pid));
        let orphans = others.filter(|(pid, seen)| seen.is_still(**pid));
        let orphans: Vec<_> = orphans.map(|(pid, _)| with_parent(*pid)).collect();
        all.extend(watch::family(orphans, is_no_part));
        // One that has ended, and that nobody reaps, has none.
        all.retain(|_, process| process.pages > 0);
        all
    }

    fn is_no_part(&self, pid: Pid, guests: &Guests, keeper: &KeeperProcess) -> bool {
        let is_other = matches!(self.subject, Subject::Started { other, .. } if other == Some(pid));
        // This process may be a descendant of what it watches.
        let is_own = self.running().is_some() && pid == getpid();
        is_other || is_own || keeper.is(pid) || guests.is_agent(pid)
    }

    /// Reaps children of this process that have ended, but the program: orphans of the run.
    pub(super) fn reap_orphans(&self, guests: &Guests, keeper: &KeeperProcess) {
        let is_program =
            |pid| matches!(self.subject, Subject::Started { program, .. } if program == pid);
        let is_orphan = |pid: &Pid| !is_program(*pid) && !self.is_no_part(*pid, guests, keeper);
        watch::children_of(getpid()).into_iter().filter(is_orphan).for_each(reap);
    }

    /// Kills all that would miss a page, and all of a program that was started here.
    pub(super) fn kill(&self, all: All, guests: &Guests) {
        match self.subject {
            Subject::Started { .. } => all.into_keys().for_each(kill),
            Subject::Running(_) => guests.pids().into_iter().for_each(kill),
        }
    }

    /// Notes which processes there are, and since when.
    pub(super) fn note(&mut self, all: &All) {
        let is_of_running = self.running().is_some();
        self.refusals.look(all);
        self.seen.retain(|pid, _| all.contains_key(pid));
        for (&pid, &process) in all {
            let seen = self.seen.entry(pid).or_insert_with(|| {
                // A run that this process has started gets all orphans of it.
                Seen::new(process, is_of_running.then(|| start_of(pid)).flatten())
            });
            (seen.last, seen.is_young) = (process, false);
        }
    }

    /// Notes that a child is not to be stopped yet.
    pub(super) fn note_young(&mut self, pid: Pid) {
        self.seen.entry(pid).and_modify(|seen| seen.is_young = true);
    }

    /// True of a child that was noted so in this turn.
    pub(super) fn is_noted_young(&self, pid: Pid) -> bool {
        self.seen.get(&pid).is_some_and(|seen| seen.is_young)
    }

    /// True if it was seen a moment ago for the first time: the message of its fork may be on its
    /// way.
    pub(super) fn is_new(&self, pid: Pid) -> bool {
        self.age(pid) < MESSAGE_WAIT
    }

    /// True if a child may be about to execute another program, or to ask its parent to trace it,
    /// which the kernel refuses while we do.
    pub(super) fn is_young(&self, pid: Pid) -> bool {
        let age = self.age(pid);
        let hardly_ran = || run_time(pid).is_some_and(|time| time < CHILD_RUN);
        age < CHILD_WAIT
            || age < CHILD_WAIT_ASLEEP && hardly_ran()
            || age < CHILD_WAIT_MOST && hardly_ran() && is_running(pid)
    }

    fn age(&self, pid: Pid) -> Duration {
        self.seen.get(&pid).map_or(Duration::ZERO, |seen| seen.since.elapsed())
    }

    /// What a process had when it was seen first, in pages.
    pub(super) fn first_pages(&self, pid: Pid) -> u64 {
        self.seen.get(&pid).map_or(0, |seen| seen.first_pages)
    }

    /// True if it may be tried to attach to one. A child that has its parent's memory (vfork) is
    /// about to execute something else.
    pub(super) fn may_try(&self, pid: Pid, process: &Watched) -> bool {
        self.refusals.may_try(pid)
            && process.parent.is_none_or(|parent| has_memory_of_its_own(pid, parent))
    }

    /// Notes that a process could not be attached to; returns a line about it when it is not tried
    /// again. `has_guests` is whether it may have come from one.
    pub(super) fn refuse(
        &mut self,
        pid: Pid,
        error: &AttachingError,
        has_guests: bool,
    ) -> Option<String> {
        let is_registered = matches!(error, AttachingError::Attach(AttachError::NoFork { .. }));
        if is_registered && !has_guests {
            return Some(self.is_outside(pid, &AttachingError::PagesItself(pid).to_string()));
        }
        let process = self.outside_process(pid, error.to_string());
        let line = outside_line(&process);
        self.refusals.refuse(process, error).then_some(line)
    }

    /// Notes that a process stays outside the limit; returns a line about it.
    pub(super) fn is_outside(&mut self, pid: Pid, why: &str) -> String {
        let process = self.outside_process(pid, why.to_owned());
        let line = outside_line(&process);
        self.refusals.is_outside(process);
        line
    }

    fn outside_process(&self, pid: Pid, why: String) -> OutsideProcess {
        let memory_max = Bytes::of_pages(self.seen.get(&pid).map_or(0, |seen| seen.last.pages));
        OutsideProcess { pid, name: watch::name_of(pid), why, memory_max }
    }
}

fn outside_line(OutsideProcess { name, why, .. }: &OutsideProcess) -> String {
    format!("{name} is outside the limit: {why}")
}
