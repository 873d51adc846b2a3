//! Runs that go on: looking at them and changing them.
//!
//! Owns: what a run can be asked ([`LOOK`], [`set_memory`]), and how its answer is read ([`seen`]).
//! Invariants: looking changes nothing. A run that ends meanwhile is left out where all are shown.
//! Not here: what a run answers (`run::live`), how it is found and asked (`overspill::session`).

mod metrics;
mod seen;
mod set;
mod stats;
mod top;

pub(crate) use metrics::{Exporter, metrics};
pub(crate) use set::set;
pub(crate) use stats::stats;
pub(crate) use top::top;

use crate::error::Error;
use overspill::Bytes;
use overspill::session::Run;

/// Asks what a run is doing.
pub(crate) const LOOK: &str = "look";

const SET_MEMORY: &str = "set memory ";

/// Asks for another limit.
fn set_memory(limit: Bytes) -> String {
    format!("{SET_MEMORY}{}", limit.0)
}

/// The limit that a run is asked to take.
pub(crate) fn memory_to_set(question: &str) -> Option<Bytes> {
    question.strip_prefix(SET_MEMORY)?.parse().ok().map(Bytes)
}

/// The run of `process`, which is its `overspill run` or came from it.
fn of_process(process: i32) -> Result<Run, Error> {
    let runs = Run::all().map_err(Error::Runs)?;
    run_of(process, &runs).ok_or(Error::NoRun(process))
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
        assert_eq!(memory_to_set(&set_memory(Bytes(1 << 40))), Some(Bytes(1 << 40)));
        for other in [LOOK, "", "set memory", "set memory -1", "set memory 1G"] {
            assert_eq!(memory_to_set(other), None, "{other}");
        }
    }
}
