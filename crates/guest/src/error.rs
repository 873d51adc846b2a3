//! Why a process does not become a guest.
//!
//! Owns: the one enum of this layer. Each line says what failed and what to do.
//! Not here: errors of an agent at work ([`crate::ChannelError`]).

use overspill_agent::step_name;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fmt;

/// Why a process is not attached to, or not let go.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// It has ended, or it is another program now.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: Pid,
    },
    /// Somebody else traces it.
    #[error("process {pid} is traced by process {by}: end the debugger, then try again")]
    Traced {
        /// The process.
        pid: Pid,
        /// Its tracer's number.
        by: i32,
    },
    /// The kernel does not allow it.
    #[error(
        "process {pid} may not be traced: be root or of its user, and see \
         /proc/sys/kernel/yama/ptrace_scope"
    )]
    NotPermitted {
        /// The process.
        pid: Pid,
    },
    /// A filter of its own might end it for what an attach does inside it.
    #[error(
        "process {pid} filters its system calls, and the filter cannot be suspended ({errno}): \
         CAP_SYS_ADMIN is needed for that"
    )]
    Filtered {
        /// The process.
        pid: Pid,
        /// What the kernel said.
        errno: Errno,
    },
    /// Its system calls cannot be caught.
    #[error("the system calls of process {pid} cannot be caught: {why}")]
    NoGate {
        /// The process.
        pid: Pid,
        /// Why not.
        why: &'static str,
    },
    /// What it makes would be the first process of a new namespace.
    #[error("process {pid} makes its children in another PID namespace than its own")]
    Namespaces {
        /// The process.
        pid: Pid,
    },
    /// It runs code of another size of words.
    #[error("process {pid} runs 32-bit code, which has no agent")]
    OtherCode {
        /// The process.
        pid: Pid,
    },
    /// The machine has other pages.
    #[error("this machine has pages of {bytes} bytes: agents are for 4096")]
    PageSize {
        /// Of its pages.
        bytes: usize,
    },
    /// No thread can be used now.
    #[error("none of the {threads} threads of process {pid} can make a call now: try again")]
    NoThread {
        /// The process.
        pid: Pid,
        /// Threads that are held.
        threads: usize,
    },
    /// No code to make calls with, or no place for the agent.
    #[error("the address space of process {pid} has no {what}")]
    NoPlace {
        /// The process.
        pid: Pid,
        /// What it lacks.
        what: &'static str,
    },
    /// A call about the process failed.
    #[error("{doing} process {pid} failed: {errno}")]
    Kernel {
        /// The process.
        pid: Pid,
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A call inside the process failed.
    #[error("{call} inside process {pid} failed: {errno}")]
    Inside {
        /// The process.
        pid: Pid,
        /// The call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The agent gave up.
    #[error("the agent in process {pid} failed at {}: {errno}", step_name(*step))]
    Agent {
        /// The process.
        pid: Pid,
        /// Of [`overspill_agent::step`].
        step: u32,
        /// What the kernel said to it.
        errno: Errno,
    },
    /// Another process of the run took the agent, which it would wait for.
    #[error("the agent of process {pid} was taken by process {by}, which takes orphans")]
    Adopted {
        /// The process.
        pid: Pid,
        /// Who took it.
        by: Pid,
    },
    /// None of the userfaultfds is its own.
    #[error(
        "process {pid} has memory that is registered with a userfaultfd which is not ours: it \
         pages itself"
    )]
    NoFork {
        /// The process.
        pid: Pid,
    },
    /// Something did not happen in time.
    #[error("process {pid}: {what} takes too long: try again")]
    Slow {
        /// The process.
        pid: Pid,
        /// What was waited for.
        what: &'static str,
    },
    /// The kernel reported what nothing here knows.
    #[error("process {pid}: {found} while {doing}: nothing was changed")]
    Unexpected {
        /// The process.
        pid: Pid,
        /// What was done.
        doing: &'static str,
        /// What was found.
        found: Found,
    },
}

/// A report that fits nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found(pub(crate) String);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A result of this crate.
pub(crate) type Result<T> = std::result::Result<T, AttachError>;

/// Says which process a call was about, and what was tried.
pub(crate) trait About<T> {
    fn about(self, pid: Pid, doing: &'static str) -> Result<T>;
}

impl<T> About<T> for std::result::Result<T, Errno> {
    fn about(self, pid: Pid, doing: &'static str) -> Result<T> {
        self.map_err(|errno| match errno {
            Errno::SRCH => AttachError::Gone { pid },
            Errno::OPNOTSUPP => AttachError::OtherCode { pid },
            errno => AttachError::Kernel { pid, doing, errno },
        })
    }
}
