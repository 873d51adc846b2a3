//! A device that another process has open.
//!
//! Owns: the way of a request to that process and back. Requests and completions are words in two
//! rings ([`words`]), in memory that each worker shares with the server, and so are the pages on
//! their way ([`memory`]); all else is asked over a socket ([`control`]). [`queue`] is the worker's
//! end and [`server`] the other one, over any [`SwapDevice`]; [`apart`] has that in a process of
//! its own.
//! Invariants: the server trusts nothing that it is told. The two share no descriptor of the
//! device. A side is woken by a system call only if it sleeps.
//! Not here: encryption, which is done before a page comes here; what is remote.
//! Rejected: one pair of rings for a process, which its threads would have to lock.

pub mod apart;
pub mod control;
mod memory;
mod queue;
pub mod server;
#[cfg(test)]
mod tests;
mod words;

use crate::error::DeviceError;
use crate::file::Attachment;
use crate::{DeviceInfo, IoQueue, SwapDevice};
use control::{Ask, Client};
use overspill_base::sync::{AtomicU32, Ordering::Relaxed};
use overspill_base::{Bytes, Slot};
use queue::ServedQueue;
use rustix::io::Errno;
use std::fmt::{self, Debug};
use std::os::fd::OwnedFd;
use words::Outcome;

/// Why a thread or a process was not started.
fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::AGAIN)
}

/// A device that another process serves.
pub struct ServedDevice {
    info: DeviceInfo,
    client: Client,
    /// Slots that are known to be usable. A monotonic hint that carries no other data, hence
    /// relaxed.
    usable: AtomicU32,
}

impl Debug for ServedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedDevice").field("name", &self.info.name).finish_non_exhaustive()
    }
}

impl ServedDevice {
    /// Uses the device at the other end of `socket`, as no other does: [`apart::Apart::socket`].
    pub fn new(socket: OwnedFd, attachment: &Attachment) -> Self {
        let info = DeviceInfo { synchronous: false, ..attachment.info() };
        let usable = if attachment.grows { 0 } else { info.slots_max };
        Self { info, client: Client::new(socket), usable: AtomicU32::new(usable) }
    }
}

impl SwapDevice for ServedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let usable = self.usable.load(Relaxed);
        if slots <= usable {
            return Ok(usable);
        }
        let name = || self.info.name.clone();
        let size = Bytes::of_pages(self.info.slots_max.into());
        match self.client.ask(Ask::Grow { slots }) {
            (Outcome::Done, usable) => Ok(self.usable.fetch_max(usable, Relaxed).max(usable)),
            (Outcome::Full, _) => Err(DeviceError::Full { name: name(), size }),
            (other, _) => {
                let action = "reserve space in";
                Err(DeviceError::Open { name: name(), action, errno: other.errno() })
            }
        }
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        match self.client.ask(Ask::Discard { first, slots }) {
            (Outcome::Done, _) => Ok(()),
            (other, _) => {
                let name = self.info.name.clone();
                Err(DeviceError::Discard { name, first, errno: other.errno() })
            }
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let refused = |errno| DeviceError::Queue { name: self.info.name.clone(), errno };
        let pair = self.client.open_pair().map_err(refused)?;
        Ok(Box::new(ServedQueue::new(pair, &self.info, depth)))
    }
}
