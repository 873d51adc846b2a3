//! What is asked over the socket between a client and the server: seldom, and one thing at a time.
//!
//! Owns: the questions, the answers, and the client's end of the socket.
//! Invariants: the server's end of the socket is closed when the server ends; whoever waits for an
//! answer gets an error then.
//! Not here: what the answers are ([`super::server`]).

use super::memory::PairMemory;
use super::words::Outcome;
use overspill_base::Slot;
use overspill_base::sync::{LockClass, Mutex};
use overspill_wire::{Descriptor, Link, LinkError};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ask {
    /// A pair of rings for one of its workers.
    Open,
    /// As [`SwapDevice::grow`](crate::SwapDevice::grow).
    Grow { slots: u32 },
    /// As [`SwapDevice::discard`](crate::SwapDevice::discard).
    Discard { first: Slot, slots: u32 },
}

/// What it is answered.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// [`Outcome::numbers`].
    outcome: (u32, u32),
    number: u32,
    /// Of a pair of rings: its memory, its door and its bell.
    pair: Option<[Descriptor; 3]>,
}

/// The rings of a worker, as it receives them.
pub(super) struct Pair {
    pub(super) memory: PairMemory,
    /// Rung by the worker.
    pub(super) door: OwnedFd,
    /// Rung by the server.
    pub(super) bell: OwnedFd,
}

/// The client's end.
pub(super) struct Client(Mutex<Link>);

impl Client {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(LockClass::ServedDevice, socket.into()))
    }

    /// Asks for a number.
    pub(super) fn ask(&self, ask: Ask) -> (Outcome, u32) {
        match self.exchange(ask) {
            Ok(Answer { outcome: (kind, errno), number, .. }) => {
                (Outcome::of_numbers(kind, errno), number)
            }
            Err(error) => (Outcome::Failed(errno_of(&error)), 0),
        }
    }

    /// Asks for a pair of rings.
    pub(super) fn open_pair(&self) -> Result<Pair, Errno> {
        let answer = self.exchange(Ask::Open).map_err(|error| errno_of(&error))?;
        let (kind, errno) = answer.outcome;
        match (Outcome::of_numbers(kind, errno), answer.pair) {
            (Outcome::Done, Some(pair)) => {
                let [memory, door, bell] = pair.map(OwnedFd::from);
                Ok(Pair { memory: PairMemory::open(&memory)?, door, bell })
            }
            (Outcome::Done, None) => Err(Errno::PROTO),
            (other, _) => Err(other.errno()),
        }
    }

    /// There is room for a question: the one before was answered.
    fn exchange(&self, ask: Ask) -> Result<Answer, LinkError> {
        let link = self.0.lock();
        link.send(&ask, Duration::ZERO)?;
        link.receive(None, None)
    }
}

/// The next question, if there is one.
///
/// # Errors
/// The client is gone, or makes no sense.
pub(super) fn question(link: &Link) -> Result<Option<Ask>, LinkError> {
    match link.receive_now() {
        Ok(ask) => Ok(Some(ask)),
        Err(LinkError::Silent) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers a client. It never blocks: a client that takes no answers gets none.
///
/// # Errors
/// The client is gone, or takes nothing.
pub(super) fn answer(
    link: &Link,
    outcome: Outcome,
    number: u32,
    pair: Option<[OwnedFd; 3]>,
) -> Result<(), LinkError> {
    let pair = pair.map(|pair| pair.map(Descriptor::from));
    link.send(&Answer { outcome: outcome.numbers(), number, pair }, Duration::ZERO)
}

fn errno_of(error: &LinkError) -> Errno {
    match error {
        LinkError::Ended => Errno::CONNRESET,
        LinkError::Silent => Errno::TIMEDOUT,
        LinkError::Message(_) | LinkError::Cut => Errno::PROTO,
        LinkError::Socket(errno) => *errno,
    }
}
