//! Lock costs, by class and by path.
//!
//! Owns: the counts.
//! Invariants: a path is what a task declares with [`enter_path`], and the innermost counts; the
//! kernel's own profiles name a contended lock by class and path too.
//! Not here: the names of classes and paths.

use crate::core;
use std::cell::Cell;

/// Most classes of locks.
pub const CLASSES: usize = 32;
/// Most paths, including path 0 for none.
pub const PATHS: usize = 16;

/// Costs of the locks of one class, taken on one path.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Times taken.
    pub acquisitions: u64,
    /// Times that a task had to wait for it.
    pub contended: u64,
    /// Nanoseconds waited.
    pub wait_ns: u64,
    /// The longest wait.
    pub wait_max_ns: u64,
    /// Nanoseconds held.
    pub hold_ns: u64,
    /// The longest hold.
    pub hold_max_ns: u64,
}

pub(crate) struct Tallies(Cell<[[Tally; PATHS]; CLASSES]>);

impl Tallies {
    pub(crate) const fn new() -> Self {
        let zero = Tally {
            acquisitions: 0,
            contended: 0,
            wait_ns: 0,
            wait_max_ns: 0,
            hold_ns: 0,
            hold_max_ns: 0,
        };
        Self(Cell::new([[zero; PATHS]; CLASSES]))
    }

    fn cell(&self, class: u8, path: u8) -> &Cell<Tally> {
        let classes: &Cell<[_]> = &self.0;
        let paths: &Cell<[_; PATHS]> = &classes.as_slice_of_cells()[usize::from(class)];
        let paths: &Cell<[_]> = paths;
        &paths.as_slice_of_cells()[usize::from(path)]
    }

    pub(crate) fn acquired(&self, class: u8, path: u8, waited_ns: Option<u64>) {
        let cell = self.cell(class, path);
        let mut tally = cell.get();
        tally.acquisitions += 1;
        if let Some(ns) = waited_ns {
            tally.contended += 1;
            tally.wait_ns += ns;
            tally.wait_max_ns = tally.wait_max_ns.max(ns);
        }
        cell.set(tally);
    }

    pub(crate) fn released(&self, class: u8, path: u8, held_ns: u64) {
        let cell = self.cell(class, path);
        let mut tally = cell.get();
        tally.hold_ns += held_ns;
        tally.hold_max_ns = tally.hold_max_ns.max(held_ns);
        cell.set(tally);
    }

    pub(crate) fn clear(&self) {
        self.0.set([[Tally::default(); PATHS]; CLASSES]);
    }
}

/// Returns the counts so far for a class and a path.
pub fn tally(class: u8, path: u8) -> Tally {
    core::with(|core| core.tallies.cell(class, path).get())
}

/// Resets the longest waits and holds.
pub fn forget_longest() {
    core::with(|core| {
        for (class, path) in (0..CLASSES).flat_map(|c| (0..PATHS).map(move |p| (c, p))) {
            let cell = core.tallies.cell(class as u8, path as u8);
            cell.set(Tally { wait_max_ns: 0, hold_max_ns: 0, ..cell.get() });
        }
    });
}

/// Puts the running task on `path` until the guard is dropped.
pub fn enter_path(path: u8) -> PathGuard {
    PathGuard { before: set_path(path) }
}

fn set_path(path: u8) -> u8 {
    core::with(|core| {
        let mut tasks = core.tasks.borrow_mut();
        let task = tasks.get_mut(core.current() as usize);
        task.map_or(0, |task| std::mem::replace(&mut task.path, path))
    })
}

/// See [`enter_path`].
#[must_use = "the path ends at once"]
pub struct PathGuard {
    before: u8,
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        set_path(self.before);
    }
}
