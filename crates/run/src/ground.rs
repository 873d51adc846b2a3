//! What a machine must let us do so that programs can be paged from outside.
//!
//! Owns: trying each of these rights, by using it.
//! Not here: what else a run may lack, as memory or files.

use crate::attaching::{AttachingError, check};
use crate::forks::Forks;
use crate::same::have_same_memory;
use overspill_agent::PAGE_BYTES;
use overspill_guest::userfault::GuestUserfault;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{CapabilitySet, capabilities};
use std::path::PathBuf;

/// Yama's setting, and with which values nobody may trace, or only who has the capability.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
const YAMA_NOBODY: &str = "3";
const YAMA_CAPABLE: &str = "2";

/// Of `prctl`: off is 0, and can always be asked for.
const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;

/// Why nothing can be paged from outside.
#[derive(Debug, thiserror::Error)]
pub enum GroundError {
    /// No right to userfaultfd.
    #[error(
        "/dev/userfaultfd cannot be used: {0}; be root, or in the group `overspill` that the package \
         makes, and in a container give --device /dev/userfaultfd"
    )]
    Device(Errno),
    /// What the kernel, or our rights, are not enough for.
    #[error(transparent)]
    Attaching(AttachingError),
    /// Whether processes share their memory cannot be found out.
    #[error(
        "kcmp cannot be used: the kernel needs CONFIG_KCMP, and a seccomp profile must allow it"
    )]
    Compare,
    /// Not even for its own touches.
    #[error("userfaultfd cannot be used, not even for a program's own touches: {0}")]
    Call(Errno),
    /// System calls cannot be caught.
    #[error("system calls cannot be caught: that takes x86-64 and Linux 6.4")]
    Dispatch,
    /// Not even a page to share.
    #[error("no memory can be shared with a program: {0}")]
    Memory(Errno),
    /// Nobody may be traced.
    #[error("processes cannot be traced: {0}")]
    Trace(&'static str),
}

/// What the letters of gates are called where mappings are listed.
pub(crate) const LETTERS: &str = "memfd:overspill-letters";

/// How a touch of what is out is noticed.
#[derive(Debug)]
pub(crate) enum Eye {
    /// By the kernel, whoever touches it: with userfaultfds of this device.
    Faults(OwnedFd, Forks),
    /// By the kernel where the program's own code touches it. What its calls touch is brought in
    /// before they are made: each process has a gate, and all have this bell.
    Calls(OwnedFd),
}

/// A machine on which programs can be paged from outside.
#[derive(Debug)]
pub struct Ground {
    pub(crate) eye: Eye,
}

impl Ground {
    /// Tries all that is needed. `forks` is where `overspill-forks` is, or would be.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find(forks: PathBuf) -> Result<Self, GroundError> {
        let forks = Forks::new(forks);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/userfaultfd", flags, Mode::empty()).map_err(GroundError::Device)?;
        let ask = |fd: BorrowedFd<'_>, features| forks.ask(fd, features);
        let abilities =
            GuestUserfault::abilities_by(device.as_fd(), ask).map_err(GroundError::Device)?;
        check(abilities, true).map_err(GroundError::Attaching)?;
        if have_same_memory(getpid(), getpid()) != Some(true) {
            return Err(GroundError::Compare);
        }
        may_trace()?;
        Ok(Self { eye: Eye::Faults(device, forks) })
    }

    /// Tries that, and without it what is needed where only a program's own touches are seen.
    ///
    /// # Errors
    /// What is lacking for the first.
    pub fn find_any(forks: PathBuf) -> Result<Self, GroundError> {
        Self::find(forks).or_else(|lack| Self::find_calls().map_err(|_| lack))
    }

    /// Tries what is needed without the right to see the kernel's touches.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find_calls() -> Result<Self, GroundError> {
        let abilities = GuestUserfault::abilities_of_own().map_err(GroundError::Call)?;
        check(abilities, false).map_err(GroundError::Attaching)?;
        may_dispatch()?;
        may_trace()?;
        let bell = shared_file("overspill-bell", PAGE_BYTES).map_err(GroundError::Memory)?;
        Ok(Self { eye: Eye::Calls(bell) })
    }
}

/// Memory that processes can share.
pub(crate) fn shared_file(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// Whether the kernel can hand system calls to a program.
fn may_dispatch() -> Result<(), GroundError> {
    // SAFETY: it is off already; only numbers are passed.
    let asked = unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) };
    match asked {
        0 => Ok(()),
        _ => Err(GroundError::Dispatch),
    }
}

fn may_trace() -> Result<(), GroundError> {
    let yama = std::fs::read_to_string(YAMA).unwrap_or_default();
    match yama.trim_end() {
        YAMA_NOBODY => {
            return Err(GroundError::Trace("kernel.yama.ptrace_scope is 3, until the next boot"));
        }
        YAMA_CAPABLE if !may_trace_others() => {
            return Err(GroundError::Trace(
                "kernel.yama.ptrace_scope is 2: it takes CAP_SYS_PTRACE",
            ));
        }
        _ => {}
    }
    // SAFETY: there is no such process; only numbers are passed.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, libc::pid_t::MAX, 0, 0) };
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::SRCH) if traced < 0 => Ok(()),
        _ => Err(GroundError::Trace("a seccomp profile does not allow ptrace")),
    }
}

fn may_trace_others() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other way round too: a machine with less is refused in words.
    #[test]
    fn what_root_may_here_is_enough_or_said_to_be_not() {
        match Ground::find("/nowhere/overspill-forks".into()) {
            Ok(ground) => assert!(matches!(ground.eye, Eye::Faults(..))),
            Err(lack) => println!("skipped: {lack}"),
        }
    }
}
