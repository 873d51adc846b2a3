//! What whoever attached to a process hands over.
//!
//! Owns: the form of it, and what of it stays the same as long as the guest lives.
//! Invariant: files of `/proc` are that address space's, whatever the process becomes.
//! Not here: what changes (`guest`).

use crate::agent::Agent;
use crate::eye::EyeParts;
use overspill_guest::pagemap::Pagemap;
use overspill_guest::{Channel, Vpn};
use rangemap::RangeSet;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ops::Range;

/// What whoever attached hands over.
#[derive(Debug)]
pub struct GuestParts {
    /// For messages.
    pub name: String,
    /// The program.
    pub process: OwnedFd,
    /// Its agent.
    pub agent: OwnedFd,
    /// What tells of its touches.
    pub eye: EyeParts,
    /// `/proc/PID/pagemap`, `maps`, `smaps`, `statm`.
    pub pagemap: OwnedFd,
    /// See `pagemap`.
    pub maps: OwnedFd,
    /// See `pagemap`.
    pub smaps: OwnedFd,
    /// See `pagemap`.
    pub statm: OwnedFd,
    /// To the agent, which was set up, and has registered staging.
    pub channel: Channel,
    /// The file that the agent writes to.
    pub memory: OwnedFd,
    /// The agent's memory, staging, and the gate's memory, which is empty if there is none: never
    /// paged.
    pub own: [Range<Vpn>; 3],
    /// The bell and the letters, of a guest whose calls go through a gate.
    pub letters: Option<[OwnedFd; 2]>,
    /// Pages that the kernel needs when a thread ends, and cannot wait for.
    pub needed: Vec<Vpn>,
}

/// What is known of a process that is attached to.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) process: OwnedFd,
    pub(crate) pagemap: Pagemap,
    pub(crate) maps: OwnedFd,
    pub(crate) smaps: OwnedFd,
    statm: OwnedFd,
    pub(crate) own: RangeSet<Vpn>,
}

impl GuestParts {
    /// Takes them apart: the agent comes with the pages that its program's threads need.
    pub(crate) fn apart(self) -> (EyeParts, Known, (Agent, Vec<Vpn>)) {
        let known = Known {
            name: self.name,
            process: self.process,
            pagemap: Pagemap::new(self.pagemap),
            maps: self.maps,
            smaps: self.smaps,
            statm: self.statm,
            own: self.own.into_iter().filter(|place| !place.is_empty()).collect(),
        };
        (self.eye, known, (Agent::new(self.channel, self.memory), self.needed))
    }
}

impl Known {
    /// Returns how many pages of private anonymous memory it has now: what is resident and not of a
    /// file. Before Linux 6.16 that is wrong by some pages for each CPU.
    ///
    /// # Errors
    /// Of the kernel. An address space that has ended has none.
    pub(crate) fn pages(&self) -> Result<i64, Errno> {
        let mut text = [0; 128];
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&self.statm, &mut text, 0))?;
        let fields = text[..read].split(u8::is_ascii_whitespace).map(|field| {
            std::str::from_utf8(field).ok().and_then(|field| field.parse::<i64>().ok())
        });
        match fields.take(3).collect::<Option<Vec<_>>>().as_deref() {
            Some([_, resident, shared]) => Ok(resident - shared),
            _ => Err(Errno::PROTO),
        }
    }
}
