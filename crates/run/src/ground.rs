//! What a machine must let us do so that programs can be paged from outside.
//!
//! Owns: trying each of these rights, by using it.
//! Not here: what else a run may lack, as memory or files.

use crate::attaching::{AttachingError, check};
use crate::same::have_same_memory;
use overspill_guest::userfault::GuestUserfault;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::getpid;

/// The setting with which nobody may trace: that of Yama.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
const YAMA_NOBODY: &str = "3";

/// Why nothing can be paged from outside.
#[derive(Debug, thiserror::Error)]
pub enum GroundError {
    /// No right to userfaultfd.
    #[error(
        "/dev/userfaultfd cannot be used: {0}; that needs Linux 6.1, root or a group for it, and in \
         a container --device /dev/userfaultfd"
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
    /// Nobody may be traced.
    #[error("processes cannot be traced: {0}")]
    Trace(&'static str),
}

/// A machine on which programs can be paged from outside.
#[derive(Debug)]
pub struct Ground {
    pub(crate) device: OwnedFd,
}

impl Ground {
    /// Tries all that is needed.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find() -> Result<Self, GroundError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/userfaultfd", flags, Mode::empty()).map_err(GroundError::Device)?;
        let abilities =
            GuestUserfault::abilities_by(device.as_fd()).map_err(GroundError::Device)?;
        check(abilities).map_err(GroundError::Attaching)?;
        if have_same_memory(getpid(), getpid()) != Some(true) {
            return Err(GroundError::Compare);
        }
        may_trace()?;
        Ok(Self { device })
    }
}

fn may_trace() -> Result<(), GroundError> {
    let yama = std::fs::read_to_string(YAMA).unwrap_or_default();
    if yama.trim_end() == YAMA_NOBODY {
        return Err(GroundError::Trace("kernel.yama.ptrace_scope is 3, until the next boot"));
    }
    // SAFETY: there is no such process; only numbers are passed.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, libc::pid_t::MAX, 0, 0) };
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::SRCH) if traced < 0 => Ok(()),
        _ => Err(GroundError::Trace("a seccomp profile does not allow ptrace")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other way round too: a machine with less is refused in words.
    #[test]
    fn what_root_may_here_is_enough_or_said_to_be_not() {
        match Ground::find() {
            Ok(ground) => assert!(rustix::io::fcntl_getfd(&ground.device).is_ok()),
            Err(lack) => println!("skipped: {lack}"),
        }
    }
}
