//! The cost of locks on virtual CPUs, per class.
//!
//! Owns: the sums over the paths that the virtual CPUs count separately.
//! Not here: counting.

use super::{LockClass, LockStats};

/// Resets the longest waits and holds.
pub fn count_locks(on: bool) {
    if on {
        overspill_vcpu::forget_longest();
    }
}

/// Returns the cost of each class so far on this thread's virtual CPUs.
pub fn lock_table() -> Vec<(LockClass, LockStats)> {
    LockClass::ALL.iter().map(|&class| (class, sum(class))).collect()
}

fn sum(class: LockClass) -> LockStats {
    let paths = 0..overspill_vcpu::PATHS as u8;
    let tallies = paths.map(|path| overspill_vcpu::tally(class as u8, path));
    tallies.fold(LockStats::default(), |sum, tally| LockStats {
        acquisitions: sum.acquisitions + tally.acquisitions,
        contended: sum.contended + tally.contended,
        wait_ns: sum.wait_ns + tally.wait_ns,
        wait_max_ns: sum.wait_max_ns.max(tally.wait_max_ns),
        hold_max_ns: sum.hold_max_ns.max(tally.hold_max_ns),
    })
}

/// A hold of a lock: nothing to do here.
pub(super) struct Hold(LockClass);

impl Hold {
    pub(super) fn begin(class: LockClass) -> Self {
        Self(class)
    }

    pub(super) fn class(&self) -> LockClass {
        self.0
    }
}

/// A wait for a lock that is held.
pub(super) struct Wait(LockClass);

impl Wait {
    pub(super) fn begin(class: LockClass) -> Self {
        Self(class)
    }

    pub(super) fn end(self) -> Hold {
        Hold(self.0)
    }
}
