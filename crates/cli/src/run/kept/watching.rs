//! What is watched of a kept run: its pressure always, more if it was asked for.
//!
//! Owns: when the line of `--progress` is written, and the samples of `--report` are taken.
//! Not here: their form (`progress`, `timeline`).

use super::super::now::Now;
use super::super::progress::{self, ProgressLine};
use super::super::timeline::{self, Timeline, Watched, note};
use overspill::Bytes;
use overspill::Summary;
use overspill::session::{StallTime, Stalling, Stalls};
use overspill_run::{Arrived, Front, KeeperProcess};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// How long a run has waited for pages.
pub(super) struct Pressure {
    stalls: Arc<Stalls>,
    /// All processes, once one of them is paged.
    processes: Arc<Mutex<Vec<i32>>>,
}

impl Pressure {
    /// Begins to look at what `keeper` pages.
    pub(super) fn of(keeper: &KeeperProcess) -> std::io::Result<Self> {
        let processes = Arc::<Mutex<Vec<i32>>>::default();
        let (looked_at, counters) = (processes.clone(), keeper.stats().clone());
        let programs = move || -> Vec<Stalling> {
            let processes = looked_at.lock().expect("nobody panics with it");
            processes.iter().map(|&process| (process, counters.clone())).collect()
        };
        Ok(Self { stalls: Stalls::start(false, programs)?, processes })
    }

    pub(super) fn time(&self) -> StallTime {
        self.stalls.get()
    }

    fn set_processes(&self, front: &Front) {
        let mut processes = self.processes.lock().expect("nobody panics with it");
        processes.clear();
        if front.processes().any(|process| process.is_paged) {
            processes.extend(front.processes().map(|process| process.pid.as_raw_pid()));
        }
    }
}

/// What was asked for.
pub(super) struct Watching {
    line: Option<(ProgressLine, Instant)>,
    timeline: Option<(Timeline, Instant)>,
}

impl Watching {
    pub(super) fn new(progress: bool, report: bool) -> Self {
        let line = progress.then(ProgressLine::new).flatten();
        Self {
            line: line.map(|line| (line, Instant::now() + progress::PERIOD)),
            timeline: report.then(|| (Timeline::new(), Instant::now())),
        }
    }

    /// Looks at the run, if it is time to.
    pub(super) fn look(&mut self, front: &mut Front, pressure: &Pressure) {
        pressure.set_processes(front);
        let now = Instant::now();
        if let Some((line, next)) = self.line.as_mut().filter(|(_, next)| *next <= now) {
            line.show(&look(front, pressure));
            *next = now + progress::PERIOD;
        }
        if let Some((timeline, next)) = self.timeline.as_mut().filter(|(_, next)| *next <= now) {
            sample(timeline, front, pressure);
            *next = now + timeline::PERIOD;
        }
    }

    /// What the run did.
    pub(super) fn end(self, front: &mut Front, pressure: &Pressure) -> Watched {
        let Some((mut timeline, _)) = self.timeline else { return Watched::default() };
        sample(&mut timeline, front, pressure);
        timeline.end()
    }
}

fn sample(timeline: &mut Timeline, front: &mut Front, pressure: &Pressure) {
    let map = &mut timeline.arrivals;
    map.missed = front.take_arrivals(|process, arrived| {
        let Arrived { after, address, was_out, .. } = arrived;
        note(map, process, (after, address, was_out));
    });
    timeline.look(|| look(front, pressure));
}

fn look(front: &Front, pressure: &Pressure) -> Now {
    let areas = front.state().map(|(areas, _)| areas).unwrap_or_default();
    Now {
        summary: Summary::of(front.memory(), &[front.keeper().stats().clone()]),
        memory: front.memory_used(),
        swap: Bytes(areas.iter().map(|area| area.used.0).sum()),
        processes: front.processes().count(),
        stalls: pressure.time(),
    }
}
