//! Waking the readers.
//!
//! Owns: the event that they wait for beside guests' messages, and whether there is anything to be
//! looked at again without a message.
//! Not here: which readers wait (`readers`).

use overspill_base::sync::AtomicBool;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

#[derive(Debug)]
pub(crate) struct Wakeup {
    event: OwnedFd,
    /// A hint: guests say what it is.
    has_doubts: AtomicBool,
}

impl Wakeup {
    pub(crate) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, has_doubts: AtomicBool::new(false) })
    }

    /// Wakes a reader.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Ends that, for who was woken.
    pub(crate) fn take(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// Has guests looked at again soon.
    pub(crate) fn doubt(&self) {
        // Release: with who takes the doubts, and then looks which guests have any.
        self.has_doubts.store(true, Release);
    }

    /// True if guests are to be looked at again.
    pub(crate) fn has_doubts(&self) -> bool {
        self.has_doubts.load(Relaxed)
    }

    /// Notes that all guests are about to be looked at.
    pub(crate) fn take_doubts(&self) {
        // Acquire: with who doubts.
        self.has_doubts.swap(false, Acquire);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
