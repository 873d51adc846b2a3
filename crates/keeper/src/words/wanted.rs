//! What a keeper wants of its front.
//!
//! Owns: the form of that.
//! Not here: what is done about it (`run`).

use super::{Packet, WordError, kind, read_eye, write_eye};
use crate::eye::EyeParts;
use rustix::fd::OwnedFd;

/// What a keeper wants of its front. Guests are named by their numbers.
#[derive(Debug)]
pub enum Wanted {
    /// That all threads of a guest are told to stop.
    Hold(u64),
    /// As `Hold`, and that `Frozen` is said then.
    Freeze(u64),
    /// As `Hold`, and that `Stands` is said when they have stopped.
    Still(u64),
    /// That they go on.
    Release(u64),
    /// A guest has forked: its child, of which this tells, is to be attached to as this guest.
    Attach(u64, EyeParts),
    /// There is no such child any more.
    Forget(u64),
    /// That a guest is let go for good: it waits for that, to filter its calls.
    LetGo(u64),
    /// A guest has made a child: what tells of it is to be fetched.
    Fetch(Birth),
}

/// A child that a guest has forked, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth {
    /// The guest.
    pub parent: u64,
    /// Which fork.
    pub fork: u64,
    /// The child's number, in the namespace of its parent.
    pub child: i32,
    /// What its userfaultfd is there; less than 0 if it has none.
    pub userfaultfd: i32,
}

impl Wanted {
    pub(super) fn packet(&self) -> Packet {
        let bare = |kind, number: &u64| Packet::new(kind, &[*number]);
        match self {
            Self::Hold(guest) => bare(kind::HOLD, guest),
            Self::Freeze(guest) => bare(kind::FREEZE, guest),
            Self::Still(guest) => bare(kind::STILL, guest),
            Self::Release(guest) => bare(kind::RELEASE, guest),
            Self::Attach(child, eye) => {
                let [a, b, c, d, e] = write_eye(eye);
                Packet::new(kind::ATTACH, &[*child, a, b, c, d, e])
            }
            Self::Forget(child) => bare(kind::FORGET, child),
            Self::LetGo(guest) => bare(kind::WANTS_OUT, guest),
            Self::Fetch(Birth { parent, fork, child, userfaultfd }) => {
                Packet::new(kind::FETCH, &[*parent, *fork, *child as u64, *userfaultfd as u64])
            }
        }
    }

    pub(super) fn read(packet: &Packet) -> Result<Self, WordError> {
        let number = packet.words[0];
        Ok(match packet.kind {
            kind::HOLD => Self::Hold(number),
            kind::FREEZE => Self::Freeze(number),
            kind::STILL => Self::Still(number),
            kind::RELEASE => Self::Release(number),
            kind::FORGET => Self::Forget(number),
            kind::WANTS_OUT => Self::LetGo(number),
            kind::FETCH => {
                let [parent, fork, child, userfaultfd, ..] = packet.words;
                let number = |word| i32::try_from(word as i64).map_err(|_| packet.bad("number"));
                let (child, userfaultfd) = (number(child)?, number(userfaultfd)?);
                Self::Fetch(Birth { parent, fork, child, userfaultfd })
            }
            other => return Err(WordError::Kind(other)),
        })
    }

    /// Reads the one that brings something.
    pub(super) fn read_child(packet: &Packet, fds: Vec<OwnedFd>) -> Result<Self, WordError> {
        let [fd] = packet.exactly(fds)?;
        Ok(Self::Attach(packet.words[0], read_eye(packet, fd, None)?))
    }
}
