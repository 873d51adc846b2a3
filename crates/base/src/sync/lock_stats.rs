//! The form of what locks cost, which the machine's CPUs and virtual ones share.
//!
//! Virtual CPUs count everything always: that takes no virtual time.
//! Not here: counting ([`super::accounts`]).

use std::ops::Sub;

/// What one class of locks has cost.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LockStats {
    /// Times a lock was taken; counted between [`count_locks`](super::count_locks)`(true)` and
    /// `(false)` only.
    pub acquisitions: u64,
    /// Acquisitions that found the lock held. Always counted.
    pub contended: u64,
    /// Nanoseconds waited in all of them.
    pub wait_ns: u64,
    /// The longest single wait since counting was last switched on, in nanoseconds.
    pub wait_max_ns: u64,
    /// The longest a lock was held since then, in nanoseconds.
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
