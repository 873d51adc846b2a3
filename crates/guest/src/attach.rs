//! How a process becomes a guest.
//!
//! Owns: the order of an attach, and what it gives: the agent, its channel, the userfaultfd, open
//! files of the process, and the addresses that the kernel needs at a thread's end.
//! Invariants: what may fail for good is looked at before anything is changed ([`site`]); what is
//! changed is undone when anything fails later ([`work`]).
//! Not here: UFFDIO_API and which memory is registered, which the owner of the tables does.

mod meeting;
mod set_up;
mod site;
mod work;

use crate::channel::Channel;
use crate::error::{AttachError, Result};
use crate::hold::Held;
use crate::inject::Inside;
use crate::system::{System, options};
use overspill_agent::{AGENT_BYTES, Barrier};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
#[cfg(target_arch = "x86_64")]
pub(crate) use site::filter_options;
pub(crate) use site::{Site, wait_for_end};
use work::Work;

/// Where the userfaultfd of a guest comes from.
#[derive(Clone, Copy, Debug)]
pub enum Userfaultfd<'f> {
    /// The system call, which everybody may make: it is for touches by the program's own code
    /// alone.
    Call,
    /// `/dev/userfaultfd`, with ours.
    Device(BorrowedFd<'f>),
    /// It is one of these: events of forks have brought them.
    Forked(&'f [BorrowedFd<'f>]),
    /// There is none: touches of what is out raise signals.
    None {
        /// Where the agent's channel cannot be taken, it connects to this socket, which listens,
        /// and does not block.
        listener: Option<BorrowedFd<'f>>,
        /// What has them raise signals.
        barrier: Barrier,
    },
}

/// How to attach.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'f> {
    /// The file that the agent writes moved pages to.
    pub memory: BorrowedFd<'f>,
    /// Where the userfaultfd comes from.
    pub userfaultfd: Userfaultfd<'f>,
    /// Whether the program goes on to get huge pages.
    pub huge_pages: bool,
}

/// Files of a guest in `/proc`, or why they cannot be opened. They are its agent's, and so stay
/// with the address space: those of the program could not be read any more when it has ended.
#[derive(Debug)]
pub struct Files {
    /// Its mappings.
    pub maps: std::result::Result<OwnedFd, Errno>,
    /// The same with sizes and flags.
    pub smaps: std::result::Result<OwnedFd, Errno>,
    /// Where its pages are.
    pub pagemap: std::result::Result<OwnedFd, Errno>,
    /// How many it has.
    pub statm: std::result::Result<OwnedFd, Errno>,
}

/// Addresses that the kernel reads or writes at a thread's end, when it can wait for no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadWords {
    /// The thread.
    pub task: Pid,
    /// The head of its list of robust futexes, if it has one.
    pub robust_list: Option<u64>,
    /// Its area for restartable sequences, if it has one and the thread was held.
    pub rseq: Option<u64>,
    /// What is set to zero, if anything is and the thread could be asked.
    pub clear_child_tid: Option<u64>,
}

/// An agent in its program, with all that its farewell needs.
#[derive(Debug)]
pub struct AgentTask {
    /// Its number.
    pub pid: Pid,
    /// Its pidfd. It has to be ended with the program, and when the program becomes another.
    pub process: OwnedFd,
    /// It stays traced by this thread: the filter that it inherited is suspended only so long.
    /// [`crate::Tracer::settle`] has to be called now and then.
    pub is_traced: bool,
    /// It is a child of the program: that is in another PID namespace, or it or another process of
    /// the run takes orphans.
    pub is_child: bool,
    /// The channel.
    pub channel: Channel,
    /// Where its memory starts, of [`overspill_agent::AGENT_BYTES`].
    pub base: u64,
    /// Where staging starts, of [`overspill_agent::STAGING_BYTES`].
    pub staging: u64,
}

/// A guest.
#[derive(Debug)]
pub struct Attached {
    /// The program.
    pub pid: Pid,
    /// Its pidfd.
    pub process: OwnedFd,
    /// The agent.
    pub agent: AgentTask,
    /// The userfaultfd, if it has one. UFFDIO_API has not been made, unless an event has brought
    /// it.
    pub userfaultfd: Option<OwnedFd>,
    /// Which of those that events have brought it is.
    pub forked: usize,
    /// What must never be paged out for its threads.
    pub threads: Vec<ThreadWords>,
    /// Its open files.
    pub files: Files,
}

/// Puts an agent into a process that is held. Its threads may go on afterwards.
///
/// # Errors
/// It cannot be done. Then nothing is left of the attempt.
pub fn attach<S: System>(held: &Held<'_, S>, manner: &Manner<'_>) -> Result<Attached> {
    match attach_once(held, manner, false) {
        Err(AttachError::Adopted { .. }) => attach_once(held, manner, true),
        done => done,
    }
}

fn attach_once<S: System>(
    held: &Held<'_, S>,
    manner: &Manner<'_>,
    as_child: bool,
) -> Result<Attached> {
    let site = Site::survey(held, AGENT_BYTES)?;
    let options = site.options | options::CLONES;
    let inside = Inside::begin(held, site.thread, site.gate, options)?;
    let mut work = Work::new(held, &site, &inside, as_child);
    match work.run(manner) {
        Ok(made) => {
            drop(inside);
            Ok(made.attached(held, site))
        }
        Err(error) => {
            work.undo();
            Err(error)
        }
    }
}
