//! The files by which this process looks at its own memory.

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
    pub(crate) fn open(self) -> Result<OwnedFd, Errno> {
        let (path, flags) = match self {
            Self::Memory => ("/proc/self/mem", OFlags::RDWR),
            Self::Pagemap => ("/proc/self/pagemap", OFlags::RDONLY),
        };
        open(path, flags | OFlags::CLOEXEC, Mode::empty())
    }
}
