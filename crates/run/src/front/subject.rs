//! Whose memory is limited, and who belongs to it.
//!
//! Owns: which processes a run has, and what becomes of them when it cannot go on.
//! Invariants: what is ours is no part of a run. A process that has lost its parent stays a part,
//! and one that has its number later does not become one.
//! Not here: what they hold (`looking`).

use super::Front;
use crate::attaching::AttachingError;
use crate::family::{kill, reap};
use crate::watch::{self, Watched, parent_of, start_of};
use rustix::process::{Pid, getpid};
use std::collections::HashMap;

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

impl Front {
    /// Tries to hold the process that runs already, and lets it go on.
    ///
    /// # Errors
    /// It has ended, or may not be traced.
    pub fn check_subject(&self) -> Result<(), AttachingError> {
        if let Subject::Running(pid) = self.subject {
            drop(self.tracer.hold(pid)?);
        }
        Ok(())
    }

    /// True if it watches a process that ran already.
    pub(super) fn is_of_running(&self) -> bool {
        matches!(self.subject, Subject::Running(_))
    }

    /// True if no process of the run is left.
    pub fn is_deserted(&self) -> bool {
        self.guests.is_empty() && self.cores.is_idle() && self.family().is_empty()
    }

    /// Kills all that would miss a page, and all of a program that was started here.
    pub(super) fn kill_all(&self, family: HashMap<Pid, Watched>) {
        match self.subject {
            Subject::Started { .. } => family.into_keys().for_each(kill),
            Subject::Running(_) => self.guests.keys().copied().for_each(kill),
        }
    }

    /// Reaps children that have ended, but the program: orphans of the run.
    pub fn reap_orphans(&self) {
        self.keeper.reap_servers();
        let is_program =
            |pid| matches!(self.subject, Subject::Started { program, .. } if program == pid);
        let is_orphan = |pid: &Pid| !is_program(*pid) && !self.is_no_part(*pid);
        watch::children_of(getpid()).into_iter().filter(is_orphan).for_each(reap);
    }

    /// All processes of the run, without what is ours.
    pub(super) fn family(&self) -> HashMap<Pid, Watched> {
        match self.subject {
            Subject::Started { program, is_alone, .. } => {
                // Its parent is nobody's concern: it is taken out again.
                let mut family = self.descending_from([(getpid(), None)]);
                family.remove(&getpid());
                if is_alone {
                    family.retain(|pid, _| *pid == program || self.is_paged(*pid));
                }
                family
            }
            Subject::Running(first) => self.family_of(first),
        }
    }

    /// True if it is paged, or was forked by one that is.
    fn is_paged(&self, pid: Pid) -> bool {
        self.guests.contains_key(&pid) || self.is_child(pid)
    }

    /// What descends from a process that ran already, and those whose parents have ended since.
    fn family_of(&self, first: Pid) -> HashMap<Pid, Watched> {
        let first = Some(first).filter(|first| start_of(*first) == self.subject_start);
        let with_parent = |pid| (pid, parent_of(pid));
        let mut family = self.descending_from(first.map(with_parent));
        let others = self.seen.iter().filter(|(pid, _)| !family.contains_key(pid));
        let orphans = others.filter(|(pid, seen)| seen.is_still(**pid));
        let orphans: Vec<_> = orphans.map(|(pid, _)| with_parent(*pid)).collect();
        family.extend(self.descending_from(orphans));
        // One that has ended, and that nobody reaps, has none.
        family.retain(|_, process| process.pages > 0);
        family
    }

    fn descending_from(
        &self,
        first: impl IntoIterator<Item = (Pid, Option<Pid>)>,
    ) -> HashMap<Pid, Watched> {
        watch::family(first, &|pid| self.is_no_part(pid))
    }

    fn is_no_part(&self, pid: Pid) -> bool {
        let is_other = matches!(self.subject, Subject::Started { other, .. } if other == Some(pid));
        is_other || self.is_own(pid) || self.keeper.is(pid) || self.is_agent(pid)
    }

    /// True of this process where it is a descendant of what it watches.
    fn is_own(&self, pid: Pid) -> bool {
        self.is_of_running() && pid == getpid()
    }

    fn is_agent(&self, pid: Pid) -> bool {
        self.guests.values().chain(self.cores.guests()).any(|guest| guest.agent.pid == pid)
    }
}
