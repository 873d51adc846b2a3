//! The files by which this process looks at its own memory.
//!
//! Owns: opening them, also by a process that has changed its user (the files of a process that
//! may not be dumped are root's).

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// A file of `/proc/self`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// Its memory, whatever the protection.
    Memory,
    /// What is where.
    Pagemap,
}

impl Own {
    /// Opens it, also in a process that may not be dumped, which may be for a moment: only for who
    /// cannot do without.
    pub(crate) fn insist(self) -> Result<OwnedFd, Errno> {
        self.open().or_else(|error| match error {
            Errno::ACCESS | Errno::PERM => while_dumpable(|| self.open()).unwrap_or(Err(error)),
            _ => Err(error),
        })
    }

    pub(crate) fn open(self) -> Result<OwnedFd, Errno> {
        let (path, flags) = match self {
            Self::Memory => ("/proc/self/mem", OFlags::RDWR),
            Self::Pagemap => ("/proc/self/pagemap", OFlags::RDONLY),
        };
        open(path, flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Runs `f` while this process may be dumped, which gives it its files; none if it may be already.
fn while_dumpable<R>(f: impl FnOnce() -> R) -> Option<R> {
    // SAFETY: sets a number of this process.
    let set = |value: libc::c_int| unsafe { libc::prctl(libc::PR_SET_DUMPABLE, value) };
    // SAFETY: reads it.
    let is_dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } == 1;
    if is_dumpable || set(1) != 0 {
        return None;
    }
    let result = f();
    // 2, by which root alone gets dumps, is only ever set by the kernel.
    set(0);
    Some(result)
}
