//! What a userfaultfd can do here.
//!
//! Owns: asking the kernel, and what is asked of it for each ability.
//! Not here: the calls.

use super::{EVENTS, handshake, new_own};
use linux_raw_sys::general as raw;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// What a kernel's userfaultfd can do for guests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
            moves: has(raw::UFFD_FEATURE_MOVE) && is_at_least(MOVES_SINCE),
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

/// The first kernel that moves pages as it should.
const MOVES_SINCE: [u32; 2] = [6, 12];

/// Asks what the kernel supports, by a userfaultfd of this process: a descriptor can be asked once.
fn supported() -> Result<u64, Errno> {
    handshake(new_own()?.as_fd(), 0)
}

/// True if this kernel is of that version or newer.
fn is_at_least(version: [u32; 2]) -> bool {
    version_of(&rustix::system::uname().release().to_string_lossy()) >= version
}

/// The first two numbers: `6.12.117-amd64`.
fn version_of(release: &str) -> [u32; 2] {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (release, version) in [
            ("6.12.117-amd64", [6, 12]),
            ("7.3-rc1", [7, 3]),
            ("6.8.0-31-generic", [6, 8]),
            ("x", [0, 0]),
        ] {
            assert_eq!(version_of(release), version, "{release}");
        }
        assert!(is_at_least([3, 0]) && !is_at_least([99, 0]));
        assert!([6, 8] < MOVES_SINCE && [7, 0] > MOVES_SINCE);
    }
}
