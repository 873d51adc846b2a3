//! What is asked over the socket between a client and the server: seldom, and one thing at a time.
//!
//! Owns: the questions, the answers, and the client's end of the socket.
//! Invariants: a question is a message of three words and an answer one of three, so neither comes
//! in parts. The server's end of the socket is closed when the server ends; whoever waits for an
//! answer gets an error then.
//! Not here: what the answers are ([`super::server`]).

use super::memory::PairMemory;
use super::messages;
use super::words::Outcome;
use overspill_base::Slot;
use overspill_base::sync::{LockClass, Mutex};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Words in a message.
const WORDS: usize = 3;
/// Size of a message in bytes.
pub(super) const MESSAGE_BYTES: usize = WORDS * 4;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// A pair of rings for one of its workers.
    Open {
        /// Who it is: see [`Clients`](super::Clients).
        client: u32,
    },
    /// As [`SwapDevice::grow`](crate::SwapDevice::grow).
    Grow { slots: u32 },
    /// As [`SwapDevice::discard`](crate::SwapDevice::discard).
    Discard { first: Slot, slots: u32 },
}

impl Ask {
    fn words(self) -> [u32; WORDS] {
        match self {
            Self::Open { client } => [0, client, 0],
            Self::Grow { slots } => [1, slots, 0],
            Self::Discard { first, slots } => [2, first.0, slots],
        }
    }

    /// Understands a message; none if it is not one.
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        match words_of(message)? {
            [0, client, 0] => Some(Self::Open { client }),
            [1, slots, 0] => Some(Self::Grow { slots }),
            [2, first, slots] => Some(Self::Discard { first: Slot(first), slots }),
            _ => None,
        }
    }
}

fn bytes_of(words: [u32; WORDS]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn words_of(message: &[u8]) -> Option<[u32; WORDS]> {
    let mut words = [0; WORDS];
    if message.len() != MESSAGE_BYTES {
        return None;
    }
    for (word, chunk) in words.iter_mut().zip(message.chunks_exact(4)) {
        *word = u32::from_ne_bytes(chunk.try_into().expect("four bytes"));
    }
    Some(words)
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
pub(super) struct Link(Mutex<OwnedFd>);

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(LockClass::ServedDevice, socket))
    }

    /// Asks for a number.
    pub(super) fn ask(&self, ask: Ask) -> (Outcome, u32) {
        let answer = self.exchange(ask);
        answer.map_or_else(|errno| (Outcome::Failed(errno), 0), |(outcome, n, _)| (outcome, n))
    }

    /// Asks for a pair of rings.
    pub(super) fn open_pair(&self, client: u32) -> Result<Pair, Errno> {
        let (outcome, _, descriptors) = self.exchange(Ask::Open { client })?;
        if outcome != Outcome::Done {
            return Err(outcome.errno());
        }
        let [memory, door, bell] = descriptors.try_into().map_err(|_| Errno::MFILE)?;
        Ok(Pair { memory: PairMemory::open(&memory)?, door, bell })
    }

    fn exchange(&self, ask: Ask) -> Result<(Outcome, u32, Vec<OwnedFd>), Errno> {
        let socket = self.0.lock();
        let question = bytes_of(ask.words());
        messages::send(&*socket, &question, &[], SendFlags::empty())?;
        let mut answer = [0; MESSAGE_BYTES];
        let (len, descriptors) = messages::receive(&*socket, &mut answer)?;
        // Nothing came: the server has ended.
        let [kind, errno, n] = words_of(&answer[..len]).ok_or(Errno::CONNRESET)?;
        Ok((Outcome::of_numbers(kind, errno), n, descriptors))
    }
}

/// Answers a client. It never blocks: a client that takes no answers gets none.
///
/// # Errors
/// The client is gone, or takes nothing.
pub(super) fn answer(
    socket: BorrowedFd<'_>,
    outcome: Outcome,
    number: u32,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let (kind, errno) = outcome.numbers();
    let message = bytes_of([kind, errno, number]);
    messages::send(socket, &message, descriptors, SendFlags::DONTWAIT)
}
