//! The streams of an engine, in stripes by address.
//!
//! Owns: the locks of streams: one for all pages of a 64 MiB stripe, as many as there are CPUs.
//! Invariants: a stream is kept in the stripe of its last fault; one that leaves it starts
//! over with a window of one page, which costs six faults every 64 MiB.
//! Not here: what a stream is ([`super::streams`]).
//! Rejected: streams per worker, without a lock: faults of one thread are served by several. One
//! lock for all took 40 % of CPU time with 64 CPUs (`overspill-lab sim sweep`).

use super::streams::Streams;
use overspill_base::PageNo;
use overspill_base::sync::{LockClass, Mutex, MutexGuard};

/// Pages in a stripe, as a power of two.
const STRIPE_SHIFT: u32 = 14;

/// All streams of an engine.
#[derive(Debug)]
pub(crate) struct StreamLocks(Box<[Mutex<Streams>]>);

impl StreamLocks {
    pub(crate) fn new(cpus: usize) -> Self {
        let streams = || Mutex::new(LockClass::Readahead, Streams::default());
        Self(std::iter::repeat_with(streams).take(cpus).collect())
    }

    /// Locks the streams around `page`.
    pub(crate) fn around(&self, page: PageNo) -> MutexGuard<'_, Streams> {
        self.0[(page.index() >> STRIPE_SHIFT) % self.0.len()].lock()
    }
}
