//! What a userfaultfd can do here.
//!
//! Owns: asking the kernel, and what is asked of it for each ability.
//! Not here: the calls.

use super::{EVENTS, handshake, new_own};
use linux_raw_sys::general as raw;
use overspill_base::kernel::{self, MOVES_SINCE};
use rustix::fd::AsFd;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// What a kernel's userfaultfd can do for guests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Abilities {
    /// Marks of pages that are out (`UFFD_FEATURE_WP_UNPOPULATED`, Linux 6.4).
    pub marks: bool,
    /// `UFFD_FEATURE_POISON`, Linux 6.6.
    pub poison: bool,
    /// `UFFD_FEATURE_MOVE`, from Linux 6.12 on: before that it has faults that may end the kernel
    /// (6.11: races with khugepaged, `move_pages_huge_pmd`; and with the kernel's own swap).
    pub moves: bool,
    /// `UFFD_FEATURE_EVENT_FORK`: permitted to who has CAP_SYS_PTRACE in the first user namespace.
    pub forks: bool,
}

impl Abilities {
    /// What this kernel supports, but for forks.
    pub(super) fn supported() -> Result<Self, Errno> {
        let supported = supported()?;
        let has = |bit: u32| supported & u64::from(bit) != 0;
        Ok(Self {
            marks: has(raw::UFFD_FEATURE_WP_UNPOPULATED),
            poison: has(raw::UFFD_FEATURE_POISON),
            moves: has(raw::UFFD_FEATURE_MOVE) && kernel::is_at_least(MOVES_SINCE),
            forks: false,
        })
    }

    /// What is asked of the kernel for them, without forks.
    pub(super) fn features(self) -> u64 {
        let features = [
            (true, EVENTS | raw::UFFD_FEATURE_THREAD_ID),
            (self.marks, raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP | raw::UFFD_FEATURE_WP_UNPOPULATED),
            (self.poison, raw::UFFD_FEATURE_POISON),
            (self.moves, raw::UFFD_FEATURE_MOVE),
        ];
        let features = features.into_iter().filter(|(is_able, _)| *is_able);
        features.fold(0, |all, (_, feature)| all | u64::from(feature))
    }
}

/// Asks what the kernel supports, by a userfaultfd of this process: a descriptor can be asked once.
fn supported() -> Result<u64, Errno> {
    handshake(new_own()?.as_fd(), 0)
}
