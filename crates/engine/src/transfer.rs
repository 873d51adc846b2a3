//! Page transfers between memory and devices.
//!
//! Owns: the parts of a request page by page, and the encoding of its tag.
//! Not here: the requests' queues (`worker`), what a completion does (`complete`).

use crate::frames::LockedPage;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::FrameNo;
use overspill_base::shared::PageBuf;

/// A page to be read: its frame is cached under the entry, and locked for the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToRead {
    pub(crate) entry: SwapEntry,
    pub(crate) frame: FrameNo,
}

/// A read of a page, and where to; the request holds the page lock.
#[derive(Debug)]
pub(crate) struct PageRead {
    pub(crate) entry: SwapEntry,
    pub(crate) into: PageBuf,
}

/// A page in staging memory, and the slot to write it to.
#[derive(Debug)]
pub(crate) struct PageWrite {
    pub(crate) locked: LockedPage,
    pub(crate) entry: SwapEntry,
}

/// Where a page was read to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// This page of the worker's bounce memory; it is copied to the program.
    Bounce(usize),
    /// This page of a staging chunk, where it waited; it is copied to the program too.
    Chunk(usize),
}

impl Destination {
    fn precedes(self, next: Destination) -> bool {
        match (self, next) {
            (Destination::Bounce(a), Destination::Bounce(b))
            | (Destination::Chunk(a), Destination::Chunk(b)) => a + 1 == b,
            _ => false,
        }
    }
}

/// A page just read, whose word is already Resident, to be mapped.
#[derive(Debug)]
pub(crate) struct CompletedRead {
    pub(crate) locked: LockedPage,
    pub(crate) destination: Destination,
}

impl CompletedRead {
    /// True if one call can map both.
    pub(crate) fn precedes(&self, next: &CompletedRead) -> bool {
        self.locked.page().plus(1) == next.locked.page()
            && self.destination.precedes(next.destination)
    }
}

/// The purpose of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A fault, with its window; its message arrived at `start_ns`.
    Fault { start_ns: u64 },
    /// A swapoff, with its window: nobody waits for it.
    Swapoff,
    /// Asynchronous readahead, prefetch, or a run of a fault's window without the missing page.
    Readahead,
}

/// Packs the tag of a read: 5 bits of area, one of purpose, and the time of a fault in 58 bits,
/// enough for nine years of uptime; no fault was at 0.
pub(crate) fn tag(area: AreaNo, purpose: Purpose) -> u64 {
    let (ahead, start_ns) = match purpose {
        Purpose::Fault { start_ns } => (0, start_ns),
        Purpose::Swapoff => (0, 0),
        Purpose::Readahead => (1, 0),
    };
    start_ns << 6 | ahead << 5 | u64::from(area.0)
}

/// Unpacks the area and the purpose of a read.
pub(crate) fn untag(tag: u64) -> (AreaNo, Purpose) {
    let purpose = match (tag >> 5 & 1, tag >> 6) {
        (0, 0) => Purpose::Swapoff,
        (0, start_ns) => Purpose::Fault { start_ns },
        _ => Purpose::Readahead,
    };
    (AreaNo((tag & 31) as u8), purpose)
}
