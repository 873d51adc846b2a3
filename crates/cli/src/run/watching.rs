//! What is watched of a kept run: its pressure always, more if it was asked for.
//!
//! Owns: when the line of `--progress` is written, and the samples of `--report` are taken.
//! Not here: their form (`progress`, `timeline`), and when a line is due that nobody asked for
//! (`waiting`).

use super::now::Now;
use super::progress::{self, ProgressLine};
use super::signals;
use super::timeline::{self, Timeline, note};
use super::waiting::Waiting;
use crate::say;
use overspill::Bytes;
use overspill::Summary;
use overspill_run::{
    AreaState, Arrived, Counters, Front, GuestMark, RunProcess, StallTime, Stalling, Stalls,
};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a run has waited for pages: nobody looks before one of its processes is paged.
#[derive(Default)]
pub(super) struct Pressure {
    stalls: OnceCell<Arc<Stalls>>,
    /// All processes, once one of them is paged.
    processes: Arc<Mutex<Vec<Stalling>>>,
}

impl Pressure {
    pub(super) fn time(&self) -> StallTime {
        self.stalls.get().map(|stalls| stalls.get()).unwrap_or_default()
    }

    /// The same of a run of so long that has ended.
    pub(super) fn total(&self, counters: &Counters, wall: Duration) -> StallTime {
        match self.stalls.get() {
            Some(stalls) => stalls.total(counters, wall),
            // It has ended before it was looked at.
            None => Stalls::default().total(counters, wall),
        }
    }

    fn look(&self, front: &Front) {
        if !front.processes().any(|process| process.is_paged) {
            return self.processes().clear();
        }
        let stalling = |process: RunProcess| (process.pid.as_raw_pid(), process.held);
        let all = front.processes().map(stalling).collect();
        *self.processes() = all;
        if self.stalls.get().is_none()
            && let Ok(stalls) = self.start(front)
        {
            let _ = self.stalls.set(stalls);
        }
    }

    fn start(&self, front: &Front) -> std::io::Result<Arc<Stalls>> {
        let (processes, counters) = (self.processes.clone(), front.keeper().stats().clone());
        let all = move || {
            let processes = processes.lock().expect("nobody panics with it");
            (processes.clone(), counters.clone())
        };
        signals::blocked(|| Stalls::start(all))
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Stalling>> {
        self.processes.lock().expect("nobody panics with it")
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    pub(super) progress: bool,
    /// The most that the limit can be, if it is to be said that a run waits for too long.
    pub(super) waits_within: Option<Bytes>,
    pub(super) timeline: bool,
    pub(super) touches: bool,
}

/// Looking at a run, as was asked for.
pub(super) struct Watching {
    line: Option<(ProgressLine, Instant)>,
    /// Unless nothing is to be said.
    waiting: Option<Waiting>,
    timeline: Option<Timeline>,
    touches: Option<Touches>,
    /// When pages that came are to be looked at, if they are.
    next: Option<Instant>,
}

/// What the run did.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) timeline: timeline::Watched,
    /// The numbers of the pages that were touched.
    pub(super) touched: Vec<u32>,
}

/// Which pages a run touches, in order, as far as touches fault. They are numbered in the order of
/// their first touch.
#[derive(Default)]
struct Touches {
    numbers: HashMap<(GuestMark, u64), u32>,
    touched: Vec<u32>,
}

impl Touches {
    fn note(&mut self, arrived: &Arrived) {
        let new = self.numbers.len() as u32;
        let page = (arrived.guest, arrived.address);
        self.touched.push(*self.numbers.entry(page).or_insert(new));
    }
}

impl Watching {
    pub(super) fn new(wishes: Wishes) -> Self {
        let line = wishes.progress.then(ProgressLine::new);
        let timeline = wishes.timeline.then(Timeline::new);
        let touches = wishes.touches.then(Touches::default);
        Self {
            line: line.map(|line| (line, Instant::now() + progress::PERIOD)),
            waiting: wishes.waits_within.map(|most| Waiting::new(Instant::now(), most)),
            next: (timeline.is_some() || touches.is_some()).then(Instant::now),
            timeline,
            touches,
        }
    }

    /// Looks at the run, if it is time to.
    pub(super) fn look(&mut self, front: &mut Front, pressure: &Pressure) {
        pressure.look(front);
        let now = Instant::now();
        if let Some((line, next)) = self.line.as_mut().filter(|(_, next)| *next <= now)
            && let Some((areas, _)) = front.state_since(*next)
        {
            *next = now + line.show(&look(front, &areas, pressure));
        }
        if let Some(waiting) = &mut self.waiting {
            let summary = || summary(front);
            waiting.look((now, pressure.time().some), summary).into_iter().for_each(say::line);
        }
        if self.next.is_some_and(|next| next <= now) {
            self.take_arrivals(front);
            self.next = Some(now + timeline::PERIOD);
        }
        if let Some(timeline) = &mut self.timeline
            && let Some(due) = timeline.due(now)
            && let Some((areas, _)) = front.state_since(due)
        {
            timeline.push(&look(front, &areas, pressure));
        }
    }

    /// Takes what came since the last time.
    fn take_arrivals(&mut self, front: &mut Front) {
        let Self { timeline, touches, .. } = self;
        let missed = front.take_arrivals(|process, arrived| {
            touches.iter_mut().for_each(|touches| touches.note(&arrived));
            let Arrived { after, address, was_out, .. } = arrived;
            let map = timeline.iter_mut().map(|timeline| &mut timeline.arrivals);
            map.for_each(|map| note(map, process, (after, address, was_out)));
        });
        if let Some(timeline) = timeline {
            timeline.arrivals.missed = missed;
        } else if missed > 0 {
            say::line(format!("{missed} touches came too fast to be recorded: give more --memory"));
        }
    }

    /// What the run did. It is not looked at any more, and nothing of its line stays on a terminal.
    pub(super) fn end(&mut self, front: &mut Front, pressure: &Pressure) -> Watched {
        self.line = None;
        if self.next.take().is_some() {
            self.take_arrivals(front);
        }
        if let Some(timeline) = &mut self.timeline
            && timeline.due(Instant::now()).is_some()
        {
            timeline.push(&look(front, &front.last_state().0, pressure));
        }
        let timeline = self.timeline.take().map(Timeline::end).unwrap_or_default();
        Watched { timeline, touched: self.touches.take().unwrap_or_default().touched }
    }
}

fn summary(front: &Front) -> Summary {
    Summary::of(front.memory(), &[front.keeper().stats().clone()])
}

fn look(front: &Front, areas: &[AreaState], pressure: &Pressure) -> Now {
    Now {
        summary: summary(front),
        memory: front.memory_used(),
        swap: Bytes(areas.iter().map(|area| area.used.0).sum()),
        processes: front.processes().count(),
        stalls: pressure.time(),
    }
}
