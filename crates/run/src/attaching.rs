//! How a process of the run becomes a guest of the keeper.
//!
//! Owns: the steps from a held process to what the keeper takes over.
//! Invariant: what fails leaves the process as it was.
//! Not here: when, and whom (`front`).

use crate::births::{Child, Children};
use crate::forks::Forks;
use crate::ground::{Ground, Lack, check, shared_file};
use crate::guest::Guest;
use crate::watch::words_of;
use overspill_agent::gate::{GATE_BYTES, LETTERS_BYTES};
use overspill_agent::{AGENT_BYTES, Barrier, Request, STAGING_BYTES, kind};
use overspill_guest::userfault::GuestUserfault;
use overspill_guest::{
    AgentTask, AttachError, Attached, Catch, ChannelError, FileId, Files, Gate, Held, Kernel,
    LETTERS, Manner, ThreadWords, Userfaultfd, Vpn, attach, can_shut, detach, inherited, open,
    shut,
};
use overspill_keeper::{GuestParts, SourceParts};
use overspill_wire::Descriptor;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::time::Duration;

/// How long an agent may take to register its staging.
const AGENT_WAIT: Duration = Duration::from_secs(5);

/// The part of the limit that a call may hold, and what it may in any case.
const HOLD_PART: u64 = 4;
const HOLD_PAGES_LEAST: u64 = 256;

/// Pages of words and environment that stay in memory, at most.
const WORDS_PAGES_MAX: usize = 16;

/// Why a process cannot be paged.
#[derive(Debug, thiserror::Error)]
pub enum AttachingError {
    /// No agent could be put there.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The kernel or our rights are not enough.
    #[error(transparent)]
    Lacks(#[from] Lack),
    /// The kernel refuses.
    #[error("{0}: {1}")]
    Kernel(&'static str, Errno),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ChannelError),
    /// It has memory that a guest shares with its keeper, and that guest has not told of it.
    #[error("process {0} has memory by which another one is paged, and is no child of that")]
    Untold(Pid),
    /// It had a userfaultfd before anything was paged.
    #[error("process {0} pages memory of its own, by a userfaultfd")]
    PagesItself(Pid),
}

/// A process that stands still, as far as it is known to a keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Newcomer<'c> {
    /// It is not, and gets this number.
    New(u64),
    /// A guest has forked it: it is one of these, by its userfaultfd.
    Forked(&'c Children),
    /// The same, but it has none: it is this one.
    Born(u64),
}

/// What tells of the touches of a guest, and where it is from.
#[derive(Clone, Debug)]
enum Touches<'a> {
    /// A userfaultfd that is made for it, whose messages of forks these can ask for. Without them
    /// its gate tells of its children.
    Made { number: u64, userfaultfd: Userfaultfd<'a>, forks: Option<&'a Forks> },
    /// The one that it was forked with: one of these.
    Forked(Vec<(u64, &'a GuestUserfault)>),
    /// Signals.
    Signals { number: u64, listener: Option<BorrowedFd<'a>>, barrier: Barrier },
}

impl<'a> Touches<'a> {
    /// `None` for a child of another way: its userfaultfd is none of ours.
    fn of(ground: &'a Ground, newcomer: Newcomer<'a>) -> Option<Self> {
        Some(match (ground, newcomer) {
            (Ground::Faults(device, forks), Newcomer::New(number)) => {
                let userfaultfd = Userfaultfd::Device(device.as_fd());
                Self::Made { number, userfaultfd, forks: Some(forks) }
            }
            (Ground::Calls(_), Newcomer::New(number)) => {
                Self::Made { number, userfaultfd: Userfaultfd::Call, forks: None }
            }
            (Ground::Faults(..) | Ground::Calls(_), Newcomer::Forked(children)) => {
                Self::Forked(with_userfaultfd(children).collect())
            }
            (
                Ground::Signals { listener, barrier, .. },
                Newcomer::New(number) | Newcomer::Born(number),
            ) => {
                let listener = listener.as_ref().map(AsFd::as_fd);
                Self::Signals { number, listener, barrier: *barrier }
            }
            (Ground::Faults(..) | Ground::Calls(_), Newcomer::Born(_))
            | (Ground::Signals { .. }, Newcomer::Forked(_)) => return None,
        })
    }

    /// The userfaultfds that it may have been forked with.
    fn brought(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Forked(children) => children.iter().map(|(_, fd)| fd.as_fd()).collect(),
            Self::Made { .. } | Self::Signals { .. } => Vec::new(),
        }
    }

    fn userfaultfd<'b>(&'b self, brought: &'b [BorrowedFd<'b>]) -> Userfaultfd<'b> {
        match *self {
            Self::Made { userfaultfd, .. } => userfaultfd,
            Self::Forked(_) => Userfaultfd::Forked(brought),
            Self::Signals { listener, barrier, .. } => Userfaultfd::None { listener, barrier },
        }
    }

    /// Agrees with the kernel on the userfaultfd, if there is one, and has the agent register its
    /// staging.
    fn prepare(&self, attached: &Attached) -> Result<(SourceParts, u64), AttachingError> {
        let copy = |what, fd: BorrowedFd<'_>| kernel(what, rustix::io::fcntl_dupfd_cloexec(fd, 3));
        let fd = || {
            let userfaultfd = attached.userfaultfd.as_ref().expect("it was asked for");
            copy("copy the userfaultfd", userfaultfd.as_fd())
        };
        let anchor = Vpn::of(attached.agent.staging);
        let (userfault, number) = match self {
            Self::Signals { number, barrier, .. } => {
                let process = copy("copy a pidfd", attached.process.as_fd())?;
                return Ok((SourceParts::Signals { process, barrier: *barrier }, *number));
            }
            Self::Made { number, forks, .. } => {
                let agreed = match forks {
                    Some(forks) => {
                        let ask = |fd: BorrowedFd<'_>, features| forks.ask(fd, features);
                        GuestUserfault::agree(fd()?, anchor, ask)
                    }
                    None => GuestUserfault::agree_alone(fd()?, anchor),
                };
                let userfault = kernel("set up the userfaultfd", agreed)?;
                check(userfault.abilities(), forks.is_some())?;
                (userfault, *number)
            }
            Self::Forked(children) => {
                let (number, child) = children[attached.forked];
                (GuestUserfault::agreed(fd()?, child.abilities(), Some(anchor)), number)
            }
        };
        let request = Request::of(kind::REGISTER);
        attached.agent.channel.ask(&Kernel::new(), &request, &[], AGENT_WAIT)?;
        Ok((SourceParts::Userfault(userfault), number))
    }
}

fn with_userfaultfd(children: &Children) -> impl Iterator<Item = (u64, &GuestUserfault)> {
    children.iter().filter_map(|(number, child)| match child {
        Child::Userfault(userfault, _) => Some((*number, userfault)),
        Child::Process(_) => None,
    })
}

/// The gate that a guest's calls go through.
#[derive(Clone, Copy, Debug)]
struct Caught<'a> {
    bell: &'a OwnedFd,
    catch: Catch,
    /// Whether it was forked with one.
    is_inherited: bool,
}

impl<'a> Caught<'a> {
    /// `None` where the kernel tells of all touches. A call holds a part of the limit at most.
    fn of(ground: &'a Ground, newcomer: Newcomer<'a>, limit_pages: u64) -> Option<Self> {
        let (bell, barrier) = match ground {
            Ground::Faults(..) => return None,
            Ground::Calls(bell) => (bell, None),
            Ground::Signals { bell, barrier, .. } => (bell, Some(*barrier)),
        };
        let most = (limit_pages / HOLD_PART).clamp(HOLD_PAGES_LEAST, u32::MAX.into());
        let catch = Catch { barrier, hold_pages_max: most as u32 };
        Some(Self { bell, catch, is_inherited: !matches!(newcomer, Newcomer::New(_)) })
    }

    /// Looks whether it can be shut now.
    fn check(self, held: &mut Held<'_, Kernel>) -> Result<(), AttachError> {
        if self.is_inherited { inherited(held).map(drop) } else { can_shut(held) }
    }

    /// Shuts it, if it was not inherited so, and has the agent share bell and letters with it.
    fn shut(
        self,
        held: &mut Held<'_, Kernel>,
        attached: &Attached,
    ) -> Result<Gated, AttachingError> {
        let bell = kernel("copy the bell", rustix::io::fcntl_dupfd_cloexec(self.bell, 3))?;
        let letters = kernel("make a memory file", shared_file(LETTERS, LETTERS_BYTES))?;
        let gate = if self.is_inherited { inherited(held)? } else { shut(held, self.catch)? };
        let mut request = Request::of(kind::GATE);
        request.runs[0].address = gate.base;
        let files = [bell.as_fd(), letters.as_fd()];
        match attached.agent.channel.ask(&Kernel::new(), &request, &files, AGENT_WAIT) {
            Ok(_) => Ok(Gated { gate, letters: [bell, letters].map(Descriptor::from) }),
            Err(error) => {
                let _ = open(held, gate);
                Err(error.into())
            }
        }
    }
}

/// A gate that is shut, with bell and letters.
struct Gated {
    gate: Gate,
    letters: [Descriptor; 2],
}

/// Attaches to a process that stands still, and goes on to, which becomes a guest.
///
/// # Errors
/// [`AttachingError`]; the process is as before.
pub(crate) fn take(
    held: &mut Held<'_, Kernel>,
    (ground, limit_pages): (&Ground, u64),
    newcomer: Newcomer<'_>,
) -> Result<(Guest, GuestParts), AttachingError> {
    let touches = Touches::of(ground, newcomer);
    let is_known = |touches: &Touches<'_>| !matches!(touches, Touches::Forked(of) if of.is_empty());
    let touches = touches.filter(is_known).ok_or(AttachError::NoFork { pid: held.pid() })?;
    let caught = Caught::of(ground, newcomer, limit_pages);
    // What may not be now is known before anything is changed.
    caught.map_or(Ok(()), |caught| caught.check(held))?;
    let memory = kernel("make a memory file", shared_file("overspill", STAGING_BYTES))?;
    let brought = touches.brought();
    let userfaultfd = touches.userfaultfd(&brought);
    let manner = Manner { memory: memory.as_fd(), userfaultfd, huge_pages: false };
    let attached = attach(held, &manner)?;
    let prepared = touches.prepare(&attached).and_then(|(source, number)| {
        let gated = caught.map(|caught| caught.shut(held, &attached)).transpose()?;
        Ok((source, gated, number))
    });
    let (source, gated, number) =
        prepared.inspect_err(|_| take_back(held, &attached.agent, None))?;
    let Attached { pid, process, agent, threads, files, .. } = attached;
    let gate = gated.as_ref().map(|gated| gated.gate);
    let copies = Copies::of(files, (&process, &agent), gated.as_ref());
    let copies = copies.inspect_err(|_| take_back(held, &agent, gate))?;
    let range = |start: u64, bytes: usize| Vpn::range(&(start..start + bytes as u64));
    let parts = GuestParts {
        name: format!("process {pid}"),
        process,
        agent: copies.agent,
        source,
        pagemap: copies.pagemap,
        maps: copies.maps,
        smaps: copies.smaps,
        statm: copies.statm,
        channel: copies.channel.into(),
        memory,
        own: [
            range(agent.base, AGENT_BYTES),
            range(agent.staging, STAGING_BYTES),
            gate.map_or(Vpn(0)..Vpn(0), |gate| range(gate.base, GATE_BYTES)),
        ],
        letters: gated.map(|gated| gated.letters),
        needed: threads.iter().flat_map(needed).chain(words(pid)).collect(),
    };
    Ok((Guest::new(number, copies.process, agent, (gate, copies.letters)), parts))
}

/// Takes back what was put into a process. If that fails too, the agent ends with its channel, and
/// the process with it.
fn take_back(held: &mut Held<'_, Kernel>, agent: &AgentTask, gate: Option<Gate>) {
    if gate.is_none_or(|gate| open(held, gate).is_ok()) {
        let _ = detach(held, agent);
    }
}

/// What front and keeper both have of a guest, and what is the keeper's alone.
struct Copies {
    process: OwnedFd,
    agent: OwnedFd,
    channel: OwnedFd,
    pagemap: OwnedFd,
    maps: OwnedFd,
    smaps: OwnedFd,
    statm: OwnedFd,
    letters: Option<FileId>,
}

impl Copies {
    fn of(
        files: Files,
        (process, agent): (&OwnedFd, &AgentTask),
        gated: Option<&Gated>,
    ) -> Result<Self, AttachingError> {
        let copy = |what, fd: BorrowedFd<'_>| kernel(what, rustix::io::fcntl_dupfd_cloexec(fd, 3));
        let file = |gated: &Gated| kernel("look at a memory file", FileId::of(&gated.letters[1]));
        Ok(Self {
            process: copy("copy a pidfd", process.as_fd())?,
            agent: copy("copy a pidfd", agent.process.as_fd())?,
            channel: copy("copy a channel", agent.channel.as_fd())?,
            pagemap: kernel("open its page table", files.pagemap)?,
            maps: kernel("open its list of mappings", files.maps)?,
            smaps: kernel("open its list of mappings", files.smaps)?,
            statm: kernel("open its sizes", files.statm)?,
            letters: gated.map(file).transpose()?,
        })
    }
}

/// The pages of a program's words: the kernel reads them for `ps` and for core dumps, and waits for
/// none.
fn words(pid: Pid) -> impl Iterator<Item = Vpn> {
    let pages = words_of(pid).map_or(Vpn(0)..Vpn(0), |words| Vpn::range(&words));
    (pages.start.0..pages.end.0).map(Vpn).take(WORDS_PAGES_MAX)
}

/// The pages that the kernel needs at a thread's end.
fn needed(thread: &ThreadWords) -> impl Iterator<Item = Vpn> {
    // The head of a robust list lies in what libc keeps of a thread, and so do the words around it.
    let around = thread.robust_list.map(|head| [head.saturating_sub(256), head + 256]);
    let exact = [thread.rseq, thread.clear_child_tid, thread.robust_list];
    exact.into_iter().flatten().chain(around.into_iter().flatten()).map(Vpn::of)
}

fn kernel<T>(what: &'static str, result: Result<T, Errno>) -> Result<T, AttachingError> {
    result.map_err(|errno| AttachingError::Kernel(what, errno))
}
