//! Which pages come into guests when, for who watches the run.
//!
//! Owns: the record of that, in a file that the keeper writes and the front reads.
//! Invariant: every page that comes is told once, or counted as missed.
//! Not here: what is made of it (`report`).

use overspill_base::clock;
use overspill_base::history::{Change, History, Place};
use overspill_base::shared::{Mapping, Table};
use overspill_base::sync::Arc;
use overspill_guest::Vpn;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::ops::Range;
use std::time::Duration;

/// What is enough if it is read every 50 ms.
const ENTRIES: usize = 1 << 17;

/// Guests as the record tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GuestMark(u32);

impl From<u64> for GuestMark {
    /// Of a guest's number. That of a forked child has its highest bit set.
    fn from(number: u64) -> Self {
        Self((number & 0x7fff | number >> 63 << 15) as u32)
    }
}

/// A page that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// Since the record was opened to be read.
    pub after: Duration,
    /// Of whom it is.
    pub guest: GuestMark,
    /// Its address there.
    pub address: u64,
    /// True if it had been out, false if it was touched for the first time.
    pub was_out: bool,
}

/// The record, as it is written.
#[derive(Debug)]
pub(crate) struct Arrivals(History);

impl Arrivals {
    pub(crate) fn open(file: &OwnedFd) -> Result<Self, Errno> {
        open(file).map(Self)
    }

    pub(crate) fn note(&self, guest: u64, place: Range<Vpn>, was_out: bool) {
        let GuestMark(mark) = guest.into();
        for page in place.start.0..place.end.0 {
            self.0.note(mark, page, (was_out.into(), 1));
        }
    }
}

/// The record, as it is read.
#[derive(Debug)]
pub struct ArrivalReader {
    history: History,
    place: Place,
    begun_ns: u64,
}

impl ArrivalReader {
    /// Makes a record; returns its file for a keeper, too.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<(Self, OwnedFd), Errno> {
        let file = memfd_create("overspill-arrivals", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (History::words(ENTRIES) * size_of::<u64>()) as u64)?;
        let history = open(&file)?;
        Ok((Self { history, place: Place::default(), begun_ns: clock::now_ns() }, file))
    }

    /// Tells of the pages that came since the last call. To be called before the record begins to
    /// overwrite itself.
    pub fn take(&mut self, mut tell: impl FnMut(Arrived)) {
        for Change { time_ns, owner, address, before, .. } in self.history.after(&mut self.place) {
            tell(Arrived {
                after: Duration::from_nanos(time_ns.saturating_sub(self.begun_ns)),
                guest: GuestMark(owner),
                address,
                was_out: before == 1,
            });
        }
    }

    /// Returns the number of pages that came too fast to be read.
    pub fn missed(&self) -> u64 {
        self.place.missed()
    }
}

fn open(file: &OwnedFd) -> Result<History, Errno> {
    let words = History::words(ENTRIES);
    let mapping = Arc::new(Mapping::shared(file, words * size_of::<u64>())?);
    Ok(History::new(Table::within(&mapping, 0, words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_once_and_by_whom() {
        let (mut reader, file) = ArrivalReader::new().unwrap();
        let writer = Arrivals::open(&file).unwrap();
        let child = 1 << 63 | 5;
        writer.note(5, Vpn(7)..Vpn(9), false);
        writer.note(child, Vpn(1 << 44)..Vpn((1 << 44) + 1), true);
        let mut seen = Vec::new();
        reader.take(|arrived| seen.push((arrived.guest, arrived.address, arrived.was_out)));
        let (mark, child) = (GuestMark::from(5), GuestMark::from(child));
        let far = 1 << 56;
        assert_eq!(seen, [(mark, 0x7000, false), (mark, 0x8000, false), (child, far, true)]);
        assert_ne!(mark, child);
        reader.take(|_| panic!("they were told"));
        assert_eq!(reader.missed(), 0);
    }
}
