//! What of a guest goes from process to process.
//!
//! Owns: the form in which whoever attached to a process hands it over, and in which a keeper tells
//! of its children.
//! Not here: how it is sent (`wire`), what becomes of it (`guest`).

use overspill_agent::Barrier;
use overspill_guest::userfault::GuestUserfault;
use overspill_guest::{Channel, Vpn};
use overspill_wire::{Descriptor, descriptor};
use rustix::fd::OwnedFd;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::ops::Range;

/// What a fault source is made of.
#[derive(Debug, Serialize, Deserialize)]
pub enum SourceParts {
    /// The guest's userfaultfd, agreed on with the kernel.
    Userfault(#[serde(with = "userfault")] GuestUserfault),
    /// Its touches are signals, of which its gate writes letters.
    Signals {
        /// Its process.
        #[serde(with = "descriptor")]
        process: OwnedFd,
        /// What has touches of what is out raise them.
        #[serde(with = "barrier")]
        barrier: Barrier,
    },
    /// A twin of one, in ordinary memory.
    #[cfg(test)]
    #[doc(hidden)]
    #[serde(skip)]
    Twin(crate::tests::twin::Twin),
}

impl SourceParts {
    /// A page that stays registered, if one is known.
    pub(crate) fn anchor(&self) -> Option<Vpn> {
        match self {
            Self::Userfault(userfault) => Some(userfault.anchor()),
            Self::Signals { .. } => None,
            #[cfg(test)]
            Self::Twin(_) => None,
        }
    }
}

/// What whoever attached hands over.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuestParts {
    /// For messages.
    pub name: String,
    /// The program.
    #[serde(with = "descriptor")]
    pub process: OwnedFd,
    /// Its agent.
    #[serde(with = "descriptor")]
    pub agent: OwnedFd,
    /// What tells of its faults.
    pub source: SourceParts,
    /// `/proc/PID/pagemap`, `maps`, `smaps`, `statm`.
    #[serde(with = "descriptor")]
    pub pagemap: OwnedFd,
    /// See `pagemap`.
    #[serde(with = "descriptor")]
    pub maps: OwnedFd,
    /// See `pagemap`.
    #[serde(with = "descriptor")]
    pub smaps: OwnedFd,
    /// See `pagemap`.
    #[serde(with = "descriptor")]
    pub statm: OwnedFd,
    /// To the agent, which was set up, and has registered staging.
    #[serde(with = "descriptor")]
    pub channel: Channel,
    /// The file that the agent writes to.
    #[serde(with = "descriptor")]
    pub memory: OwnedFd,
    /// The agent's memory, staging, and the gate's memory, which is empty if there is none: never
    /// paged.
    #[serde(deserialize_with = "places")]
    pub own: [Range<Vpn>; 3],
    /// The bell and the letters, of a guest whose calls go through a gate.
    pub letters: Option<[Descriptor; 2]>,
    /// Pages that the kernel needs when a thread ends, and cannot wait for. They are sent apart.
    #[serde(skip)]
    pub needed: Vec<Vpn>,
}

/// A child that a guest has forked, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

/// Places that begin before they end, the last one at the latest there.
fn places<'d, D: Deserializer<'d>>(from: D) -> Result<[Range<Vpn>; 3], D::Error> {
    let places = <[Range<Vpn>; 3]>::deserialize(from)?;
    let [agent, staging, gate] = &places;
    match !agent.is_empty() && !staging.is_empty() && gate.start <= gate.end {
        true => Ok(places),
        false => Err(D::Error::custom("a place ends before it begins")),
    }
}

/// A userfaultfd in a message.
mod userfault {
    use overspill_guest::Vpn;
    use overspill_guest::userfault::{Abilities, GuestUserfault};
    use overspill_wire::descriptor;
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Sent<'a>(Abilities, Vpn, #[serde(with = "descriptor")] BorrowedFd<'a>);

    #[derive(Deserialize)]
    struct Received(Abilities, Vpn, #[serde(with = "descriptor")] OwnedFd);

    pub(super) fn serialize<S: Serializer>(
        userfault: &GuestUserfault,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        Sent(userfault.abilities(), userfault.anchor(), userfault.as_fd()).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<GuestUserfault, D::Error> {
        let Received(abilities, anchor, fd) = Received::deserialize(from)?;
        Ok(GuestUserfault::agreed(fd, abilities, Some(anchor)))
    }
}

/// What keeps touches away, in a message: as the agent is told.
mod barrier {
    use overspill_agent::Barrier;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(barrier: &Barrier, to: S) -> Result<S::Ok, S::Error> {
        Barrier::word(Some(*barrier)).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Barrier, D::Error> {
        let word = u32::deserialize(from)?;
        Barrier::of(word).ok_or_else(|| D::Error::custom("it is no barrier"))
    }
}
