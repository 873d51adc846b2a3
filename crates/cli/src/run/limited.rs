//! A run, whoever it limits: from the start of its keeper to what is said at the end.
//!
//! Owns: the order of its steps. Places to swap to are open, and all that paging needs is there,
//! before there is anybody to limit.
//! Not here: whom it limits, and for how long (`super`, `attached`).

use super::answers::Questions;
use super::kept::Kept;
use super::plan::Plan;
use super::process::Ended;
use super::report::{Device, Escaped, Report, Seen, Stalls};
use super::watching::Watching;
use crate::error::Error;
use crate::status::FAILED;
use overspill::{Bytes, Summary, memory};
use overspill_run::{Counters, Front, Ground, KeeperProcess, MemoryPressure, RunEnd, Subject};
use std::time::Duration;

/// Where the kernel tells how short memory is, if the run is to give some back then.
pub(super) fn pressure(gives_back: bool) -> Result<Option<MemoryPressure>, Error> {
    gives_back.then(MemoryPressure::open).transpose().map_err(Error::Pressure)
}

/// All that a run needs, and nobody to limit yet.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    keeper: KeeperProcess,
    kept: Kept,
    questions: Option<Questions>,
    watching: Watching,
}

/// A run.
pub(super) struct Limited {
    pub(super) plan: Plan,
    pub(super) front: Front,
    pub(super) kept: Kept,
    questions: Option<Questions>,
    watching: Watching,
}

impl Prepared {
    /// Starts the keeper of a run of `command`. `is_known` is whether its limit will be that of all
    /// of the program all the time.
    ///
    /// # Errors
    /// It does not start, or a place cannot be opened.
    pub(super) fn new(plan: Plan, command: Vec<String>, is_known: bool) -> Result<Self, Error> {
        let keeper = plan.start_keeper()?;
        let questions = Questions::hear();
        plan.say(questions.as_ref().err().cloned());
        plan.say_metrics();
        let kept = Kept::new(&plan, command, is_known);
        let watching = Watching::new(plan.wishes());
        Ok(Self { plan, keeper, kept, questions: questions.ok(), watching })
    }

    /// Begins to limit somebody.
    pub(super) fn over(
        self,
        subject: Subject,
        ground: Ground,
        pressure: Option<MemoryPressure>,
    ) -> Limited {
        let Self { plan, keeper, kept, questions, watching } = self;
        let mut front = Front::new(plan.memory, (ground, memory::free), keeper, subject);
        pressure.into_iter().for_each(|pressure| front.give_back(pressure));
        if plan.touches.is_some() {
            front.attach_early();
        }
        Limited { plan, front, kept, questions, watching }
    }
}

impl Limited {
    /// Gives the front a turn, answers questions, and looks; returns how long to wait before the
    /// next turn.
    pub(super) fn turn(&mut self) -> Duration {
        let most = self.front.turn();
        self.answer();
        self.watching.look(&mut self.front, &self.kept.pressure);
        most
    }

    /// Answers what was asked meanwhile.
    pub(super) fn answer(&mut self) {
        if let Some(questions) = &mut self.questions {
            questions.answer(&self.kept, &mut self.front);
        }
    }

    /// Says how it went, after its subject has ended like this, and `rest` has waited for what is
    /// left of it; returns the exit status.
    pub(super) fn end(mut self, ended: &Ended, rest: impl FnOnce(&mut Self)) -> u8 {
        let watched = self.watching.end(&mut self.front, &self.kept.pressure);
        let memory = self.front.memory();
        rest(&mut self);
        let Self { plan, front, kept, .. } = self;
        let counters = front.keeper().stats().clone();
        let end = front.end();
        let status = status(ended, &end);
        let seen = seen((memory, &counters), ended.wall, (end, &kept));
        let report = Report::new(kept.command.clone(), ended, status, seen);
        plan.tell((&kept.command, &report), watched);
        status
    }
}

/// The program's status, unless we know more.
fn status(ended: &Ended, end: &RunEnd) -> u8 {
    if end.has_failed || end.keeper.out_of_memory { FAILED } else { ended.status() }
}

fn seen(
    (memory, counters): (Bytes, &Counters),
    wall: Duration,
    (end, kept): (RunEnd, &Kept),
) -> Seen {
    let summary = Summary::of(memory, std::slice::from_ref(counters));
    let RunEnd { areas, keeper, held_most, excess_most, outside, .. } = end;
    let waited = Duration::from_nanos(summary.fault_latency.sum_ns);
    Seen {
        devices: areas.into_iter().map(Device::of).collect(),
        out_of_memory: keeper.out_of_memory,
        held_most,
        excess_most,
        is_other_limit: kept.memory != Some(Bytes(summary.memory_bytes)),
        waited,
        summary,
        oom_kills: memory::oom_kills().saturating_sub(kept.oom_kills),
        stalls: Stalls::new(kept.pressure.total(counters, wall)),
        escaped: Escaped::of(outside),
    }
}
