//! The cost of locks as a value, for the machine's CPUs and virtual ones.
//!
//! Virtual CPUs always count everything: that takes no virtual time.
//! Not here: counting ([`super::accounts`]).

use std::ops::Sub;

/// The cost of one class of locks.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LockStats {
    /// Number of acquisitions; counted only between [`count_locks`](super::count_locks)`(true)` and
    /// `(false)`.
    pub acquisitions: u64,
    /// Acquisitions that found the lock held. Always counted.
    pub contended: u64,
    /// Total time of those waits, in nanoseconds.
    pub wait_ns: u64,
    /// The longest single wait since counting was last switched on, in nanoseconds.
    pub wait_max_ns: u64,
    /// The longest hold since then, in nanoseconds.
    pub hold_max_ns: u64,
}

impl Sub for LockStats {
    type Output = Self;

    /// The difference to `earlier`. The longest wait and hold are those of the later reading.
    fn sub(self, earlier: Self) -> Self {
        Self {
            acquisitions: self.acquisitions - earlier.acquisitions,
            contended: self.contended - earlier.contended,
            wait_ns: self.wait_ns - earlier.wait_ns,
            ..self
        }
    }
}
