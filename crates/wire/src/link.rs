//! The socket between two processes.
//!
//! Owns: sending and receiving of messages, with a deadline for each.
//! Invariants: a message comes whole or not at all. The end of the other process may be known by
//! its pidfd instead of by its socket, which another one keeps open for it.
//! Not here: what a message is (`message`).

use crate::message::{DESCRIPTORS_MAX, Encoded, MESSAGE_BYTES_MAX, MessageError, decode, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Why nothing was sent or received.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is no more.
    #[error("the other end has ended")]
    Ended,
    /// It says or takes nothing.
    #[error("the other end does not answer: is it stopped, or its disk very slow?")]
    Silent,
    /// Of a message.
    #[error("a message is of no use: {0}")]
    Message(#[from] MessageError),
    /// A message was cut.
    #[error("a message has more than {MESSAGE_BYTES_MAX} bytes, or descriptors than there is room")]
    Cut,
    /// The socket.
    #[error("the socket between two processes of the run failed: {0}")]
    Socket(Errno),
}

/// One end.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
}

impl From<OwnedFd> for Link {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl From<Link> for OwnedFd {
    fn from(Link { socket }: Link) -> Self {
        socket
    }
}

impl Link {
    /// Makes two ends; the second is for another process.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::from(own), other))
    }

    /// Sends a message; waits so long until the other end takes it.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn send(&self, message: &impl Serialize, at_most: Duration) -> Result<(), LinkError> {
        let (encoded, deadline) = (encode(message)?, Instant::now() + at_most);
        while !self.send_if_room(&encoded)? {
            self.wait_for_room(deadline)?;
        }
        Ok(())
    }

    /// Sends a message; false if the other end takes nothing now.
    pub(crate) fn send_if_room(&self, encoded: &Encoded) -> Result<bool, LinkError> {
        match self.send_now(encoded) {
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(LinkError::Ended),
            sent => sent.map(|()| true).map_err(LinkError::Socket),
        }
    }

    pub(crate) fn wait_for_room(&self, deadline: Instant) -> Result<(), LinkError> {
        self.wait(PollFlags::OUT, None, Some(deadline))
    }

    /// Sends a message of someone who has no time to wait: it is lost if the other end takes
    /// nothing now.
    pub fn tell(&self, message: &impl Serialize) {
        let _ = encode(message).map(|encoded| self.send_now(&encoded));
    }

    /// Takes the next message, of which the type is known; waits for it, at most until a deadline
    /// if there is one. `peer` is the pidfd of the other process: what it said before its end is
    /// still read.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn receive<T: DeserializeOwned>(
        &self,
        peer: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<T, LinkError> {
        loop {
            match self.receive_now() {
                Err(LinkError::Silent) => self.wait(PollFlags::IN, peer, deadline)?,
                received => return received,
            }
        }
    }

    /// Takes a message that has come.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Silent`] if none has.
    pub fn receive_now<T: DeserializeOwned>(&self) -> Result<T, LinkError> {
        let Encoded { bytes, descriptors } = self.take()?;
        Ok(decode(&bytes, descriptors)?)
    }

    /// Has the other end see the end of this one.
    pub fn close(&self) {
        // It is the end already if that cannot be.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn send_now(&self, Encoded { bytes, descriptors }: &Encoded) -> Result<(), Errno> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = SendAncillaryMessage::ScmRights(&descriptors);
        if !descriptors.is_empty() && !control.push(rights) {
            return Err(Errno::NOBUFS);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let bytes = [IoSlice::new(bytes)];
        rustix::io::retry_on_intr(|| sendmsg(&self.socket, &bytes, &mut control, flags)).map(drop)
    }

    fn take(&self) -> Result<Encoded, LinkError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        });
        let received = received.map_err(|errno| match errno {
            Errno::AGAIN => LinkError::Silent,
            // It has ended, and has not read all.
            Errno::CONNRESET => LinkError::Ended,
            errno => LinkError::Socket(errno),
        })?;
        // Descriptors that came are closed if the message is not taken.
        let descriptors = control.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        if received.bytes == 0 {
            return Err(LinkError::Ended);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(LinkError::Cut);
        }
        bytes.truncate(received.bytes);
        Ok(Encoded { bytes, descriptors })
    }

    /// Waits until the socket is ready.
    fn wait(
        &self,
        ready: PollFlags,
        peer: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(LinkError::Silent);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![PollFd::new(&self.socket, ready)];
        fds.extend(peer.map(|peer| PollFd::from_borrowed_fd(peer, PollFlags::IN)));
        match poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(LinkError::Socket(errno)),
            Ok(0) => Err(LinkError::Silent),
            Ok(_) if fds[0].revents().is_empty() => Err(LinkError::Ended),
            Ok(_) => Ok(()),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    fn pair() -> (Link, Link) {
        let (one, other) = Link::pair().unwrap();
        (one, Link::from(other))
    }

    #[test]
    fn what_was_sent_arrives() {
        let (one, other) = pair();
        one.send(&(7_u64, "seven"), Duration::ZERO).unwrap();
        assert_eq!(other.receive::<(u64, String)>(None, None), Ok((7, "seven".into())));
        other.tell(&true);
        let read = one.receive::<(u64, String)>(None, None);
        assert!(matches!(read, Err(LinkError::Message(MessageError::Read(_)))), "{read:?}");
    }

    #[test]
    fn who_is_told_too_much_hears_the_first() {
        let (one, other) = pair();
        (0..100_000_u32).for_each(|n| one.tell(&n));
        assert_eq!(one.send(&0, Duration::from_millis(5)), Err(LinkError::Silent));
        assert_eq!(other.receive(None, None), Ok(0_u32));
        one.send(&0, Duration::ZERO).unwrap();
    }

    #[test]
    fn what_is_cut_is_an_error() {
        let (one, other) = pair();
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        rustix::net::send(&one, &long, SendFlags::empty()).unwrap();
        assert_eq!(other.receive::<u64>(None, None), Err(LinkError::Cut));
    }

    #[test]
    fn silence_and_ends_are_told_apart() {
        let (one, other) = pair();
        let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let soon = Some(Instant::now() + Duration::from_millis(5));
        assert_eq!(one.receive::<u64>(Some(own.as_fd()), soon), Err(LinkError::Silent));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty());
        // Its socket stays open, as a holder keeps it.
        let process = process.unwrap();
        assert_eq!(one.receive::<u64>(Some(process.as_fd()), None), Err(LinkError::Ended));
        child.wait().unwrap();
        drop(one);
        assert_eq!(other.receive::<u64>(None, None), Err(LinkError::Ended));
    }
}
