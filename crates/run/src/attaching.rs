//! How a process of the run becomes a guest of the keeper.
//!
//! Owns: the steps from a held process to what the keeper takes over.
//! Invariant: what fails leaves the process as it was.
//! Not here: when, and whom (`front`).

use crate::births::{Child, Children};
use crate::family::wait_for;
use crate::front::Traced;
use crate::ground::{Ground, shared_file};
use crate::same::has_executed;
use crate::watch::words_of;
use overspill_agent::gate::{GATE_BYTES, LETTERS_BYTES};
use overspill_agent::{AGENT_BYTES, Request, STAGING_BYTES, kind};
use overspill_guest::userfault::{Abilities, GuestUserfault};
use overspill_guest::{
    AgentTask, AttachError, Attached, Catch, ChannelError, FileId, Gate, Held, Kernel, LETTERS,
    Manner, ThreadWords,
};
use overspill_guest::{Userfaultfd, Vpn, attach, can_shut, detach, inherited, open, pidfd, shut};
use overspill_keeper::{GuestParts, SourceParts};
use overspill_wire::Descriptor;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an agent may take to leave what its program has left.
const LEAVE_WAIT: Duration = Duration::from_millis(100);
/// How long a process may take to end that was killed with its agent.
const END_WAIT: Duration = Duration::from_millis(50);
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
    #[error("userfaultfd has no {0} here: {1} is needed")]
    Lacks(&'static str, &'static str),
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
    /// Its pages come back while it goes on, from here on.
    Returning(Vpn),
    /// They are back, but for what went out since: it is to stand still.
    Returned,
    /// The keeper has let it go: its agent is all that is left.
    LetGo,
}

impl Leaving {
    /// Before it begins.
    pub(crate) const NOT_BEGUN: Self = Self::Returning(Vpn(0));
}

impl Guest {
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

/// How a process comes to its userfaultfd and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'s> {
    /// It gets both.
    New(u64),
    /// A guest has forked it: it is one of these, by its userfaultfd.
    Forked(&'s Children),
    /// The same, but it has none: it is this one.
    Born(u64),
}

/// Attaches to a process that stands still, and goes on to, which becomes a guest.
///
/// # Errors
/// [`AttachingError`]; the process is as before.
pub(crate) fn take(
    held: &mut Held<'_, Kernel>,
    (ground, limit_pages): (&Ground, u64),
    source: Source<'_>,
) -> Result<(Guest, GuestParts), AttachingError> {
    if matches!(source, Source::Forked(children) if children.is_empty()) {
        return Err(AttachError::NoFork { pid: held.pid() }.into());
    }
    // What may not be now is known before anything is changed.
    match (ground, source) {
        (Ground::Faults(..), _) => {}
        (_, Source::New(_)) => can_shut(held)?,
        (_, Source::Forked(_) | Source::Born(_)) => drop(inherited(held)?),
    }
    let memory = kernel("make a memory file", shared_file("overspill", STAGING_BYTES))?;
    let brought: Vec<BorrowedFd<'_>> = match source {
        Source::New(_) | Source::Born(_) => Vec::new(),
        Source::Forked(children) => with_userfaultfd(children).map(|(_, fd)| fd.as_fd()).collect(),
    };
    let userfaultfd = match (source, ground) {
        (_, Ground::Signals { listener, barrier, .. }) => {
            let listener = listener.as_ref().map(AsFd::as_fd);
            Userfaultfd::None { listener, barrier: *barrier }
        }
        (Source::Born(_), _) => return Err(AttachError::NoFork { pid: held.pid() }.into()),
        (Source::Forked(_), _) => Userfaultfd::Forked(&brought),
        (Source::New(_), Ground::Faults(device, _)) => Userfaultfd::Device(device.as_fd()),
        (Source::New(_), Ground::Calls(_)) => Userfaultfd::Call,
    };
    let manner = Manner { memory: memory.as_fd(), userfaultfd, huge_pages: false };
    let attached = attach(held, &manner)?;
    let prepared = prepare(&attached, ground, source).and_then(|(parts, number)| {
        let hold_pages = (limit_pages / HOLD_PART).clamp(HOLD_PAGES_LEAST, u32::MAX.into());
        let caught = match ground {
            Ground::Faults(..) => None,
            Ground::Calls(bell) => Some((bell, None)),
            Ground::Signals { bell, barrier, .. } => Some((bell, Some(*barrier))),
        };
        let gated = caught.map(|(bell, barrier)| {
            let gate = Catch { barrier, hold_pages_max: hold_pages as u32 };
            catch(held, &attached, (bell, gate), source)
        });
        let gated = gated.transpose()?;
        Ok((parts, gated, number))
    });
    match prepared {
        Ok((parts, gated, number)) => Ok(hand_over(attached, parts, gated, memory, number)?),
        Err(error) => {
            // If that fails too, the agent ends with its channel, and the process with it.
            let _ = detach(held, &attached.agent);
            Err(error)
        }
    }
}

/// A gate that is shut, with bell and letters.
struct Gated {
    gate: Gate,
    letters: [Descriptor; 2],
}

/// Shuts the gate, if it was not inherited so, and has the agent share bell and letters with it.
fn catch(
    held: &mut Held<'_, Kernel>,
    attached: &Attached,
    (bell, gate): (&OwnedFd, Catch),
    source: Source<'_>,
) -> Result<Gated, AttachingError> {
    let bell = kernel("copy the bell", rustix::io::fcntl_dupfd_cloexec(bell, 3))?;
    let letters = kernel("make a memory file", shared_file(LETTERS, LETTERS_BYTES))?;
    let gate = match source {
        Source::New(_) => shut(held, gate)?,
        Source::Forked(_) | Source::Born(_) => inherited(held)?,
    };
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

/// Agrees with the kernel on the userfaultfd, if there is one, and has the agent register its
/// staging.
fn prepare(
    attached: &Attached,
    ground: &Ground,
    source: Source<'_>,
) -> Result<(SourceParts, u64), AttachingError> {
    let copy = |what, fd: BorrowedFd<'_>| kernel(what, rustix::io::fcntl_dupfd_cloexec(fd, 3));
    let Some(userfaultfd) = &attached.userfaultfd else {
        let process = copy("copy a pidfd", attached.process.as_fd())?;
        let (Source::New(number) | Source::Born(number)) = source else {
            return Err(AttachError::NoFork { pid: attached.pid }.into());
        };
        let Ground::Signals { barrier, .. } = ground else {
            return Err(AttachError::NoFork { pid: attached.pid }.into());
        };
        return Ok((SourceParts::Signals { process, barrier: *barrier }, number));
    };
    let fd = copy("copy the userfaultfd", userfaultfd.as_fd())?;
    let anchor = Vpn::of(attached.agent.staging);
    let (userfault, number) = match source {
        Source::New(number) => {
            let (agreed, needs_forks) = match ground {
                Ground::Faults(_, forks) => {
                    let ask = |fd: BorrowedFd<'_>, features| forks.ask(fd, features);
                    (GuestUserfault::agree(fd, anchor, ask), true)
                }
                Ground::Calls(_) | Ground::Signals { .. } => {
                    (GuestUserfault::agree_alone(fd, anchor), false)
                }
            };
            let userfault = kernel("set up the userfaultfd", agreed)?;
            check(userfault.abilities(), needs_forks)?;
            (userfault, number)
        }
        Source::Forked(children) => {
            let child = with_userfaultfd(children).nth(attached.forked);
            let (number, child) = child.expect("one of them");
            (GuestUserfault::agreed(fd, child.abilities(), Some(anchor)), number)
        }
        Source::Born(_) => return Err(AttachError::NoFork { pid: attached.pid }.into()),
    };
    let request = Request::of(kind::REGISTER);
    attached.agent.channel.ask(&Kernel::new(), &request, &[], AGENT_WAIT)?;
    Ok((SourceParts::Userfault(userfault), number))
}

fn with_userfaultfd(children: &Children) -> impl Iterator<Item = (u64, &GuestUserfault)> {
    children.iter().filter_map(|(number, child)| match child {
        Child::Userfault(userfault, _) => Some((*number, userfault)),
        Child::Process(_) => None,
    })
}

/// Without the messages of forks a child would read zeros for what is out, unless its gate sees to
/// that.
pub(crate) fn check(abilities: Abilities, needs_forks: bool) -> Result<(), AttachingError> {
    match abilities {
        Abilities { moves: false, .. } => {
            Err(AttachingError::Lacks("moves that can be relied on", "Linux 6.12"))
        }
        Abilities { marks: false, .. } => Err(AttachingError::Lacks(
            "marks of pages that are out",
            "a kernel with CONFIG_PTE_MARKER_UFFD_WP",
        )),
        Abilities { forks: false, .. } if needs_forks => Err(AttachingError::Lacks(
            "messages of forks",
            "CAP_SYS_PTRACE, or overspill-forks with it,",
        )),
        _ => Ok(()),
    }
}

fn hand_over(
    attached: Attached,
    source: SourceParts,
    gated: Option<Gated>,
    memory: OwnedFd,
    number: u64,
) -> Result<(Guest, GuestParts), AttachingError> {
    let files = attached.files;
    let agent = attached.agent;
    let copy = |what, fd: BorrowedFd<'_>| kernel(what, rustix::io::fcntl_dupfd_cloexec(fd, 3));
    let process = copy("copy a pidfd", attached.process.as_fd())?;
    let channel = copy("copy a channel", agent.channel.as_fd())?;
    let (gate, letters) = gated.map(|Gated { gate, letters }| (gate, letters)).unzip();
    let file =
        |[_, letters]: &[Descriptor; 2]| kernel("look at a memory file", FileId::of(letters));
    let letters_file = letters.as_ref().map(file).transpose()?;
    let range = |start: u64, bytes: usize| Vpn::range(&(start..start + bytes as u64));
    let parts = GuestParts {
        name: format!("process {}", attached.pid),
        process: attached.process,
        agent: copy("copy a pidfd", agent.process.as_fd())?,
        source,
        pagemap: kernel("open its page table", files.pagemap)?,
        maps: kernel("open its list of mappings", files.maps)?,
        smaps: kernel("open its list of mappings", files.smaps)?,
        statm: kernel("open its sizes", files.statm)?,
        channel: channel.into(),
        memory,
        own: [
            range(agent.base, AGENT_BYTES),
            range(agent.staging, STAGING_BYTES),
            gate.map_or(Vpn(0)..Vpn(0), |gate| range(gate.base, GATE_BYTES)),
        ],
        letters,
        needed: attached.threads.iter().flat_map(needed).chain(words(attached.pid)).collect(),
    };
    let guest = Guest {
        number,
        process,
        agent,
        gate,
        letters: letters_file,
        is_told: Cell::new(false),
        leaving: Leaving::NOT_BEGUN,
        stuck: None,
        traced: Traced::No,
    };
    Ok((guest, parts))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_userfaultfd_lacks_is_said_with_what_is_needed() {
        let all = Abilities { marks: true, poison: false, moves: true, forks: false };
        assert!(check(all, false).is_ok());
        let lacks = |abilities, needs_forks| check(abilities, needs_forks).unwrap_err().to_string();
        assert!(lacks(Abilities { moves: false, ..all }, false).contains("Linux 6.12"));
        assert!(lacks(Abilities { marks: false, ..all }, false).contains("PTE_MARKER_UFFD_WP"));
        assert!(lacks(all, true).contains("overspill-forks"));
    }
}
