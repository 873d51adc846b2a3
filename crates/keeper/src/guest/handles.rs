//! What a process is looked at by: its page table, its mappings, its life.
//!
//! Owns: the seam between a keeper and the process of a guest, and what of that stays the same as
//! long as the guest lives.
//! Invariant: files of `/proc` are that address space's, whatever the process becomes.
//! Not here: what is done by its agent (`agent`), what tells of its faults (`source`).

use super::agent::{Agent, Mover};
use crate::parts::{GuestParts, SourceParts};
use overspill_base::sync::Arc;
use overspill_guest::pagemap::{Entry, Pagemap};
use overspill_guest::{Vpn, pidfd};
use rangemap::RangeSet;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

/// A process as it is looked at from outside. Each look fails with ESRCH when its address space has
/// ended.
pub(crate) trait Process: Send + Sync + Debug {
    /// Returns what is at an address.
    ///
    /// # Errors
    /// Of the kernel.
    fn at(&self, at: Vpn) -> Result<Entry, Errno>;

    /// True if there is a page in memory that another process has, too.
    ///
    /// # Errors
    /// Of the kernel.
    fn is_shared(&self, at: Vpn) -> Result<bool, Errno>;

    /// Calls `each` for each run of addresses in `place` that have the same.
    ///
    /// # Errors
    /// Of the kernel.
    fn runs(
        &self,
        place: &Range<Vpn>,
        each: &mut dyn FnMut(Range<Vpn>, Entry),
    ) -> Result<(), Errno>;

    /// Calls `each` for each run of addresses in `place` that have pages in memory.
    ///
    /// # Errors
    /// Of the kernel.
    fn present(&self, place: &Range<Vpn>, each: &mut dyn FnMut(Range<Vpn>)) -> Result<(), Errno>;

    /// Returns its list of mappings, as `/proc/PID/maps` has it.
    ///
    /// # Errors
    /// Of the kernel.
    fn maps(&self) -> Result<String, Errno>;

    /// The same with what is known of each, as `/proc/PID/smaps` has it.
    ///
    /// # Errors
    /// Of the kernel.
    fn smaps(&self) -> Result<String, Errno>;

    /// Returns how many pages of private anonymous memory it has now.
    ///
    /// # Errors
    /// Of the kernel.
    fn pages(&self) -> Result<i64, Errno>;

    /// Ends it.
    fn kill(&self);

    /// True if it has ended.
    fn has_ended(&self) -> bool;

    /// True if it has ended, or does so soon.
    fn ends_within(&self, wait: Duration) -> bool;
}

/// What a process that is attached to is looked at by.
#[derive(Debug)]
pub(crate) struct Handles {
    pub(crate) name: String,
    /// The agent's memory: never paged.
    pub(crate) own: RangeSet<Vpn>,
    pub(crate) process: Arc<dyn Process>,
}

/// A process by its descriptor, and by files of `/proc`.
#[derive(Debug)]
struct ProcFiles {
    process: OwnedFd,
    pagemap: Pagemap,
    maps: OwnedFd,
    smaps: OwnedFd,
    statm: OwnedFd,
}

/// A process that was attached to, by the seams that a keeper knows it by.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) source: SourceParts,
    pub(crate) handles: Handles,
    pub(crate) mover: Box<dyn Mover>,
    /// Pages that its threads need to end.
    pub(crate) needed: Vec<Vpn>,
}

impl GuestParts {
    /// What they are to a keeper, but for its letters.
    pub(crate) fn attached(self) -> Attached {
        let files = ProcFiles {
            process: self.process,
            pagemap: Pagemap::new(self.pagemap),
            maps: self.maps,
            smaps: self.smaps,
            statm: self.statm,
        };
        let own = self.own.into_iter().filter(|place| !place.is_empty()).collect();
        let handles = Handles { name: self.name, own, process: Arc::new(files) };
        let mover = Box::new(Agent::new(self.channel, self.memory));
        Attached { source: self.source, handles, mover, needed: self.needed }
    }
}

impl Process for ProcFiles {
    fn at(&self, at: Vpn) -> Result<Entry, Errno> {
        self.pagemap.at(at)
    }

    fn is_shared(&self, at: Vpn) -> Result<bool, Errno> {
        self.pagemap.is_shared(at)
    }

    fn runs(
        &self,
        place: &Range<Vpn>,
        each: &mut dyn FnMut(Range<Vpn>, Entry),
    ) -> Result<(), Errno> {
        self.pagemap.runs(place, each)
    }

    fn present(&self, place: &Range<Vpn>, each: &mut dyn FnMut(Range<Vpn>)) -> Result<(), Errno> {
        self.pagemap.present(place, each)
    }

    fn maps(&self) -> Result<String, Errno> {
        text(&self.maps)
    }

    fn smaps(&self) -> Result<String, Errno> {
        text(&self.smaps)
    }

    /// What is resident and not of a file. Before Linux 6.16 that is wrong by some pages for each
    /// CPU.
    fn pages(&self) -> Result<i64, Errno> {
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

    fn kill(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    fn has_ended(&self) -> bool {
        pidfd::has_ended(&self.process)
    }

    fn ends_within(&self, wait: Duration) -> bool {
        pidfd::ends_within(&self.process, wait)
    }
}

/// Reads a file of `/proc` from its start.
fn text(file: &OwnedFd) -> Result<String, Errno> {
    let (mut bytes, mut read) = (vec![0; 1 << 16], 0);
    loop {
        match rustix::io::pread(file.as_fd(), &mut bytes[read..], read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if bytes.len() - read < 1 << 15 {
            bytes.resize(2 * bytes.len(), 0);
        }
    }
    bytes.truncate(read);
    // Names of mappings are the guest's, and may be anything.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
