//! Processes that are to stand still before they are attached to.
//!
//! Owns: which were told to stop, since when.
//! Invariants: all are told at once, and nobody waits for one: where many run each stops only when
//! it has its turn, and the others would fill memory meanwhile. Who does not stop in time goes on.
//! Not here: which (`front`).

use overspill_guest::{AttachError, Held, Kernel, Tracer};
use rustix::process::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the threads of a process may take to stop.
const STOP_WAIT: Duration = Duration::from_millis(500);

pub(crate) struct Stopping {
    tracer: &'static Tracer<Kernel>,
    stopping: HashMap<Pid, Entry>,
}

struct Entry {
    held: Held<'static, Kernel>,
    since: Instant,
}

/// What became of a process that was told.
pub(crate) type Stopped = Result<Held<'static, Kernel>, AttachError>;

impl Stopping {
    pub(crate) fn new(tracer: &'static Tracer<Kernel>) -> Self {
        Self { tracer, stopping: HashMap::new() }
    }

    /// Since when there are some.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.stopping.values().map(|entry| entry.since).min()
    }

    /// True if it was told, and has not stopped.
    pub(crate) fn has(&self, pid: Pid) -> bool {
        self.stopping.contains_key(&pid)
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

    /// Takes up to `most` of those that stand still, or will not.
    pub(crate) fn take(&mut self, most: usize) -> Vec<(Pid, Stopped)> {
        let polled = self.stopping.iter_mut().filter_map(|(pid, entry)| {
            let stopped = entry.poll(*pid)?;
            Some((*pid, stopped))
        });
        let polled: Vec<_> = polled.take(most).collect();
        let with_held = polled.into_iter().map(|(pid, stopped)| {
            let entry = self.stopping.remove(&pid).expect("it was just seen");
            (pid, stopped.map(|()| entry.held))
        });
        with_held.collect()
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
