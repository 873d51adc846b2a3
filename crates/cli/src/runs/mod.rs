//! Runs that go on: looking at them and changing them.
//!
//! Owns: what a run can be asked ([`Question`]), and how its answer is read ([`seen`]).
//! Invariants: looking changes nothing. A run that ends meanwhile is left out where all are shown.
//! Not here: what a run answers (`run::live`), how it is found and asked (`overspill_run`).

mod detach;
mod http;
mod metrics;
mod seen;
mod set;
mod stats;
mod top;
mod web;

pub(crate) use detach::detach;
pub(crate) use metrics::{RunExporter, metrics, serving};
pub(crate) use set::set;
pub(crate) use stats::stats;
pub(crate) use top::top;

use crate::error::Error;
use overspill::Bytes;
use overspill_run::Run;
use seen::Seen;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How long a run may take to answer, to whom others talk too.
const PATIENCE: Duration = Duration::from_secs(6);

/// What a run can be asked, and how that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// What it is doing.
    Look,
    /// To take another limit.
    SetMemory(Bytes),
    /// To swap to another place too.
    AddSwap(String),
    /// To swap no more to a place.
    RemoveSwap(String),
    /// To let its processes go.
    Detach,
}

const SET_MEMORY: &str = "set memory ";
const ADD_SWAP: &str = "add swap ";
const REMOVE_SWAP: &str = "remove swap ";
const DETACH: &str = "detach";

impl Question {
    /// Reads a question; what is not understood is a look.
    pub(crate) fn of(words: &str) -> Self {
        let memory = words.strip_prefix(SET_MEMORY).and_then(|bytes| bytes.parse().ok());
        let named = |prefix| words.strip_prefix(prefix).map(str::to_owned);
        let added = || named(ADD_SWAP).map(Self::AddSwap);
        let removed = || named(REMOVE_SWAP).map(Self::RemoveSwap);
        let memory = memory.map(Bytes).map(Self::SetMemory);
        let detach = || (words == DETACH).then_some(Self::Detach);
        memory.or_else(added).or_else(removed).or_else(detach).unwrap_or(Self::Look)
    }

    /// Asks a run.
    ///
    /// # Errors
    /// [`Error::Stopped`], or [`Error::NoRun`] if it does not answer for another reason.
    fn ask(&self, run: Run) -> Result<String, Error> {
        let stopped = || run.is_stopped().then_some(Error::Stopped(run.process));
        stopped().map_or(Ok(()), Err)?;
        let answer = run.ask(&self.to_string(), Instant::now() + PATIENCE);
        answer.map_err(|_| stopped().unwrap_or(Error::NoRun(run.process)))
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Look => f.write_str("look"),
            Self::SetMemory(limit) => write!(f, "{SET_MEMORY}{}", limit.0),
            Self::AddSwap(place) => write!(f, "{ADD_SWAP}{place}"),
            Self::RemoveSwap(name) => write!(f, "{REMOVE_SWAP}{name}"),
            Self::Detach => f.write_str(DETACH),
        }
    }
}

/// The run of `process`, which is its `overspill run`, came from it, or was attached to.
fn of_process(process: i32) -> Result<Run, Error> {
    let runs = Run::all();
    run_of(process, &runs).or_else(|| run_with(process, runs)).ok_or(Error::NoRun(process))
}

/// The number of the run that has `process` in its limit.
pub(crate) fn with(process: i32) -> Option<i32> {
    run_with(process, Run::all()).map(|run| run.process)
}

/// A run says which processes it has, and is believed of its user's.
fn run_with(process: i32, mut runs: Vec<Run>) -> Option<Run> {
    let user = std::fs::metadata(format!("/proc/{process}")).ok()?.uid();
    runs.retain(|run| run.user == 0 || run.user == user);
    let has_it = |seen: &Seen| seen.processes.iter().any(|it| it.process == process);
    Seen::of_all(runs).into_iter().find_map(|(run, seen)| has_it(&seen).then_some(run))
}

fn run_of(process: i32, runs: &[Run]) -> Option<Run> {
    let line = std::iter::successors(Some(process), |&process| parent_of(process));
    line.into_iter().find_map(|process| runs.iter().find(|run| run.process == process).copied())
}

fn parent_of(process: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent > 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_mutate::Script;

    #[test]
    fn a_process_is_in_the_run_that_it_came_from() {
        let me = std::process::id() as i32;
        assert!(
            parent_of(me)
                .is_some_and(|parent| parent == std::os::unix::process::parent_id() as i32)
        );
        assert_eq!(run_of(me, &[]), None);
    }

    #[test]
    fn what_is_asked_is_understood() {
        let place = Question::AddSwap("file:/var/tmp/a b:1G,pri=3".into());
        let name = Question::RemoveSwap("swap file in /var/tmp".into());
        let memory = Question::SetMemory(Bytes(1 << 40));
        for question in [Question::Look, Question::Detach, memory, place, name] {
            assert_eq!(Question::of(&question.to_string()), question);
        }
        for other in ["", "set memory", "set memory -1", "set memory 1G"] {
            assert_eq!(Question::of(other), Question::Look, "{other}");
        }
    }

    #[test]
    fn whatever_is_asked_has_an_answer() {
        let samples =
            ["set memory 1048576", "add swap file:/var/tmp:1G", "remove swap 1", "detach"];
        bolero::check!().with_type::<Script>().for_each(|script| {
            let question = Question::of(&script.text(&samples));
            assert_eq!(Question::of(&question.to_string()), question);
        });
    }
}
