//! What is watched of a kept run: its pressure always, more if it was asked for.
//!
//! Owns: when the line of `--progress` is written, and the samples of `--report` are taken.
//! Not here: their form (`progress`, `timeline`).

use super::super::now::Now;
use super::super::progress::{self, ProgressLine};
use super::super::timeline::{self, Timeline, Watched, note};
use overspill::Bytes;
use overspill::Summary;
use overspill::session::{StallTime, Stalls};
use overspill_run::{Arrived, Front};
use std::cell::OnceCell;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// How long a run has waited for pages: nobody looks before one of its processes is paged.
#[derive(Default)]
pub(super) struct Pressure {
    stalls: OnceCell<Arc<Stalls>>,
    /// All processes, once one of them is paged.
    processes: Arc<Mutex<Vec<i32>>>,
}

impl Pressure {
    pub(super) fn time(&self) -> StallTime {
        self.stalls.get().map(|stalls| stalls.get()).unwrap_or_default()
    }

    fn look(&self, front: &Front) {
        if !front.processes().any(|process| process.is_paged) {
            return self.processes().clear();
        }
        let all = front.processes().map(|process| process.pid.as_raw_pid()).collect();
        *self.processes() = all;
        if self.stalls.get().is_none()
            && let Ok(stalls) = self.start(front)
        {
            let _ = self.stalls.set(stalls);
        }
    }

    fn start(&self, front: &Front) -> std::io::Result<Arc<Stalls>> {
        let (processes, counters) = (self.processes.clone(), front.keeper().stats().clone());
        Stalls::start(false, move || {
            let processes = processes.lock().expect("nobody panics with it");
            processes.iter().map(|&process| (process, counters.clone())).collect()
        })
    }

    fn processes(&self) -> MutexGuard<'_, Vec<i32>> {
        self.processes.lock().expect("nobody panics with it")
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
        pressure.look(front);
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
