//! Processes that are to stand still before they are attached to.
//!
//! Owns: which were told to stop, since when.
//! Invariants: all are told at once, and where many run each stops only when it has its turn. For
//! that all are waited for before the first is taken, as a rule: what is done with it takes 3 ms
//! where nobody else runs, and 50 where it waits for its turn at each step, while the others fill
//! memory. Who does not stop in time goes on. Others may have to stand beside until none of these
//! is left, to leave them the CPU and memory.
//! Not here: which (`front`).

use overspill_guest::{AttachError, Held, Kernel, Tracer};
use rustix::process::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the threads of a process may take to stop.
const STOP_WAIT: Duration = Duration::from_millis(500);
/// How long the others are waited for.
const CROWD_WAIT: Duration = Duration::from_millis(100);

pub(crate) struct Stopping {
    tracer: &'static Tracer<Kernel>,
    stopping: HashMap<Pid, Entry>,
    beside: HashMap<Pid, Held<'static, Kernel>>,
}

struct Entry {
    held: Held<'static, Kernel>,
    since: Instant,
}

/// What became of a process that was told, some time ago.
pub(crate) type Stopped = (Result<Held<'static, Kernel>, AttachError>, Instant);

impl Stopping {
    pub(crate) fn new(tracer: &'static Tracer<Kernel>) -> Self {
        Self { tracer, stopping: HashMap::new(), beside: HashMap::new() }
    }

    /// Since when there are some.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.stopping.values().map(|entry| entry.since).min()
    }

    /// True if it was told, and has not been taken.
    pub(crate) fn has(&self, pid: Pid) -> bool {
        self.stopping.contains_key(&pid) || self.beside.contains_key(&pid)
    }

    /// Tells a process to stop.
    ///
    /// # Errors
    /// It has ended, or may not be traced.
    pub(crate) fn tell(&mut self, pid: Pid) -> Result<(), AttachError> {
        let held = self.tracer.hold(pid)?;
        self.stopping.insert(pid, Entry { held, since: Instant::now() });
        Ok(())
    }

    /// Tells a process to stand beside.
    pub(crate) fn tell_beside(&mut self, pid: Pid) {
        // One that has ended, or may not be traced, does no harm here.
        self.beside.extend(self.tracer.hold(pid).ok().map(|held| (pid, held)));
    }

    /// Lets all go that were killed: a process whose tasks stood still when they were killed has
    /// not ended before its tracer lets them go.
    pub(crate) fn let_killed_go(&mut self) {
        self.stopping.clear();
        self.beside.clear();
    }

    /// Takes up to `most` of those that stand still, or will not.
    pub(crate) fn take(&mut self, most: usize) -> Vec<(Pid, Stopped)> {
        self.poll_beside();
        let (mut polled, mut runs) = (Vec::new(), false);
        for (pid, entry) in &mut self.stopping {
            match entry.poll(*pid) {
                Some(stopped) => polled.push((*pid, stopped)),
                None => runs |= entry.since.elapsed() < CROWD_WAIT,
            }
        }
        if runs {
            return Vec::new();
        }
        let with_held = polled.into_iter().take(most).map(|(pid, stopped)| {
            let entry = self.stopping.remove(&pid).expect("it was just seen");
            (pid, (stopped.map(|()| entry.held), entry.since))
        });
        with_held.collect()
    }

    fn poll_beside(&mut self) {
        if self.stopping.is_empty() {
            return self.beside.clear();
        }
        for held in self.beside.values_mut() {
            // One that has ended is let go with the others.
            let _ = held.poll();
        }
    }
}

impl Entry {
    /// Whether it stands still, or why it will not; `None` if that is not known yet.
    fn poll(&mut self, pid: Pid) -> Option<Result<(), AttachError>> {
        match self.held.poll() {
            Ok(0) => Some(Ok(())),
            Ok(_) if self.since.elapsed() < STOP_WAIT => None,
            Ok(_) => Some(Err(AttachError::Slow { pid, what: "the stop of its threads" })),
            Err(error) => Some(Err(error)),
        }
    }
}
