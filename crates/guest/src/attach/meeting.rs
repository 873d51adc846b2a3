//! Where an agent's channel cannot be taken: the agent comes to a socket that listens.
//!
//! Owns: its address, as the agent is given it, and telling the agent from others that come.
//! Not here: who listens (`run`).

use crate::error::{About, Result};
use crate::hold::Held;
use crate::system::System;
use overspill_agent::ADDRESS_BYTES;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;

/// The address of a socket, and how many bytes of it count.
pub(super) fn address_of<S: System>(
    held: &Held<'_, S>,
    listener: BorrowedFd<'_>,
) -> Result<([u8; ADDRESS_BYTES], u32)> {
    const DOING: &str = "finding the way for the agent of";
    let address = held.tracer.system.address(listener).about(held.pid, DOING)?;
    let mut bytes = [0; ADDRESS_BYTES];
    let room = bytes.get_mut(..address.len()).ok_or(Errno::NAMETOOLONG);
    room.about(held.pid, DOING)?.copy_from_slice(&address);
    Ok((bytes, address.len() as u32))
}

/// Takes the agent's connection, which is there before the agent is ready. Whoever else has come
/// is sent away.
pub(super) fn accept<S: System>(
    held: &Held<'_, S>,
    listener: BorrowedFd<'_>,
    agent: Pid,
) -> Result<OwnedFd> {
    loop {
        let accepted = held.tracer.system.accept(listener);
        let (socket, peer) = accepted.about(held.pid, "taking the connection of the agent of")?;
        if peer == Some(agent) {
            return Ok(socket);
        }
    }
}
