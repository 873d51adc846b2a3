//! A process of which nothing is needed but that it lives.
//!
//! Owns: the seam between a source without a userfaultfd and its process, which is known before the
//! process is attached to.
//! Not here: what more is known then (`handles`).

use crate::parts::SourceParts;
use overspill_agent::Barrier;
use overspill_guest::pidfd;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Signal, pidfd_send_signal};
use std::fmt::Debug;

/// A process.
pub(crate) trait Task: Send + Sync + Debug {
    /// Ends it.
    fn kill(&self);

    /// True if it has ended.
    fn has_ended(&self) -> bool;

    /// What tells of its touches, for somebody else.
    ///
    /// # Errors
    /// No descriptor.
    fn parts(&self, barrier: Barrier) -> Result<SourceParts, Errno>;

    /// The same of its child, of which this was fetched.
    fn parts_of_child(&self, fetched: OwnedFd, barrier: Barrier) -> SourceParts;
}

/// Its pidfd.
impl Task for OwnedFd {
    fn kill(&self) {
        // One that has ended already says so.
        let _ = pidfd_send_signal(self, Signal::KILL);
    }

    fn has_ended(&self) -> bool {
        pidfd::has_ended(self)
    }

    fn parts(&self, barrier: Barrier) -> Result<SourceParts, Errno> {
        Ok(self.parts_of_child(fcntl_dupfd_cloexec(self, 0)?, barrier))
    }

    fn parts_of_child(&self, process: Self, barrier: Barrier) -> SourceParts {
        SourceParts::Signals { process, barrier }
    }
}
