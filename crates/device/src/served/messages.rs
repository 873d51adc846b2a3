//! Messages of a socket, with descriptors.
//!
//! Invariants: a message comes whole or not at all; a descriptor that this process has no room for
//! is missing from it.
//! Not here: what messages say ([`super::control`], [`super::apart`]).

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most descriptors of a message: a pair's memory and two bells.
const DESCRIPTORS_MAX: usize = 3;

/// Makes two sockets that are each other's other end.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends a message. Blocks if the other end takes none, unless `flags` say otherwise.
///
/// # Errors
/// EPIPE if there is no other end.
pub(super) fn send(
    socket: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let (message, flags) = ([IoSlice::new(message)], flags | SendFlags::NOSIGNAL);
    retry_on_intr(|| sendmsg(&socket, &message, &mut control, flags)).map(drop)
}

/// Receives a message into `room`; returns its length, 0 if there is no other end, and its
/// descriptors. Blocks until one comes.
///
/// # Errors
/// Those of recvmsg.
pub(super) fn receive(socket: impl AsFd, room: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received.bytes, descriptors.flatten().collect()))
}
