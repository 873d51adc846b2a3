//! A process that became a guest, as far as the front knows it.
//!
//! Owns: its process and its agent's, by descriptor, and how far what the front does with it has
//! come: letting it go, or bringing it back for its tracer.
//! Not here: what it is made of (`attaching`), its pages (`overspill_keeper`).

use crate::family::wait_for;
use crate::same::has_executed;
use overspill_agent::{Request, kind};
use overspill_guest::{AgentTask, FileId, Gate, Kernel, Vpn, pidfd};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an agent may take to leave what its program has left.
const LEAVE_WAIT: Duration = Duration::from_millis(100);
/// How long a process may take to end that was killed with its agent.
const END_WAIT: Duration = Duration::from_millis(50);

/// A process that became a guest, as far as the front knows it.
#[derive(Debug)]
pub(crate) struct Guest {
    /// By which the keeper knows it.
    pub(crate) number: u64,
    process: OwnedFd,
    /// Its channel is open here, too: an agent whose channel has ended ends its program, which may
    /// be another one when the keeper has let it go.
    pub(crate) agent: AgentTask,
    /// Through which its calls go, if they are caught, and the file of its letters.
    pub(crate) gate: Option<Gate>,
    pub(crate) letters: Option<FileId>,
    /// Whether it was said that the process is ended for want of its agent.
    is_told: Cell<bool>,
    pub(crate) leaving: Leaving,
    /// Since when nothing of it comes back, if it is to be let go.
    pub(crate) stuck: Option<Instant>,
    pub(crate) traced: Traced,
}

/// How far a guest that is to be let go has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    /// Its pages come back while it goes on: those from here on are to be asked for.
    Returning(Vpn),
    /// Some are asked for.
    Asked,
    /// They are back, but for what went out since: it is to stand still.
    Returned,
    /// It stands still, and the keeper is asked to let it go.
    Going,
    /// The keeper has let it go: its agent is all that is left.
    LetGo,
}

impl Leaving {
    /// Before it begins.
    pub(crate) const NOT_BEGUN: Self = Self::Returning(Vpn(0));
}

/// Whether a guest is brought back for its tracer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Traced {
    No,
    /// What is from here on is to be asked for.
    Returning(Vpn),
    /// Some is asked for.
    Asked,
    /// All of it came back then.
    Back(Instant),
    /// There is no room, or something does not come.
    Stays,
}

impl Guest {
    pub(crate) fn new(
        number: u64,
        process: OwnedFd,
        agent: AgentTask,
        (gate, letters): (Option<Gate>, Option<FileId>),
    ) -> Self {
        Self {
            number,
            process,
            agent,
            gate,
            letters,
            is_told: Cell::new(false),
            leaving: Leaving::NOT_BEGUN,
            stuck: None,
            traced: Traced::No,
        }
    }

    /// Begins again with what brings it back: nobody waits for what was asked.
    pub(crate) fn stay(&mut self) {
        if !matches!(self.leaving, Leaving::Going | Leaving::LetGo) {
            (self.leaving, self.stuck) = (Leaving::NOT_BEGUN, None);
        }
        if self.traced == Traced::Asked {
            self.traced = Traced::Returning(Vpn(0));
        }
    }

    /// True if the process has ended, or executes another program.
    pub(crate) fn has_left(&self, pid: Pid) -> bool {
        pidfd::has_ended(&self.process) || has_executed(pid, self.agent.pid, self.agent.base)
    }

    /// True if the agent alone has ended, which without our help it only does with its program: the
    /// kernel kills both for want of memory.
    pub(crate) fn lacks_agent(&self) -> bool {
        pidfd::has_ended(&self.agent.process) && !pidfd::ends_within(&self.process, END_WAIT)
    }

    /// The process.
    pub(crate) fn process(&self) -> &OwnedFd {
        &self.process
    }

    /// Notes that it is said that the process is ended; true the first time.
    pub(crate) fn is_to_be_told(&self) -> bool {
        !self.is_told.replace(true)
    }

    /// Ends the agent, and reaps it if it is a child of ours. If it is one of a program's that
    /// takes its descendants' orphans, that sees the status of one that has done what it had to.
    pub(crate) fn end_agent(&self) {
        let AgentTask { pid, process, channel, .. } = &self.agent;
        let asked = channel.send(&Kernel::new(), &Request::of(kind::LEAVE), &[]);
        if asked.is_err() || !pidfd::ends_within(process, LEAVE_WAIT) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        wait_for(*pid);
    }
}
