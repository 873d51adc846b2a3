//! Where touches are reported, and how pages get there and away: a userfaultfd, or guards.

use crate::guards::Guards;
use crate::kernel::Between;
use crate::uffd::{Features, Uffd};
use crate::words::{FaultMessage, Progress, Reach};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

/// One of the two. Their calls mean the same, in units of 4 KiB.
#[derive(Debug)]
pub(crate) enum Source {
    Userfault(Uffd),
    Guards(Guards),
}

impl Source {
    pub(crate) fn reach(&self) -> Reach {
        match self {
            Self::Userfault(uffd) => uffd.reach(),
            Self::Guards(_) => Reach::Nothing,
        }
    }

    pub(crate) fn features(&self) -> Features {
        match self {
            Self::Userfault(uffd) => uffd.features(),
            Self::Guards(_) => Features { move_pages: true, poison: false, write_protect: false },
        }
    }

    pub(crate) fn guards(&self) -> Option<&Guards> {
        match self {
            Self::Userfault(_) => None,
            Self::Guards(guards) => Some(guards),
        }
    }

    pub(crate) fn put_between(&mut self, between: Box<dyn Between>) {
        if let Self::Userfault(uffd) = self {
            uffd.put_between(between);
        }
    }

    pub(crate) unsafe fn register_missing(&self, start: usize, len: usize) -> Result<(), Errno> {
        match self {
            // SAFETY: passed on to the caller.
            Self::Userfault(uffd) => unsafe { uffd.register_missing(start, len) },
            Self::Guards(_) => Ok(()),
        }
    }

    pub(crate) unsafe fn register_target(&self, start: usize, len: usize) -> Result<(), Errno> {
        match self {
            // SAFETY: passed on to the caller.
            Self::Userfault(uffd) => unsafe { uffd.register_target(start, len) },
            Self::Guards(_) => Ok(()),
        }
    }

    pub(crate) fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        match self {
            Self::Userfault(uffd) => uffd.unregister(start, len),
            Self::Guards(_) => Ok(()),
        }
    }

    pub(crate) fn copy(&self, start: usize, content: &[u8]) -> Progress {
        match self {
            Self::Userfault(uffd) => uffd.copy(start, content),
            Self::Guards(guards) => guards.copy(start, content),
        }
    }

    pub(crate) fn zero(&self, start: usize, len: usize) -> Progress {
        match self {
            Self::Userfault(uffd) => uffd.zero(start, len),
            Self::Guards(guards) => guards.zero(start, len),
        }
    }

    pub(crate) unsafe fn move_pages(&self, target: usize, source: usize, len: usize) -> Progress {
        match self {
            // SAFETY: passed on to the caller.
            Self::Userfault(uffd) => unsafe { uffd.move_pages(target, source, len) },
            // SAFETY: as above.
            Self::Guards(guards) => unsafe { guards.move_pages(target, source, len) },
        }
    }

    pub(crate) fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        match self {
            Self::Userfault(uffd) => uffd.wake(start, len),
            Self::Guards(guards) => {
                guards.touches.wake(start..start + len);
                Ok(())
            }
        }
    }

    pub(crate) fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        match self {
            Self::Userfault(uffd) => uffd.write_protect(start, len, on),
            Self::Guards(_) => Ok(()),
        }
    }

    pub(crate) fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        match self {
            Self::Userfault(uffd) => uffd.poison(start, len),
            // As kernels without the call.
            Self::Guards(_) => Err(Errno::INVAL),
        }
    }

    pub(crate) fn read(&self, out: &mut [FaultMessage; 32]) -> Result<usize, Errno> {
        match self {
            Self::Userfault(uffd) => uffd.read(out),
            Self::Guards(guards) => Ok(guards.touches.read(out)),
        }
    }
}

impl AsFd for Source {
    /// What becomes readable when there is something to read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Userfault(uffd) => uffd.as_fd(),
            Self::Guards(guards) => guards.touches.bell(),
        }
    }
}
