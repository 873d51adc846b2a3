//! Where touches are reported, and how pages get there and away: a userfaultfd, or guards.

use crate::guards::Guards;
use crate::uffd::{Features, Uffd};
use crate::words::{Progress, Reach};
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
            Self::Guards(guards) if guards.are_shut() => Reach::Shut,
            Self::Guards(_) => Reach::Guards,
        }
    }

    pub(crate) fn features(&self) -> Features {
        match self {
            Self::Userfault(uffd) => uffd.features(),
            Self::Guards(_) => Features { move_pages: true, poison: false, write_protect: false },
        }
    }

    pub(crate) fn userfault(&self) -> Option<&Uffd> {
        match self {
            Self::Userfault(uffd) => Some(uffd),
            Self::Guards(_) => None,
        }
    }

    pub(crate) fn guards(&self) -> Option<&Guards> {
        match self {
            Self::Userfault(_) => None,
            Self::Guards(guards) => Some(guards),
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

    /// Wakes the threads that wait in a range; where touches are signals there are none.
    pub(crate) fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.userfault().map_or(Ok(()), |uffd| uffd.wake(start, len))
    }

    pub(crate) fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        self.userfault().map_or(Ok(()), |uffd| uffd.write_protect(start, len, on))
    }

    /// Makes every touch of a missing page raise SIGBUS. Where touches are signals, one that
    /// nobody serves ends the program anyway.
    pub(crate) fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.userfault().map_or(Ok(()), |uffd| uffd.poison(start, len))
    }
}
