//! The ways to notice that a page is out, and which of them this process may use.
//!
//! A run has one way, which its supervisor chooses: the first that has all it needs here.

use overspill_space::probe::probe_guards;
use overspill_space::uffd::{Delivery, Uffd, UffdError};
use overspill_space::words::Reach;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// How touches of pages that are out are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// The kernel reports them all, also its own in system calls. Needs a permission.
    Faults,
    /// The kernel reports those of the program itself. System calls are caught, and what they will
    /// touch is brought in before. Permitted to everybody.
    Calls,
    /// Touches raise SIGSEGV, and system calls are caught. Needs no userfaultfd.
    Touches,
}

/// What a way lacks here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// A userfaultfd.
    #[error(transparent)]
    Userfaultfd(#[from] UffdError),
    /// Syscall User Dispatch.
    #[error(
        "system calls cannot be caught ({0}): that needs Linux 5.11 or newer on x86-64, and a \
         seccomp profile that allows prctl"
    )]
    Dispatch(Errno),
    /// Guard regions.
    #[error("touches cannot be noticed without userfaultfd ({0}): that needs Linux 6.15 or newer")]
    Guards(Errno),
}

impl Way {
    /// All, from the fastest on.
    pub const ALL: [Self; 3] = [Self::Faults, Self::Calls, Self::Touches];

    /// The name, for `--way`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faults => "faults",
            Self::Calls => "calls",
            Self::Touches => "touches",
        }
    }

    /// Tries whether it can be used here.
    ///
    /// # Errors
    /// What it lacks.
    pub fn check(self) -> Result<(), Lack> {
        match self {
            Self::Faults | Self::Calls => drop(Uffd::open(Delivery::Messages, self.reach())?),
            Self::Touches => probe_guards().map_err(Lack::Guards)?,
        }
        if self.catches_calls() { dispatch().map_err(Lack::Dispatch) } else { Ok(()) }
    }

    /// The first that can be used here.
    ///
    /// # Errors
    /// What the last lacks, which needs least.
    pub fn best() -> Result<Self, Lack> {
        let mut lack = Ok(Self::Faults);
        for way in Self::ALL {
            lack = way.check().map(|()| way);
            if lack.is_ok() {
                break;
            }
        }
        lack
    }

    pub(crate) fn reach(self) -> Reach {
        match self {
            Self::Faults => Reach::All,
            Self::Calls => Reach::Program,
            Self::Touches => Reach::Nothing,
        }
    }

    /// True if system calls must be caught.
    pub fn catches_calls(self) -> bool {
        self != Self::Faults
    }
}

/// Tries Syscall User Dispatch, which stays off.
fn dispatch() -> Result<(), Errno> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Errno::NOSYS);
    }
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    // SAFETY: switches off what is off.
    match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_is_the_first_that_works() {
        let works: Vec<Way> = Way::ALL.into_iter().filter(|way| way.check().is_ok()).collect();
        assert_eq!(Way::best().ok(), works.first().copied(), "{works:?}");
        assert_eq!(Way::ALL.map(Way::name), ["faults", "calls", "touches"]);
    }
}
