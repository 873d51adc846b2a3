//! How a process of a run reaches its supervisor: one socket, one greeting, one answer.
//!
//! Owns: the address in the environment, the greeting, and the descriptors in the answer.
//!
//! ```text
//! process     connects, checks who is at the other end, sends [secret, its pid]
//! supervisor  checks the user and the secret, sends [1] with the descriptors
//! process     keeps the socket; sends [1] with its userfaultfd; everything it sends from now on
//!             is a line for the user
//! ```
//!
//! The socket has an abstract name, so it leaves nothing in a file system. In another network
//! namespace, which has other abstract names, it is reached through the supervisor's descriptor of
//! a file to which a second socket was bound, and which has been unlinked.
//! Invariants: descriptors go only to processes of the run's owner, or to those that know the
//! secret that only processes of the run have in memory: their forked children, whatever rights
//! they have dropped. A secret goes to the process that was joined, and to no other: names of the
//! dead are free for everybody.
//! Rejected: opening `/proc/PID/fd/N` of the supervisor. A process that changes its root or its
//! user cannot do that, and would not be able to fork.

use super::peer::Peer;
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    recvmsg, send, sendmsg, socket_with,
};
use rustix::process::Pid;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::str::FromStr;

/// Size of a secret in bytes.
pub(super) const SECRET_BYTES: usize = 16;
/// Maximum length of a message in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 4096;
/// What is sent with descriptors.
pub(super) const WITH_DESCRIPTORS: u8 = 1;
/// Maximum number of descriptors in an answer; the kernel's limit is higher.
const DESCRIPTORS_MAX: usize = 64;

/// What a process must know to be served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret(pub(super) [u8; SECRET_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub(super) fn random() -> Result<Self, Error> {
        let mut bytes = [0; SECRET_BYTES];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(Error::session("draw the secret of"))?;
        Ok(Self(bytes))
    }
}

/// The address of a run's supervisor, as in the environment of its processes.
#[derive(Clone, Debug)]
pub struct Address {
    /// Name of the abstract socket.
    pub(super) name: Secret,
    /// What a process started by exec must know.
    pub(super) secret: Secret,
    pub(super) supervisor: i32,
    /// The supervisor's descriptor of the file the second socket was bound to.
    pub(super) file: i32,
    /// Who was there when this process, or the one that it was forked from, joined.
    pub(super) joined: Option<Peer>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, secret, supervisor, file, .. } = self;
        let [name, secret] = [name, secret].map(|s| u128::from_be_bytes(s.0));
        write!(f, "{name:032x}:{secret:032x}:{supervisor}:{file}")
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let strange = || Error::Session { action: "find", reason: format!("`{text}`") };
        let secret = |text: &str| u128::from_str_radix(text, 16).map(|n| Secret(n.to_be_bytes()));
        let [name, secret_part, supervisor, file] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err(strange());
        };
        Ok(Self {
            name: secret(name).map_err(|_| strange())?,
            secret: secret(secret_part).map_err(|_| strange())?,
            supervisor: supervisor.parse().map_err(|_| strange())?,
            file: file.parse().map_err(|_| strange())?,
            joined: None,
        })
    }
}

impl Address {
    pub(super) fn socket_address(&self) -> SocketAddrUnix {
        let name = format!("overspill-{:032x}", u128::from_be_bytes(self.name.0));
        SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("an abstract name is short")
    }

    fn by_file(&self) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new(format!("/proc/{}/fd/{}", self.supervisor, self.file))
    }
}

/// The number of a process that is yet to be made.
const NOT_YET: i32 = 0;
/// Instead of a process's number: only the devices are asked for. Whoever has the session's file
/// must not get it again: when the copy is closed, POSIX drops the process's locks on the file, by
/// which it is known to be alive.
pub(super) const DEVICES_ONLY: i32 = -1;

/// A process's connection to its supervisor.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Connects for a process started by exec, `program`: the supervisor must be this user's, and
    /// is believed by this address from now on.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn join(address: &mut Address, program: Pid) -> Result<Self, Error> {
        let channel = Self::connect(address).map_err(Error::session("reach"))?;
        let (owner, own) = (channel.peer()?, rustix::process::geteuid().as_raw());
        if owner.user != own {
            let reason = format!("it is of user {}, and this process of user {own}", owner.user);
            return Err(Error::Session { action: "join", reason });
        }
        address.joined = Some(owner);
        channel.greet(address.secret, program.as_raw_pid())?;
        Ok(channel)
    }

    /// Connects for a child about to be forked, which has the same right to be served as this
    /// process, whatever its user is by now. The answer has arrived when this returns.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub(super) fn for_child(address: &Address, secret: Secret) -> Result<Self, Error> {
        let channel = Self::connect_again(address)?;
        channel.greet(secret, NOT_YET)?;
        let mut answer = [0];
        let flags = RecvFlags::PEEK;
        let (n, _) = retry_on_intr(|| recv(&channel.socket, &mut answer, flags))
            .map_err(Error::session("join"))?;
        if n == 1 { Ok(channel) } else { Err(refused()) }
    }

    /// Asks, for a process of the run, for the descriptors of the devices: those that there are by
    /// now, and others for those to come. Blocks until they arrive.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub(super) fn devices(address: &Address, secret: Secret) -> Result<Vec<OwnedFd>, Error> {
        let channel = Self::connect_again(address)?;
        channel.greet(secret, DEVICES_ONLY)?;
        channel.descriptors()
    }

    /// Makes a channel of `socket`.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    fn connect(address: &Address) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let connected = retry_on_intr(|| connect(&socket, &address.socket_address()));
        if connected == Err(Errno::CONNREFUSED) {
            let by_file = address.by_file()?;
            retry_on_intr(|| connect(&socket, &by_file))?;
        } else {
            connected?;
        }
        Ok(Self { socket })
    }

    /// Connects to the supervisor that was joined, and to nobody else.
    fn connect_again(address: &Address) -> Result<Self, Error> {
        let channel = Self::connect(address).map_err(Error::session("reach"))?;
        let peer = channel.peer()?;
        if address.joined.is_some_and(|joined| peer.is_still(joined)) {
            return Ok(channel);
        }
        let reason = format!("it has ended, and a process of user {} has its name", peer.user);
        Err(Error::Session { action: "reach", reason })
    }

    fn peer(&self) -> Result<Peer, Error> {
        Peer::of(&self.socket).map_err(Error::session("ask the owner of"))
    }

    /// True unless the supervisor has ended, or has closed this.
    pub fn is_open(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        polled.is_ok() && !fds[0].revents().contains(PollFlags::HUP)
    }

    fn greet(&self, secret: Secret, process: i32) -> Result<(), Error> {
        let greeting = [&secret.0[..], &process.to_ne_bytes()].concat();
        retry_on_intr(|| send(&self.socket, &greeting, SendFlags::NOSIGNAL))
            .map(drop)
            .map_err(Error::session("greet"))
    }

    /// Receives the descriptors of the answer: the session's file, the keys', one for each device
    /// that there is or may come, and others; see [`Session::open`](super::Session::open). Blocks
    /// until it arrives.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn descriptors(&self) -> Result<Vec<OwnedFd>, Error> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut answer = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = retry_on_intr(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut answer)], &mut control, flags)
        });
        let message = message.map_err(Error::session("receive"))?;
        let fds: Vec<_> = control
            .drain()
            .filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if message.bytes == 1 && answer == [WITH_DESCRIPTORS] { Ok(fds) } else { Err(refused()) }
    }

    /// Has the supervisor keep a userfaultfd as long as its memory exists. A killed process closes
    /// its own before anybody is told, and from then on missing pages would read as zeros.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn entrust(&self, userfault: BorrowedFd<'_>) -> Result<(), Error> {
        send_descriptors(&self.socket, &[userfault])
            .map_err(Error::session("give the userfaultfd to"))
    }

    /// Sends a line for the user to the supervisor. It is lost if the supervisor has ended.
    pub fn tell(&self, line: &str) {
        let line = &line.as_bytes()[..line.len().min(MESSAGE_BYTES_MAX)];
        let _ = retry_on_intr(|| send(&self.socket, line, SendFlags::NOSIGNAL));
    }
}

/// Sends at most [`DESCRIPTORS_MAX`] descriptors.
pub(super) fn send_descriptors(socket: &OwnedFd, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    let word = [IoSlice::new(&[WITH_DESCRIPTORS])];
    retry_on_intr(|| sendmsg(socket, &word, &mut control, SendFlags::NOSIGNAL)).map(drop)
}

fn refused() -> Error {
    Error::Session { action: "join", reason: "its supervisor refused or is gone".into() }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}
