//! Fault injection: a decorator that fails requests by plan.
//!
//! Owns: which request fails, and how.
//! Invariants: requests are numbered from 0 in the order of their submission, reads and writes
//! apart, over all queues of the device; what becomes of a request follows from its number, the
//! plan and its seed alone. A failed write leaves the slots as they were; a failed read leaves the
//! pages as they were. A failure arrives as asynchronously as a success: its request travels to
//! the device without pages.
//! Not here: delays, and crashes of the whole program.

use crate::aside::Aside;
use crate::error::DeviceError;
use crate::{Completion, DeviceInfo, IoOp, IoQueue, IoRequest, SwapDevice, failed};
use overspill_base::Slot;
use overspill_base::shared::PageBuf;
use overspill_base::sync::{LockClass, Mutex};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What is to go wrong; by default nothing. Numbers count requests, from 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Where the randomness of rates and garbage comes from.
    pub seed: u64,
    /// The read that fails.
    pub fail_read: Option<u64>,
    /// The read that succeeds and brings garbage.
    pub garble_read: Option<u64>,
    /// The write that fails.
    pub fail_write: Option<u64>,
    /// The first of the writes that fail from then on.
    pub fail_writes_from: Option<u64>,
    /// How many of a thousand reads fail.
    pub read_failures_per_mille: u64,
    /// How many of a thousand writes fail.
    pub write_failures_per_mille: u64,
}

/// The faults of one device, which a test may change as it goes.
#[derive(Debug)]
pub struct FaultPlan(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    faults: Faults,
    reads: u64,
    writes: u64,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Fail,
    Garble { seed: u64 },
}

impl FaultPlan {
    /// A plan that begins with `faults`.
    pub fn new(faults: Faults) -> Self {
        Self(Mutex::new(LockClass::Control, Progress { faults, reads: 0, writes: 0 }))
    }

    /// Goes on with `faults`, and numbers requests from 0 again.
    pub fn set(&self, faults: Faults) {
        *self.0.lock() = Progress { faults, reads: 0, writes: 0 };
    }

    fn next(&self, op: IoOp) -> Fate {
        let mut progress = self.0.lock();
        let count = match op {
            IoOp::Read => &mut progress.reads,
            IoOp::Write => &mut progress.writes,
        };
        let number = *count;
        *count += 1;
        progress.faults.fate(op, number)
    }
}

impl Faults {
    fn fate(&self, op: IoOp, number: u64) -> Fate {
        let random = xxh3_64_with_seed(&number.to_le_bytes(), self.seed ^ (op as u64) << 63);
        let is = |chosen: Option<u64>| chosen == Some(number);
        let fails = match op {
            IoOp::Read => is(self.fail_read) || random % 1000 < self.read_failures_per_mille,
            IoOp::Write => {
                is(self.fail_write)
                    || self.fail_writes_from.is_some_and(|first| number >= first)
                    || random % 1000 < self.write_failures_per_mille
            }
        };
        match op {
            _ if fails => Fate::Fail,
            IoOp::Read if is(self.garble_read) => Fate::Garble { seed: random },
            _ => Fate::Pass,
        }
    }
}

/// A device that fails by plan.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn SwapDevice>,
    plan: Arc<FaultPlan>,
}

impl Faulty {
    /// Lets `plan` decide what `inner` gets to do.
    pub fn new(inner: Arc<dyn SwapDevice>, plan: Arc<FaultPlan>) -> Self {
        Self { inner, plan }
    }
}

impl SwapDevice for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        self.inner.grow(slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(FaultyQueue {
            inner: self.inner.open_queue(depth)?,
            plan: self.plan.clone(),
            name: self.info().name.clone(),
            flights: Aside::default(),
        }))
    }

    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        self.inner.holds(slot, page)
    }
}

struct FaultyQueue {
    inner: Box<dyn IoQueue>,
    plan: Arc<FaultPlan>,
    name: String,
    flights: Aside<Flight>,
}

/// A request under way: the submitter's tag, its fate, and the pages of one that is to fail.
struct Flight {
    tag: u64,
    fate: Fate,
    held: Vec<PageBuf>,
}

impl FaultyQueue {
    fn finish(&mut self, mut completion: Completion) -> Completion {
        let Flight { tag, fate, held } = self.flights.take(completion.request.tag);
        completion.request.tag = tag;
        match fate {
            Fate::Pass => completion,
            Fate::Fail => {
                let request = IoRequest { pages: held, ..completion.request };
                let (name, op, slot) = (self.name.clone(), request.op, request.slot);
                failed(request, &DeviceError::Io { name, op, slot, errno: Errno::IO })
            }
            Fate::Garble { seed } => {
                completion.request.pages.iter_mut().for_each(|page| garble(page, seed));
                completion
            }
        }
    }
}

/// Changes every byte, so that no part of the page is left by chance.
fn garble(page: &mut [u8], seed: u64) {
    for (index, byte) in page.iter_mut().enumerate() {
        *byte ^= (xxh3_64_with_seed(&index.to_le_bytes(), seed) as u8).max(1);
    }
}

impl IoQueue for FaultyQueue {
    fn submit(&mut self, mut request: IoRequest) {
        let fate = self.plan.next(request.op);
        let held = match fate {
            Fate::Fail => std::mem::take(&mut request.pages),
            _ => Vec::new(),
        };
        request.tag = self.flights.put(Flight { tag: request.tag, fate, held });
        self.inner.submit(request);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let mut arrived = Vec::new();
        self.inner.reap(&mut arrived);
        done.extend(arrived.into_iter().map(|completion| self.finish(completion)));
    }

    fn wait(&mut self) {
        self.inner.wait();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Pages, is_filled, ram, read, write};

    fn device(faults: Faults) -> (Arc<FaultPlan>, Faulty) {
        let plan = Arc::new(FaultPlan::new(faults));
        (plan.clone(), Faulty::new(ram(64), plan))
    }

    /// Which of `count` one-page writes fail.
    fn failing_writes(faults: Faults, count: u32) -> Vec<u32> {
        let (_, device) = device(faults);
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(1);
        (0..count)
            .filter(|&n| {
                let done = write(&mut *queue, Slot(n), pages.filled(0..1, n as u8));
                assert_eq!(done.request.pages.len(), 1, "the buffers come back");
                !done.failures.is_empty()
            })
            .collect()
    }

    #[test]
    fn the_chosen_writes_fail() {
        let one = Faults { fail_write: Some(3), ..Faults::default() };
        assert_eq!(failing_writes(one, 6), [3]);
        let from = Faults { fail_writes_from: Some(4), ..Faults::default() };
        assert_eq!(failing_writes(from, 6), [4, 5]);
        assert_eq!(failing_writes(Faults::default(), 6), []);
    }

    #[test]
    fn rates_follow_the_seed() {
        let half = |seed| Faults { seed, write_failures_per_mille: 500, ..Faults::default() };
        let failures = failing_writes(half(1), 60);
        assert_eq!(failures, failing_writes(half(1), 60));
        assert_ne!(failures, failing_writes(half(2), 60));
        assert!((15..45).contains(&failures.len()), "{} of 60", failures.len());
    }

    #[test]
    fn a_failed_write_changes_nothing_and_names_the_device() {
        let (plan, device) = device(Faults::default());
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(3);
        write(&mut *queue, Slot(8), pages.filled(0..2, 1));
        plan.set(Faults { fail_write: Some(0), ..Faults::default() });
        let done = write(&mut *queue, Slot(8), pages.filled(0..2, 2));
        assert_eq!(done.request.tag, 8);
        assert!(done.request.pages.iter().all(|page| is_filled(page, 2)), "pages untouched");
        let failed: Vec<_> = done.failures.iter().map(|failure| failure.index).collect();
        assert_eq!(failed, [0, 1]);
        assert!(done.failures[0].error.to_string().contains("write at slot 8 of ram failed"));
        let back = read(&mut *queue, Slot(8), pages.filled(2..3, 9));
        assert!(is_filled(&back.request.pages[0], 1));
    }

    #[test]
    fn reads_fail_or_bring_garbage() {
        let faults = Faults { fail_read: Some(1), garble_read: Some(2), ..Faults::default() };
        let (_, device) = device(faults);
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(1);
        write(&mut *queue, Slot(0), pages.filled(0..1, 5));
        let mut reads = (0..4).map(|_| {
            let done = read(&mut *queue, Slot(0), pages.filled(0..1, 9));
            (done.failures.len(), done.request.pages[0][0])
        });
        assert_eq!(reads.next(), Some((0, 5)));
        assert_eq!(reads.next(), Some((1, 9)), "a failed read leaves the page alone");
        assert!(reads.next().is_some_and(|(failures, byte)| failures == 0 && byte != 5));
        assert_eq!(reads.next(), Some((0, 5)));
    }
}
