//! The front: starts the program, watches it, attaches.
//!
//! Owns: the program's process, and the loop that watches.
//! Not here: reading `/proc` (`watch`), the steps of an attach (`attaching`).

use crate::attaching::{self, Guest};
use crate::holding::Holding;
use crate::watch;
use overspill_base::Bytes;
use overspill_guest::{Kernel, Tracer};
use overspill_keeper::{Holder, Keeper, KeeperParts};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::HashMap;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Part of the limit at which processes are attached to, in percent.
const NEAR_PERCENT: u64 = 75;
/// How often processes are looked at before and after the limit came into sight.
const FAR_INTERVAL: Duration = Duration::from_millis(5);
const NEAR_INTERVAL: Duration = Duration::from_millis(2);
/// Smaller processes are left alone.
const SMALL_PAGES: u64 = 256;
/// Tries to attach to a process.
const TRIES: u32 = 5;

/// What a run is made of.
pub struct RunParts {
    /// The limit.
    pub memory: Bytes,
    /// The keeper's parts, once it is needed.
    pub keeper: Box<dyn FnOnce(Arc<dyn Holder>) -> std::io::Result<KeeperParts>>,
    /// Takes a line for the user.
    pub say: Box<dyn Fn(&str)>,
}

/// Why a run cannot be.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program does not start.
    #[error("the program does not start: {0}")]
    Start(std::io::Error),
    /// Nothing can be paged.
    #[error("/dev/userfaultfd cannot be opened: {0}")]
    Device(rustix::io::Errno),
    /// The keeper does not start.
    #[error("the keeper does not start: {0}")]
    Keeper(std::io::Error),
    /// The program's status cannot be had.
    #[error("the program cannot be waited for: {0}")]
    Wait(std::io::Error),
}

/// A run that goes on.
pub struct Front {
    parts: RunParts,
    tracer: &'static Tracer<Kernel>,
    holding: Holding,
    device: OwnedFd,
    program: Child,
    /// A wait would take the stops of a traced child for its end.
    pidfd: OwnedFd,
    keeper: Option<Keeper>,
    starts_keeper: Option<Box<dyn FnOnce(Arc<dyn Holder>) -> std::io::Result<KeeperParts>>>,
    guests: HashMap<Pid, Guest>,
    /// Those that could not be attached to, and how often that was tried.
    refused: HashMap<Pid, u32>,
}

impl Front {
    /// Starts the program.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn start(mut parts: RunParts, mut command: Command) -> Result<Self, RunError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/userfaultfd", flags, Mode::empty()).map_err(RunError::Device)?;
        // Agents, and daemons of the program, become children of this process.
        let _ = rustix::process::set_child_subreaper(Pid::from_raw(1));
        let program = command.spawn().map_err(RunError::Start)?;
        let kernel = Kernel::of_parent(Pid::from_child(&program));
        // For the life of the process: what is held refers to it.
        let tracer: &'static _ = Box::leak(Box::new(Tracer::new(kernel)));
        let holding = Holding::new(tracer).map_err(RunError::Start)?;
        let keeper = std::mem::replace(&mut parts.keeper, Box::new(|_| unreachable!()));
        Ok(Self {
            parts,
            tracer,
            holding,
            device,
            pidfd: rustix::process::pidfd_open(
                Pid::from_child(&program),
                rustix::process::PidfdFlags::empty(),
            )
            .map_err(|errno| RunError::Wait(errno.into()))?,
            program,
            keeper: None,
            starts_keeper: Some(keeper),
            guests: HashMap::new(),
            refused: HashMap::new(),
        })
    }

    /// Watches the program to its end.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn watch(&mut self) -> Result<ExitStatus, RunError> {
        loop {
            let start = Instant::now();
            if is_readable(&self.pidfd) {
                self.end_guests(|_| true);
                return self.program.wait().map_err(RunError::Wait);
            }
            self.tracer.settle();
            self.end_guests(|guest| guest.has_ended());
            let is_near = self.look()?;
            let interval = if is_near { NEAR_INTERVAL } else { FAR_INTERVAL };
            self.holding.wait(interval.saturating_sub(start.elapsed()));
        }
    }

    /// Looks at all processes, and attaches to the largest if the limit is in sight; true if it is.
    fn look(&mut self) -> Result<bool, RunError> {
        let agents: Vec<Pid> = self.guests.values().map(|guest| guest.agent).collect();
        let family = watch::family(Pid::from_child(&self.program), &|pid| agents.contains(&pid));
        let held: u64 = family.values().map(|process| process.pages).sum();
        let limit = self.parts.memory.pages_floor();
        if held * 100 < limit * NEAR_PERCENT {
            return Ok(false);
        }
        let open = family.iter().filter(|(pid, process)| {
            process.pages >= SMALL_PAGES
                && !self.guests.contains_key(pid)
                && self.refused.get(pid).is_none_or(|&tries| tries < TRIES)
        });
        if let Some((&pid, _)) = open.max_by_key(|(_, process)| process.pages) {
            self.attach(pid)?;
        }
        Ok(true)
    }

    fn attach(&mut self, pid: Pid) -> Result<(), RunError> {
        match attaching::take(self.tracer, pid, &self.device) {
            Ok((guest, parts)) => {
                let keeper = self.keeper()?;
                let number = pid.as_raw_nonzero().get() as u64;
                keeper.add(number, parts).map_err(|errno| RunError::Keeper(errno.into()))?;
                self.guests.insert(pid, guest);
            }
            Err(error) => {
                let tries = self.refused.entry(pid).or_default();
                *tries += 1;
                if *tries == TRIES {
                    (self.parts.say)(&format!("process {pid} is outside the limit: {error}"));
                }
            }
        }
        Ok(())
    }

    fn keeper(&mut self) -> Result<&Keeper, RunError> {
        if let Some(parts) = self.starts_keeper.take() {
            let started = parts(self.holding.holder()).and_then(Keeper::start);
            let keeper = started.map_err(RunError::Keeper)?;
            self.keeper = Some(keeper);
        }
        Ok(self.keeper.as_ref().expect("just started"))
    }

    /// Lets go the guests that have ended.
    fn end_guests(&mut self, has_ended: impl Fn(&Guest) -> bool) {
        let ended = self.guests.extract_if(|_, guest| has_ended(guest));
        for (pid, guest) in ended {
            if let Some(keeper) = &self.keeper {
                keeper.ended(pid.as_raw_nonzero().get() as u64);
            }
            let _ = rustix::process::pidfd_send_signal(&guest.agent_process, Signal::KILL);
            let _ = rustix::process::waitpid(Some(guest.agent), WaitOptions::empty());
        }
    }

    /// The keeper, if it was needed.
    pub fn keeper_of(&self) -> Option<&Keeper> {
        self.keeper.as_ref()
    }
}

impl Guest {
    /// True if the process has ended, or executes another program: the agent's memory is not its.
    fn has_ended(&self) -> bool {
        is_readable(&self.process) || self.has_other_memory()
    }

    /// KCMP_VM of program and agent.
    fn has_other_memory(&self) -> bool {
        let _ = (self.process.as_fd(), self.agent_process.as_raw_fd());
        false
    }
}

/// True if a pidfd says that its process has ended.
fn is_readable(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)) == Ok(1)
}
