//! What tells a keeper of a guest's touches, and fills its pages.
//!
//! Owns: which of the two it is: the kernel, by the guest's userfaultfd, or the guest's gate.
//! Not here: what is done about a touch (`serve`).

use crate::touches::Touches;
use overspill_guest::Vpn;
use overspill_guest::userfault::{Abilities, GuestUserfault, Userfault};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::ops::{Deref, Range};

/// What an eye is made of.
#[derive(Debug)]
pub enum EyeParts {
    /// The guest's userfaultfd, agreed on with the kernel.
    Userfault(GuestUserfault),
    /// Its touches are signals, of which its gate writes letters.
    Touches {
        /// Its process.
        process: OwnedFd,
        /// Whether the kernel has guards (MADV_GUARD_INSTALL).
        has_guards: bool,
    },
}

impl AsFd for EyeParts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Userfault(userfault) => userfault.as_fd(),
            Self::Touches { process, .. } => process.as_fd(),
        }
    }
}

/// A guest's.
#[derive(Debug)]
pub(crate) enum Eye {
    Userfault(GuestUserfault),
    Touches(Box<Touches>),
}

impl Eye {
    /// That of the gate.
    pub(crate) fn touches(&self) -> Option<&Touches> {
        match self {
            Self::Userfault(_) => None,
            Self::Touches(touches) => Some(touches),
        }
    }

    pub(crate) fn abilities(&self) -> Abilities {
        match self {
            Self::Userfault(userfault) => userfault.abilities(),
            Self::Touches(_) => Touches::ABILITIES,
        }
    }

    /// The same, for somebody else.
    ///
    /// # Errors
    /// No descriptor.
    pub(crate) fn parts(&self) -> Result<EyeParts, Errno> {
        Ok(match self {
            Self::Userfault(userfault) => {
                let fd = rustix::io::fcntl_dupfd_cloexec(userfault, 0)?;
                EyeParts::Userfault(GuestUserfault::agreed(fd, userfault.abilities(), None))
            }
            Self::Touches(touches) => touches.parts()?,
        })
    }

    /// Takes what another one has found out: see [`GuestUserfault::set_anchor`].
    pub(crate) fn set_anchor(&self, page: Vpn) {
        if let Self::Userfault(userfault) = self {
            userfault.set_anchor(page);
        }
    }

    /// See [`GuestUserfault::anchor`].
    pub(crate) fn anchor(&self) -> Vpn {
        match self {
            Self::Userfault(userfault) => userfault.anchor(),
            Self::Touches(_) => Vpn(0),
        }
    }

    /// See [`GuestUserfault::may_cover`].
    pub(crate) fn may_cover(&self, place: &Range<Vpn>) -> bool {
        match self {
            Self::Userfault(userfault) => userfault.may_cover(place),
            Self::Touches(_) => true,
        }
    }

    /// See [`GuestUserfault::has_address_space`].
    pub(crate) fn has_address_space(&self) -> bool {
        match self {
            Self::Userfault(userfault) => userfault.has_address_space(),
            Self::Touches(touches) => touches.has_process(),
        }
    }

    /// Has all who wait for a page touch it again.
    pub(crate) fn wake_all(&self) {
        match self {
            Self::Userfault(userfault) => userfault.wake_all(),
            Self::Touches(touches) => touches.wake(&(Vpn(0)..Vpn(u64::MAX))),
        }
    }

    /// Has a guest that is lost end: by the next page that it misses, or now if its process is
    /// known.
    pub(crate) fn end(&self) {
        match self {
            Self::Userfault(userfault) => userfault.wake_all(),
            Self::Touches(touches) => touches.kill(),
        }
    }
}

impl AsFd for Eye {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Userfault(userfault) => userfault.as_fd(),
            Self::Touches(touches) => touches.as_fd(),
        }
    }
}

impl Deref for Eye {
    type Target = dyn Userfault;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Userfault(userfault) => userfault,
            Self::Touches(touches) => &**touches,
        }
    }
}
