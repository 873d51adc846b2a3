//! What locks cost on virtual CPUs, per class.
//!
//! Owns: the form of the counts. Everything is counted always: it takes no virtual time.
//! Not here: counting, which the virtual CPUs do.

use super::LockClass;
use std::ops::Sub;

/// What one class of locks has cost.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LockStats {
    /// Times a lock was taken.
    pub acquisitions: u64,
    /// Acquisitions that found the lock held.
    pub contended: u64,
    /// Nanoseconds waited in all of them.
    pub wait_ns: u64,
    /// The longest single wait.
    pub wait_max_ns: u64,
    /// The longest a lock was held.
    pub hold_max_ns: u64,
}

impl Sub for LockStats {
    type Output = Self;

    /// What was added since `earlier`. The longest wait and hold are those of the later reading.
    fn sub(self, earlier: Self) -> Self {
        Self {
            acquisitions: self.acquisitions - earlier.acquisitions,
            contended: self.contended - earlier.contended,
            wait_ns: self.wait_ns - earlier.wait_ns,
            ..self
        }
    }
}

/// Forgets the longest waits and holds so far.
pub fn count_locks(on: bool) {
    if on {
        overspill_vcpu::forget_longest();
    }
}

/// What each class has cost so far on this thread's virtual CPUs.
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

/// A lock being held: nothing to be done about it here.
pub(super) struct Hold(LockClass);

impl Hold {
    pub(super) fn begin(class: LockClass) -> Self {
        Self(class)
    }

    pub(super) fn class(&self) -> LockClass {
        self.0
    }
}

/// A wait for a lock that somebody holds.
pub(super) struct Wait(LockClass);

impl Wait {
    pub(super) fn begin(class: LockClass) -> Self {
        Self(class)
    }

    pub(super) fn end(self) -> Hold {
        Hold(self.0)
    }
}
