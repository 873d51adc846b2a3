//! Schedules that no clock would produce: the order of tasks is random, from a seed.
//!
//! Owns: each task's place in the order, and when it changes.
//! Invariants: the same seed makes the same choices, so a failing schedule can be replayed. No task
//! runs forever: after [`POINTS_MAX`] points without another one its place changes; otherwise a
//! loop that waits for another task would never end.
//! Not here: what is checked.
//! Source of bounded schedules: Burckhardt and others, "A randomized scheduler with probabilistic
//! guarantees of finding bugs" (ASPLOS 2010): tasks run by random priority, and at few random
//! points the running one falls behind all others. Most races need one or two such points.

use fastrand::Rng;

/// Points that a task may pass before it falls behind others.
const POINTS_MAX: u32 = 2000;
/// Places of tasks that could run are below this.
const PLACES: u64 = 1 << 52;
/// In a random schedule, one in this many points changes the order.
const CHANGE_ONE_IN: u32 = 3;

/// How tasks take turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// By their clocks.
    Clocks,
    /// Any order at any point.
    Random {
        /// Seed of all choices.
        seed: u64,
    },
    /// By random priority, with `preemptions` changes within the first `points` points.
    Bounded {
        /// Seed of all choices.
        seed: u64,
        /// Times the running task falls behind all others.
        preemptions: usize,
        /// Approximate number of points of a run.
        points: u64,
    },
}

/// The choices of one run.
#[derive(Debug)]
pub(crate) struct Explorer {
    random: Option<Rng>,
    places: Vec<u64>,
    /// Points at which the running task falls behind; none if that is decided at every point.
    changes: Option<Vec<u64>>,
    passed: u64,
    alone: u32,
    last: u32,
    /// The place of the task that fell behind last.
    behind: u64,
}

impl Explorer {
    /// A place behind everything that can run.
    pub(crate) const LAST: u64 = 2 * PLACES - 1;

    pub(crate) const fn none() -> Self {
        Self {
            random: None,
            places: Vec::new(),
            changes: None,
            passed: 0,
            alone: 0,
            last: 0,
            behind: PLACES,
        }
    }

    pub(crate) fn new(schedule: Schedule) -> Option<Self> {
        let (seed, changes) = match schedule {
            Schedule::Clocks => return None,
            Schedule::Random { seed } => (seed, None),
            Schedule::Bounded { seed, preemptions, points } => {
                let mut random = Rng::with_seed(!seed);
                let at = |_| random.u64(..points.max(1));
                (seed, Some((0..preemptions).map(at).collect()))
            }
        };
        Some(Self { random: Some(Rng::with_seed(seed)), changes, ..Self::none() })
    }

    pub(crate) fn add(&mut self, task: u32) {
        self.places.resize(task as usize + 1, 0);
        self.new_place(task);
    }

    pub(crate) fn place(&self, task: u32) -> u64 {
        self.places[task as usize]
    }

    /// Gives a task a new place.
    pub(crate) fn new_place(&mut self, task: u32) -> u64 {
        let Some(random) = &mut self.random else { return 0 };
        self.places[task as usize] = random.u64(..PLACES / 2);
        self.places[task as usize]
    }

    /// The running task passes a point; returns its place from here on.
    pub(crate) fn at_point(&mut self, task: u32) -> u64 {
        self.passed += 1;
        self.alone = if self.last == task { self.alone + 1 } else { 0 };
        self.last = task;
        let change = match &self.changes {
            None => self.random.as_mut().is_some_and(|random| random.u32(..CHANGE_ONE_IN) == 0),
            Some(changes) => changes.contains(&self.passed),
        };
        if self.changes.is_none() && change {
            self.new_place(task);
        } else if change || self.alone > POINTS_MAX {
            self.alone = 0;
            self.behind += 1;
            self.places[task as usize] = self.behind;
        }
        self.places[task as usize]
    }
}
