//! A process that stands still.
//!
//! Owns: stopping all threads of a process, and letting them go on as if nothing had been.
//! Invariants: all are told first and waited for afterwards. Threads that appear meanwhile are
//! told, too: all stand only when a pass finds none new. Signals that arrive meanwhile are
//! delivered. A thread that does not stop (it waits for a page, or for its vfork child) holds up
//! nobody: [`Held::poll`] returns, and if it stops after the release, the [`Tracer`] lets it go.
//! A [`Held`] that is dropped lets all go.
//! Not here: what is done meanwhile.
//! Rejected: PTRACE_ATTACH and SIGSTOP, which the program's parent sees.

use crate::arch::{Blocked, LOSES_FIRST_ARGUMENT};
use crate::error::{About, AttachError, Result};
use crate::process;
use crate::system::{Change, Stop, System, Until};
use crate::tracer::{Patience, Tracer};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::HashMap;
use std::time::Duration;

/// A thread that was told to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    pub(crate) stopped: bool,
    /// Whether it goes on, and is to be told again.
    pub(crate) is_loose: bool,
    /// What it waited in before it was told, where a stop does not show it.
    pub(crate) before: Option<Blocked>,
}

/// A process whose threads stand still, or are about to.
#[derive(Debug)]
pub struct Held<'t, S: System> {
    pub(crate) tracer: &'t Tracer<S>,
    pub(crate) pid: Pid,
    pub(crate) threads: HashMap<Pid, Thread>,
}

impl<'t, S: System> Held<'t, S> {
    pub(crate) fn new(tracer: &'t Tracer<S>, pid: Pid) -> Self {
        Self { tracer, pid, threads: HashMap::new() }
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Takes note of the threads that have stopped, and tells those that are new. Returns how many
    /// have not stopped; 0 if all stand still and no other can appear.
    ///
    /// # Errors
    /// The process has ended, or a new thread may not be traced.
    pub fn poll(&mut self) -> Result<usize> {
        loop {
            // Those that have stopped may have been killed since: who traces them reaps them.
            let tasks: Vec<Pid> = self.threads.keys().copied().collect();
            for task in tasks {
                self.look_at(task)?;
            }
            let running = self.running().count();
            if running > 0 || self.tell_all()? == 0 {
                return Ok(running);
            }
        }
    }

    /// Polls until all threads stand still. Returns false if some do not in this time.
    ///
    /// # Errors
    /// As [`Held::poll`].
    pub fn wait(&mut self, at_most: Duration) -> Result<bool> {
        let mut patience = Patience::new(at_most);
        loop {
            if self.poll()? == 0 {
                return Ok(true);
            }
            if !patience.pause() {
                return Ok(false);
            }
        }
    }

    /// The threads that have not stopped.
    pub fn running(&self) -> impl Iterator<Item = Pid> {
        self.threads.iter().filter(|(_, thread)| !thread.stopped).map(|(task, _)| *task)
    }

    /// The threads that stand still.
    pub fn stopped(&self) -> impl Iterator<Item = Pid> {
        self.threads.iter().filter(|(_, thread)| thread.stopped).map(|(task, _)| *task)
    }

    /// Lets threads that stand still go on for a moment, and tells them to stop again.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn nudge(&mut self, tasks: &[Pid], moment: Duration) -> Result<()> {
        for &task in tasks {
            match self.tracer.system.resume(task, Until::Stop, 0) {
                // It was killed, which is reported.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno).about(self.pid, "continuing"),
            }
            self.is_running(task);
        }
        std::thread::sleep(moment);
        for &task in tasks {
            self.interrupt(task)?;
        }
        Ok(())
    }

    /// Notes that a thread was told to stop, and has not.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_running(&mut self, task: Pid) {
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.stopped = false;
        }
    }

    /// Lets those go on that have stopped where nobody may wait for them, as `is_there` says, and
    /// tells those again that went on last time.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn let_on(&mut self, is_there: impl Fn(&Self, Pid) -> bool) -> Result<()> {
        let loose = self.threads.iter().filter(|(_, thread)| thread.is_loose);
        for task in loose.map(|(task, _)| *task).collect::<Vec<_>>() {
            self.interrupt(task)?;
            self.set_loose(task, false);
        }
        for task in self.stopped().filter(|task| is_there(self, *task)).collect::<Vec<_>>() {
            match self.tracer.system.resume(task, Until::Stop, 0) {
                // It was killed, which is reported.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno).about(self.pid, "continuing"),
            }
            self.is_running(task);
            self.set_loose(task, true);
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    fn set_loose(&mut self, task: Pid, is_loose: bool) {
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.is_loose = is_loose;
        }
    }

    /// Lets all threads go.
    pub fn release(self) {}

    /// Tells those threads to stop that have not been told. Returns how many those are.
    pub(crate) fn tell_all(&mut self) -> Result<usize> {
        let tasks = self.tracer.system.tasks(self.pid);
        let tasks = tasks.map_err(|errno| if errno == Errno::NOENT { Errno::SRCH } else { errno });
        let mut told = 0;
        for task in tasks.about(self.pid, "listing the threads of")? {
            if !self.threads.contains_key(&task) && self.tell(task)? {
                told += 1;
            }
        }
        if self.threads.is_empty() {
            return Err(AttachError::Gone { pid: self.pid });
        }
        Ok(told)
    }

    /// Tells a thread. Returns false if it has ended.
    fn tell(&mut self, task: Pid) -> Result<bool> {
        let system = &self.tracer.system;
        let before = match LOSES_FIRST_ARGUMENT {
            true => process::blocked_in(system, self.pid, task).unwrap_or(None),
            false => None,
        };
        if !self.tracer.take_late(task) {
            match system.seize(task) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Ok(false),
                Err(Errno::PERM) => return self.why_not(task),
                Err(errno) => return Err(errno).about(self.pid, "tracing"),
            }
        }
        self.threads.insert(task, Thread { stopped: false, is_loose: false, before });
        self.interrupt(task)
    }

    fn interrupt(&mut self, task: Pid) -> Result<bool> {
        match self.tracer.persist(|| match self.tracer.system.interrupt(task) {
            Err(Errno::SRCH) => Ok(Err(Errno::SRCH)),
            other => other.map(Ok),
        }) {
            // ESRCH: it is on its way out, and its end is reported.
            Some(_) => Ok(true),
            None => Err(Errno::IO).about(self.pid, "stopping"),
        }
    }

    /// Says why a thread may not be traced; returns false if because it has ended.
    fn why_not(&self, task: Pid) -> Result<bool> {
        let pid = self.pid;
        match process::status(&self.tracer.system, pid, task) {
            Ok(status) if status.has_ended() => Ok(false),
            Ok(status) if status.tracer != 0 => Err(AttachError::Traced { pid, by: status.tracer }),
            Ok(_) => Err(AttachError::NotPermitted { pid }),
            Err(AttachError::Gone { .. } | AttachError::Kernel { errno: Errno::NOENT, .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes note of what a thread has done since it was told.
    fn look_at(&mut self, task: Pid) -> Result<()> {
        match self.tracer.system.wait(task) {
            Ok(None) => {}
            Ok(Some(Change::Ended)) | Err(Errno::CHILD) => {
                self.threads.remove(&task);
            }
            Ok(Some(Change::Stopped(Stop::Told | Stop::Group))) => self.stands(task),
            Ok(Some(Change::Stopped(stop))) => self.pass(task, stop)?,
            Err(errno) => return Err(errno).about(self.pid, "waiting for"),
        }
        Ok(())
    }

    fn stands(&mut self, task: Pid) {
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.stopped = true;
        }
    }

    /// Lets a thread go on from another stop, which has made it forget that it was told.
    fn pass(&mut self, task: Pid, stop: Stop) -> Result<()> {
        let signal = stop.signal();
        self.interrupt(task)?;
        let resumed = self.tracer.system.resume(task, Until::Stop, signal);
        match resumed {
            // It was killed meanwhile, which is reported.
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => {
                self.tracer.persist(|| self.tracer.system.resume(task, Until::Stop, signal));
                Err(errno).about(self.pid, "delivering a signal to")
            }
        }
    }
}

impl<S: System> Drop for Held<'_, S> {
    fn drop(&mut self) {
        for (task, thread) in std::mem::take(&mut self.threads) {
            if thread.stopped {
                self.tracer.let_go(self.pid, task, Stop::Told, thread.before);
            } else {
                if thread.is_loose {
                    // Only who has stopped can be let go.
                    let _ = self.interrupt(task);
                }
                self.tracer.add_late(self.pid, task, thread.before);
            }
        }
        self.tracer.settle();
    }
}
