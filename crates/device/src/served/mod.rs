//! A device that another process has open.
//!
//! Owns: the way of a request to that process and back. Requests and completions are words in two
//! rings ([`words`]), in memory that each worker shares with the server, and so are the pages on
//! their way ([`memory`]); all else is asked over a socket ([`control`]). [`queue`] is the worker's
//! end and [`server`] the other one, over any [`SwapDevice`]; [`apart`] has that in a process of
//! its own.
//! Invariants: the server trusts nothing that it is told. The two share no descriptor of the
//! device; a client that ends loses none of its requests to another's pages, because the server
//! says when it is done with them ([`server::Clients`]). A side is woken by a system call only if
//! it sleeps.
//! Not here: encryption, which is done before a page comes here; what is remote.
//! Rejected: one pair of rings for a process, which its threads would have to lock; rings in memory
//! that all processes of a run have, where one could answer for the server.

pub mod apart;
pub mod control;
mod memory;
mod messages;
mod queue;
pub mod server;
#[cfg(test)]
mod tests;
mod words;

pub use server::{Clients, Server};

use crate::error::DeviceError;
use crate::file::Attachment;
use crate::{DeviceInfo, IoQueue, SwapDevice};
use control::{Ask, Link};
use overspill_base::sync::{AtomicU32, Condvar, Mutex, Ordering::Relaxed};
use overspill_base::{Bytes, Slot};
use queue::ServedQueue;
use rustix::io::Errno;
use std::fmt::{self, Debug};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use words::Outcome;

/// Waits until there is no client, at most for `patience`; false if there is one. `left` is told
/// when one leaves.
fn wait_unused<T>(
    state: &Mutex<T>,
    left: &Condvar,
    clients: impl Fn(&T) -> usize,
    patience: Duration,
) -> bool {
    let begun = Instant::now();
    let mut state = state.lock();
    while clients(&state) > 0 {
        let rest = patience.saturating_sub(begun.elapsed());
        if rest.is_zero() {
            return false;
        }
        state = left.wait_for(state, rest);
    }
    true
}

/// Why a thread or a process was not started.
fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::AGAIN)
}

/// Tells who this process is among the server's clients; another after a fork.
pub type Identity = Arc<dyn Fn() -> u32 + Send + Sync>;

/// A device that another process serves.
pub struct ServedDevice {
    info: DeviceInfo,
    link: Link,
    identity: Identity,
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
    /// Uses the device at the other end of `socket`, made by [`apart::Apart::client`].
    pub fn new(socket: OwnedFd, attachment: &Attachment, identity: Identity) -> Self {
        let info = DeviceInfo { synchronous: false, ..attachment.info() };
        let usable = if attachment.grows { 0 } else { info.slots_max };
        Self { info, link: Link::new(socket), identity, usable: AtomicU32::new(usable) }
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
        match self.link.ask(Ask::Grow { slots }) {
            (Outcome::Done, usable) => Ok(self.usable.fetch_max(usable, Relaxed).max(usable)),
            (Outcome::Full, _) => Err(DeviceError::Full { name: name(), size }),
            (other, _) => {
                let action = "reserve space in";
                Err(DeviceError::Open { name: name(), action, errno: other.errno() })
            }
        }
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        match self.link.ask(Ask::Discard { first, slots }) {
            (Outcome::Done, _) => Ok(()),
            (other, _) => {
                let name = self.info.name.clone();
                Err(DeviceError::Discard { name, first, errno: other.errno() })
            }
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let refused = |errno| DeviceError::Queue { name: self.info.name.clone(), errno };
        let pair = self.link.open_pair((self.identity)()).map_err(refused)?;
        Ok(Box::new(ServedQueue::new(pair, &self.info, depth)))
    }
}
