//! The one thread that traces.
//!
//! Owns: which tasks were told to stop and have not been let go, and which stay traced.
//! Invariants: a task that was told to stop is remembered until it has stopped and been let go, or
//! has ended; otherwise it would stop one day and never go on. What a released process still has to
//! do lies here, and [`Tracer::settle`] does it, so nobody has to wait for a task that waits for
//! him.
//! Not here: what is done while a process stands still.

use crate::arch::{Blocked, Interrupted};
use crate::error::{About, AttachError, Result};
use crate::hold::Held;
use crate::process;
use crate::system::{Change, Stop, System, Until};
use rustix::io::Errno;
use rustix::process::Pid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often a call is tried that must succeed for a program to go on.
const TRIES: usize = 3;
/// How long a task may take to its next stop. The calls that are made inside do not wait.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// A task that was not let go yet: its process, and what it waited in.
#[derive(Clone, Copy, Debug)]
struct Late {
    pid: Pid,
    before: Option<Blocked>,
    /// The signal that it is to get, if it has stopped: it could not be let go, or was killed then.
    /// Nobody else can reap it before its end was seen here.
    signal: Option<i32>,
}

/// Traces, as one thread.
#[derive(Debug)]
pub struct Tracer<S: System> {
    pub(crate) system: S,
    /// Tasks that were told to stop.
    late: RefCell<HashMap<Pid, Late>>,
    /// Agents that stay traced, so that the filter which they inherited stays without effect.
    kept: RefCell<Vec<Pid>>,
}

impl<S: System> Tracer<S> {
    /// Traces nothing yet.
    pub fn new(system: S) -> Self {
        Self { system, late: RefCell::default(), kept: RefCell::default() }
    }

    /// The kernel as it is asked here.
    pub fn system(&self) -> &S {
        &self.system
    }

    /// Tells all threads of a process to stop. They do so in their own time: see [`Held::poll`].
    ///
    /// # Errors
    /// It has ended, may not be traced or is traced by another.
    pub fn hold(&self, pid: Pid) -> Result<Held<'_, S>> {
        let mut held = Held::new(self, pid);
        held.tell_all()?;
        Ok(held)
    }

    /// Lets go what has stopped since its process was released. To be called now and then while it
    /// returns more than 0: the number of tasks that have not stopped yet.
    pub fn settle(&self) -> usize {
        let tasks: Vec<_> = self.late.borrow().iter().map(|(task, late)| (*task, *late)).collect();
        for (task, late) in tasks {
            if self.settle_one(task, late) {
                self.late.borrow_mut().remove(&task);
            }
        }
        self.keep_going();
        self.late.borrow().len()
    }

    fn settle_one(&self, task: Pid, late: Late) -> bool {
        match self.system.wait(task) {
            Ok(Some(Change::Stopped(stop))) => self.let_go(late.pid, task, stop, late.before),
            Ok(Some(Change::Ended)) | Err(Errno::CHILD) => true,
            Ok(None) | Err(_) => {
                late.signal.is_some_and(|signal| self.system.detach(task, signal).is_ok())
            }
        }
    }

    /// Agents that stay traced go on, whatever stopped them.
    fn keep_going(&self) {
        let goes_on = |task: Pid| match self.system.wait(task) {
            Ok(Some(Change::Stopped(_))) => {
                let _ = self.system.resume(task, Until::Stop, 0);
                true
            }
            Ok(Some(Change::Ended)) | Err(Errno::CHILD) => false,
            Ok(None) | Err(_) => true,
        };
        self.kept.borrow_mut().retain(|task| goes_on(*task));
    }

    /// Takes a task back that was told to stop for an earlier hold.
    pub(crate) fn take_late(&self, task: Pid) -> bool {
        let mut late = self.late.borrow_mut();
        late.get(&task).is_some_and(|late| late.signal.is_none()) && late.remove(&task).is_some()
    }

    pub(crate) fn add_late(&self, pid: Pid, task: Pid, before: Option<Blocked>) {
        self.late.borrow_mut().insert(task, Late { pid, before, signal: None });
    }

    pub(crate) fn keep(&self, agent: Pid) {
        self.kept.borrow_mut().push(agent);
    }

    /// Lets go a task that is stopped; its call goes on. False if it is to be tried again, or was
    /// killed meanwhile, and its end is to be waited for.
    pub(crate) fn let_go(&self, pid: Pid, task: Pid, stop: Stop, before: Option<Blocked>) -> bool {
        if let Stop::Told | Stop::Group = stop {
            self.repair(pid, task, before);
        }
        let signal = stop.signal();
        let is_gone = self.persist(|| self.system.detach(task, signal)).is_some();
        if !is_gone {
            self.late.borrow_mut().insert(task, Late { pid, before, signal: Some(signal) });
        }
        is_gone
    }

    /// Has a task repeat the call that it would otherwise see fail because of us. If a signal waits
    /// the call fails because of that.
    fn repair(&self, pid: Pid, task: Pid, before: Option<Blocked>) {
        let Some(registers) = self.persist(|| self.system.registers(task)) else { return };
        if let Interrupted::Fails(_) = registers.interrupted(before)
            && process::status(&self.system, pid, task).is_ok_and(|status| status.signals == 0)
        {
            self.persist(|| self.system.set_registers(task, &registers.repeating(before)));
        }
    }

    /// Waits until a task that was resumed stops, which it does at once. An error of the call that
    /// waits says nothing of the task, so it is tried again.
    pub(crate) fn next_stop(&self, pid: Pid, task: Pid) -> Result<Stop> {
        let stop = self.stop_within(pid, task, STOP_WAIT)?;
        stop.ok_or(AttachError::Slow { pid, what: "a stop" })
    }

    /// The same, for one that may take its time: `None` if it has not stopped in this one.
    pub(crate) fn stop_within(
        &self,
        pid: Pid,
        task: Pid,
        at_most: Duration,
    ) -> Result<Option<Stop>> {
        let (mut patience, mut errors) = (Patience::new(at_most), 0);
        loop {
            match self.system.wait(task) {
                Ok(Some(Change::Stopped(stop))) => return Ok(Some(stop)),
                Ok(Some(Change::Ended)) | Err(Errno::CHILD) => {
                    return Err(AttachError::Gone { pid });
                }
                Ok(None) => {}
                Err(_) if errors < TRIES => errors += 1,
                Err(errno) => return Err(errno).about(pid, "waiting for"),
            }
            if !patience.pause() {
                return Ok(None);
            }
        }
    }

    /// Tries a call that must succeed a few times, unless the task is gone.
    pub(crate) fn persist<T>(
        &self,
        mut call: impl FnMut() -> std::result::Result<T, Errno>,
    ) -> Option<T> {
        (0..TRIES).find_map(|_| call().ok())
    }
}

/// How long something may take.
pub(crate) struct Patience {
    end: Instant,
    looks: u32,
}

impl Patience {
    /// Looks in quick succession at first: what is waited for takes microseconds as a rule.
    const QUICK_LOOKS: u32 = 20;
    /// Then it sleeps. It never yields: in a crowd that gives away whole time slices, of 4 ms.
    const PAUSE: Duration = Duration::from_micros(20);

    pub(crate) fn new(wait: Duration) -> Self {
        Self { end: Instant::now() + wait, looks: 0 }
    }

    /// Lets others run for a moment. Returns false when the time is over.
    pub(crate) fn pause(&mut self) -> bool {
        self.looks += 1;
        if self.looks > Self::QUICK_LOOKS {
            std::thread::sleep(Self::PAUSE);
        }
        Instant::now() < self.end
    }
}
