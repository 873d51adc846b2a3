//! The channel to an agent.
//!
//! Owns: asking, and reading what is answered.
//! Invariants: one request, one answer. An answer is the agent's word, which shares its memory with
//! the program: who asked checks it against what was asked.
//! Not here: what is asked when.

use crate::system::System;
use overspill_agent::{Answer, Request, step, step_name};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

/// Why a request has no good answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    /// The agent gave the request up.
    #[error("the agent failed at {}: {errno}", step_name(*step))]
    Refused {
        /// Of [`overspill_agent::step`].
        step: u32,
        /// What the kernel said to it.
        errno: Errno,
    },
    /// The agent has ended.
    #[error("the agent has ended: what it would have moved stays in memory")]
    Ended,
    /// It does not answer.
    #[error("the agent does not answer: is its process stopped?")]
    Silent,
    /// The answer is none.
    #[error("the agent answers with {bytes} bytes: its memory was overwritten")]
    Garbled {
        /// Of the answer.
        bytes: usize,
    },
    /// The socket failed.
    #[error("the channel to the agent failed: {0}")]
    Socket(Errno),
}

/// Our end of an agent's channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    /// Asks for something and waits for the answer.
    ///
    /// # Errors
    /// The agent gave it up, has ended, or does not answer in this time.
    pub fn ask<S: System>(
        &self,
        system: &S,
        request: &Request,
        with: &[BorrowedFd<'_>],
        at_most: Duration,
    ) -> Result<Answer, ChannelError> {
        self.send(system, request, with)?;
        self.await_answer(system, at_most)
    }

    /// Waits for an answer, the first or another one, to what was asked.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn await_answer<S: System>(
        &self,
        system: &S,
        at_most: Duration,
    ) -> Result<Answer, ChannelError> {
        match self.is_readable(system, at_most)? {
            true => self.answer(system),
            false => Err(ChannelError::Silent),
        }
    }

    /// Waits until an answer is there, or the agent has ended; false if not in this time.
    ///
    /// # Errors
    /// The socket failed.
    pub fn is_readable<S: System>(
        &self,
        system: &S,
        at_most: Duration,
    ) -> Result<bool, ChannelError> {
        system.readable(self.as_fd(), at_most).map_err(ChannelError::Socket)
    }

    /// Asks for something. Its answer is to be taken before the next request. Does not wait: there
    /// is room, unless an agent answers without having read what it was asked.
    ///
    /// # Errors
    /// The agent has ended, or reads nothing.
    pub fn send<S: System>(
        &self,
        system: &S,
        request: &Request,
        with: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let sent = system.send(self.as_fd(), bytemuck::bytes_of(request), with);
        sent.map_err(failed)
    }

    /// Takes an answer that is there.
    ///
    /// # Errors
    /// It is not there yet; or as [`Channel::ask`].
    pub fn answer<S: System>(&self, system: &S) -> Result<Answer, ChannelError> {
        let mut answer: Answer = bytemuck::Zeroable::zeroed();
        match system.receive(self.as_fd(), bytemuck::bytes_of_mut(&mut answer)) {
            Ok(0) => Err(ChannelError::Ended),
            Ok(bytes) if bytes != size_of::<Answer>() => Err(ChannelError::Garbled { bytes }),
            Ok(_) => succeeded(answer),
            Err(errno) => Err(failed(errno)),
        }
    }
}

fn failed(errno: Errno) -> ChannelError {
    match errno {
        Errno::AGAIN => ChannelError::Silent,
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ChannelError::Ended,
        errno => ChannelError::Socket(errno),
    }
}

fn succeeded(answer: Answer) -> Result<Answer, ChannelError> {
    match answer.errno {
        0 => Ok(answer),
        1..=4095 => {
            let errno = Errno::from_raw_os_error(answer.errno);
            Err(ChannelError::Refused { step: answer.step, errno })
        }
        _ => Err(ChannelError::Refused { step: step::WORDS, errno: Errno::PROTO }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use overspill_agent::kind;
    use rustix::net::sockopt::set_socket_send_buffer_size;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    /// It was taken over.
    #[test]
    fn nobody_waits_for_an_agent_that_only_answers() {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        set_socket_send_buffer_size(&pair.0, 16 << 10).unwrap();
        let (channel, agent) = (Channel::from(pair.0), pair.1);
        let answer: Answer = bytemuck::Zeroable::zeroed();
        let ask = || {
            send(&agent, bytemuck::bytes_of(&answer), SendFlags::empty()).unwrap();
            channel.ask(&Kernel::new(), &Request::of(kind::BATCH), &[], Duration::ZERO)
        };
        assert!(ask().is_ok());
        assert_eq!((0..1000).find_map(|_| ask().err()), Some(ChannelError::Silent));
    }
}
