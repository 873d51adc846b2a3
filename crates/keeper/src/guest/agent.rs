//! Who moves pages of a guest: its agent, as the keeper asks it.
//!
//! Owns: the seam between a keeper and that ([`Mover`]), the agent's channel, and the memory file
//! that it writes to.
//! Invariants: what was moved is read before anything else is asked. An answer is checked against
//! what was asked. The agent follows whoever asks to its CPU: 8 us for a request instead of 45.
//! Not here: which pages to move.

pub(crate) use overspill_agent::RUNS_MAX;
use overspill_agent::{Answer, Outcome, PROTECTED, Request, Run, STAGING_PAGES, kind};
use overspill_guest::{Channel, ChannelError, Kernel, Vpn};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How long an agent may take for a request: it waits for nothing but its CPU.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long it may take before it is looked whether it waits for a page.
const HELP_INTERVAL: Duration = Duration::from_millis(1);

/// Why an agent was of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// The channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// Its answer cannot be.
    #[error("the agent answers what cannot be: {0} pages moved of {1}")]
    Impossible(u32, u64),
    /// What it wrote cannot be read.
    #[error("the agent's memory file cannot be used: {0}")]
    File(io::Error),
}

/// The agent of one guest.
#[derive(Debug)]
pub(crate) struct Agent {
    channel: Channel,
    memory: File,
    /// Whether it will say that what was moved can be read.
    is_writing: bool,
}

/// What the guest may do with memory, if not read and write it and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protection {
    Nothing = 0,
    Read = 1,
    Write = 2,
    Execute = 4,
    ReadExecute = 5,
    WriteExecute = 6,
    /// Execute it, too.
    All = 7,
}

impl Protection {
    /// False for what stays in memory: the right to execute what cannot be written may be refused
    /// when it is to be given back.
    pub(crate) fn may_move(self) -> bool {
        matches!(self, Self::Nothing | Self::Read | Self::All)
    }
}

/// A run that is to leave; where it cannot be written the guest stands still.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Leaving {
    pub(crate) place: Range<Vpn>,
    pub(crate) protection: Option<Protection>,
}

impl From<Range<Vpn>> for Leaving {
    fn from(place: Range<Vpn>) -> Self {
        Self { place, protection: None }
    }
}

/// What became of a run: how many pages moved, and what stopped the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    pub(crate) pages: u64,
    pub(crate) stopped: Option<Errno>,
}

/// Who moves pages of a guest out, from inside.
pub(crate) trait Mover: Send + Debug {
    /// Moves runs out of the guest. Their content, one after the other without a gap, is what
    /// [`read`](Self::read) reads, which must follow.
    ///
    /// # Errors
    /// The agent is of no use any more; what became of the pages is not known.
    fn move_out(&mut self, runs: &[Leaving]) -> Result<Vec<Moved>, AgentError>;

    /// Waits until what was moved can be read, and reads it from its start.
    ///
    /// # Errors
    /// As [`move_out`](Self::move_out).
    fn read(&mut self, content: &mut [u8]) -> Result<(), AgentError>;

    /// Makes the pages of runs the guest's own, as far as the kernel does. While the agent does not
    /// answer, `help` is called again and again: it may wait for a page itself.
    ///
    /// # Errors
    /// As [`move_out`](Self::move_out).
    fn make_own(&mut self, runs: &[Range<Vpn>], help: &mut dyn FnMut()) -> Result<(), AgentError>;

    /// Puts the content of a run back, which is out, of a guest without a userfaultfd.
    ///
    /// # Errors
    /// As [`move_out`](Self::move_out).
    fn fill(&mut self, run: &Leaving, content: &[u8]) -> Result<Moved, AgentError>;

    /// Has touches of runs be signals no more, of a guest without a userfaultfd.
    ///
    /// # Errors
    /// As [`move_out`](Self::move_out).
    fn clear(&mut self, runs: &[Leaving]) -> Result<(), AgentError>;
}

/// Most pages of a request.
pub(crate) const PAGES_MAX: usize = STAGING_PAGES;

impl Agent {
    /// Takes an agent that was set up, with staging registered.
    pub(crate) fn new(channel: Channel, memory: OwnedFd) -> Self {
        Self { channel, memory: memory.into(), is_writing: false }
    }
}

impl Mover for Agent {
    fn move_out(&mut self, runs: &[Leaving]) -> Result<Vec<Moved>, AgentError> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.ask(&request(kind::BATCH, runs))?;
        self.is_writing = true;
        let outcomes =
            runs.iter().zip(&answer.runs).map(|(run, outcome)| checked(&run.place, outcome));
        outcomes.collect()
    }

    fn read(&mut self, content: &mut [u8]) -> Result<(), AgentError> {
        if std::mem::take(&mut self.is_writing) {
            self.channel.await_answer(&Kernel::new(), PATIENCE)?;
        }
        self.memory.read_exact_at(content, 0).map_err(AgentError::File)
    }

    fn make_own(&mut self, runs: &[Range<Vpn>], help: &mut dyn FnMut()) -> Result<(), AgentError> {
        let system = Kernel::new();
        let runs: Vec<Leaving> = runs.iter().cloned().map(Leaving::from).collect();
        self.channel.send(&system, &request(kind::POPULATE, &runs), &[])?;
        let mut rounds = (PATIENCE.as_nanos() / HELP_INTERVAL.as_nanos()) as u32;
        while !self.channel.is_readable(&system, HELP_INTERVAL)? && rounds > 0 {
            rounds -= 1;
            help();
        }
        self.channel.answer(&system)?;
        Ok(())
    }

    fn fill(&mut self, run: &Leaving, content: &[u8]) -> Result<Moved, AgentError> {
        self.memory.write_all_at(content, 0).map_err(AgentError::File)?;
        let answer = self.ask(&request(kind::FILL, std::slice::from_ref(run)))?;
        checked(&run.place, &answer.runs[0])
    }

    fn clear(&mut self, runs: &[Leaving]) -> Result<(), AgentError> {
        runs.chunks(RUNS_MAX).try_for_each(|runs| {
            let answer = self.ask(&request(kind::CLEAR, runs))?;
            let all = runs.iter().zip(&answer.runs);
            all.map(|(run, outcome)| checked(&run.place, outcome))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(())
        })
    }
}

impl Agent {
    fn ask(&self, request: &Request) -> Result<Answer, AgentError> {
        Ok(self.channel.ask(&Kernel::new(), request, &[], PATIENCE)?)
    }
}

fn request(kind: u32, runs: &[Leaving]) -> Request {
    let mut request = Request::of(kind);
    let cpu = rustix::thread::sched_getcpu();
    (request.count, request.cpu) = (runs.len() as u32, cpu as u32);
    if let Some(word) = request.cpus.get_mut(cpu / 64) {
        *word = 1 << (cpu % 64);
    }
    for (run, Leaving { place, protection }) in request.runs.iter_mut().zip(runs) {
        let protection = protection.map_or(0, |protection| PROTECTED | protection as u32);
        let pages = Vpn::pages(place) as u32;
        *run = Run { address: place.start.address(), pages, protection };
    }
    request
}

fn checked(run: &Range<Vpn>, outcome: &Outcome) -> Result<Moved, AgentError> {
    let pages = Vpn::pages(run);
    if u64::from(outcome.pages) > pages {
        return Err(AgentError::Impossible(outcome.pages, pages));
    }
    let stopped = match outcome.errno {
        0 => None,
        errno @ 1..4096 => Some(Errno::from_raw_os_error(errno)),
        _ => Some(Errno::PROTO),
    };
    Ok(Moved { pages: outcome.pages.into(), stopped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_is_an_error() {
        let run = Vpn(5).run(4);
        let outcome = |pages, errno| checked(&run, &Outcome { pages, errno });
        assert_eq!(outcome(4, 0).unwrap(), Moved { pages: 4, stopped: None });
        let stopped = Some(Errno::BUSY);
        assert_eq!(outcome(1, 16).unwrap(), Moved { pages: 1, stopped });
        assert!(matches!(outcome(5, 0), Err(AgentError::Impossible(5, 4))));
        assert_eq!(outcome(0, -7).unwrap().stopped, Some(Errno::PROTO));
    }
}
