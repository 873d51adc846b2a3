//! Fault injection: a decorator that fails requests as planned.
//!
//! Owns: which request fails, and how.
//! Invariants: requests are numbered from 0 in the order of their submission, over all queues of
//! the device; the fate of a request depends only on its number, its slots, the plan and its seed.
//! A failed write leaves the slots as they were; a failed read leaves the pages as they were. A
//! failure is as asynchronous as a success: the request goes to the device without the pages that
//! fail.
//! Not here: crashes of the whole program.
//! Rejected: stalls that hold back completions. A device that completes within `submit`, like the
//! memory device that tests use, stalls there, and a slow submission tests the rule that no request
//! is submitted under a lock.

use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{
    Completion, DeviceInfo, FreeNotify, IoOp, IoQueue, IoRequest, PageFailure, SwapDevice,
};
use overspill_base::Slot;
use overspill_base::shared::PageBuf;
use overspill_base::sync::{LockClass, Mutex};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use twox_hash::XxHash3_64;

/// The faults to inject; by default none. Numbers count requests, from 0: reads and writes
/// separately, unless stated otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Seed of the randomness in rates and garbage.
    pub seed: u64,
    /// The read that fails.
    pub fail_read: Option<u64>,
    /// The read that succeeds and returns garbage.
    pub garble_read: Option<u64>,
    /// The read that ends half way: the second half of its pages, or its only one, fails.
    pub short_read: Option<u64>,
    /// The slot that cannot be read. As on a disk, the rest of the request fails with it.
    pub unreadable: Option<Slot>,
    /// The write that fails.
    pub fail_write: Option<u64>,
    /// The write that ends half way, like a short read.
    pub short_write: Option<u64>,
    /// The first write that fails; all later ones fail too.
    pub fail_writes_from: Option<u64>,
    /// How many of a thousand reads fail.
    pub read_failures_per_mille: u64,
    /// How many of a thousand writes fail.
    pub write_failures_per_mille: u64,
    /// The request, reads and writes together, whose submission takes [`stall_ns`](Self::stall_ns).
    pub stall: Option<u64>,
    /// How long a stall lasts.
    pub stall_ns: u64,
    /// The first request, reads and writes together, that finds the device gone. From then on
    /// everything fails: transfers, growing, discarding, opening a queue.
    pub vanish_from: Option<u64>,
}

/// The faults of one device, which a test may change during the run.
#[derive(Debug)]
pub struct FaultPlan(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    faults: Faults,
    reads: u64,
    writes: u64,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Fail(Errno),
    Short,
    Garble { seed: u64 },
}

impl Fate {
    /// How many of `pages` pages reach the device.
    fn travelling(self, pages: usize) -> usize {
        match self {
            Fate::Fail(_) => 0,
            Fate::Short => pages / 2,
            Fate::Pass | Fate::Garble { .. } => pages,
        }
    }
}

impl FaultPlan {
    /// Makes a plan that starts with `faults`.
    pub fn new(faults: Faults) -> Self {
        Self(Mutex::new(LockClass::Control, Progress { faults, reads: 0, writes: 0 }))
    }

    /// Continues with `faults`, and numbers requests from 0 again.
    pub fn set(&self, faults: Faults) {
        *self.0.lock() = Progress { faults, reads: 0, writes: 0 };
    }

    /// The fate of the next request, and the duration of its submission.
    fn next(&self, request: &IoRequest) -> (Fate, Duration) {
        self.0.lock().next(request)
    }

    /// # Errors
    /// ENODEV once the device is gone.
    fn still_there(&self) -> Result<(), Errno> {
        if self.0.lock().has_vanished() { Err(Errno::NODEV) } else { Ok(()) }
    }
}

impl Progress {
    fn next(&mut self, request: &IoRequest) -> (Fate, Duration) {
        let gone = self.has_vanished();
        let stalls = self.faults.stall == Some(self.reads + self.writes);
        let count = match request.op {
            IoOp::Read => &mut self.reads,
            IoOp::Write => &mut self.writes,
        };
        let number = *count;
        *count += 1;
        let fate = if gone { Fate::Fail(Errno::NODEV) } else { self.faults.fate(request, number) };
        (fate, Duration::from_nanos(if stalls { self.faults.stall_ns } else { 0 }))
    }

    fn has_vanished(&self) -> bool {
        self.faults.vanish_from.is_some_and(|first| self.reads + self.writes >= first)
    }
}

impl Faults {
    fn fate(&self, request: &IoRequest, number: u64) -> Fate {
        let random = XxHash3_64::oneshot_with_seed(
            self.seed ^ (request.op as u64) << 63,
            &number.to_le_bytes(),
        );
        let is = |chosen: Option<u64>| chosen == Some(number);
        let (fails, short) = match request.op {
            IoOp::Read => {
                let rate = random % 1000 < self.read_failures_per_mille;
                (is(self.fail_read) || self.cannot_read(request) || rate, self.short_read)
            }
            IoOp::Write => {
                let rate = random % 1000 < self.write_failures_per_mille;
                let broken = self.fail_writes_from.is_some_and(|first| number >= first);
                (is(self.fail_write) || broken || rate, self.short_write)
            }
        };
        match request.op {
            _ if fails => Fate::Fail(Errno::IO),
            _ if is(short) => Fate::Short,
            IoOp::Read if is(self.garble_read) => Fate::Garble { seed: random },
            _ => Fate::Pass,
        }
    }

    fn cannot_read(&self, request: &IoRequest) -> bool {
        let slots = request.slot.index()..request.slot.index() + request.pages.len();
        self.unreadable.is_some_and(|slot| slots.contains(&slot.index()))
    }
}

/// A device that fails as planned.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn SwapDevice>,
    plan: Arc<FaultPlan>,
}

impl Faulty {
    /// Makes a device over `inner` that fails as `plan` says.
    pub fn new(inner: Arc<dyn SwapDevice>, plan: Arc<FaultPlan>) -> Self {
        Self { inner, plan }
    }
}

impl SwapDevice for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let name = || self.info().name.clone();
        let gone = |errno| DeviceError::Open { name: name(), action: "reserve space in", errno };
        self.plan.still_there().map_err(gone)?;
        self.inner.grow(slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let name = self.info().name.clone();
        let gone = |errno| DeviceError::Queue { name: name.clone(), errno };
        self.plan.still_there().map_err(gone)?;
        let inner = self.inner.open_queue(depth)?;
        let (plan, flights) = (self.plan.clone(), InFlight::new(depth));
        Ok(Box::new(FaultyQueue { inner, plan, name, flights }))
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        let name = || self.info().name.clone();
        let gone = |errno| DeviceError::Discard { name: name(), first, errno };
        self.plan.still_there().map_err(gone)?;
        self.inner.discard(first, slots)
    }

    fn free_notify(&self) -> Option<Arc<dyn FreeNotify>> {
        self.inner.free_notify()
    }

    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        self.inner.holds(slot, page)
    }
}

struct FaultyQueue {
    inner: Box<dyn IoQueue>,
    plan: Arc<FaultPlan>,
    name: String,
    flights: InFlight<Flight>,
}

/// A request in flight: the submitter's tag, its fate, and its last pages, those that are to fail.
struct Flight {
    tag: u64,
    fate: Fate,
    held: Vec<PageBuf>,
}

impl FaultyQueue {
    fn finish(&mut self, mut completion: Completion) -> Completion {
        let Flight { tag, fate, mut held } = self.flights.take(completion.request.tag);
        let Completion { request, failures } = &mut completion;
        request.tag = tag;
        let (name, op, slot) = (self.name.clone(), request.op, request.slot);
        let error = match fate {
            Fate::Pass => return completion,
            Fate::Garble { seed } => {
                request.pages.iter_mut().for_each(|page| garble(page, seed));
                return completion;
            }
            Fate::Fail(errno) => DeviceError::Io { name, op, slot, errno },
            Fate::Short => DeviceError::Short { name, op, slot },
        };
        let moved = request.pages.len();
        request.pages.append(&mut held);
        let failed = moved..request.pages.len();
        failures.extend(failed.map(|index| PageFailure { index, error: error.clone() }));
        completion
    }
}

/// Changes every byte, so that no part of the page is correct by chance.
fn garble(page: &mut [u8], seed: u64) {
    for (index, byte) in page.iter_mut().enumerate() {
        *byte ^= (XxHash3_64::oneshot_with_seed(seed, &index.to_le_bytes()) as u8).max(1);
    }
}

impl IoQueue for FaultyQueue {
    fn submit(&mut self, mut request: IoRequest) {
        let (fate, stall) = self.plan.next(&request);
        if !stall.is_zero() {
            std::thread::sleep(stall);
        }
        let held = request.pages.split_off(fate.travelling(request.pages.len()));
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
    use std::time::Instant;

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
        assert_eq!(failing_writes(Faults::default(), 6), [0; 0]);
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

    #[test]
    fn a_short_transfer_moves_its_first_half() {
        let faults = Faults { short_read: Some(0), short_write: Some(1), ..Faults::default() };
        let (_, device) = device(faults);
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(4);
        write(&mut *queue, Slot(8), pages.filled(0..4, 1));
        let written = write(&mut *queue, Slot(8), pages.filled(0..4, 2));
        let failed = |done: &Completion| done.failures.iter().map(|f| f.index).collect::<Vec<_>>();
        assert_eq!((failed(&written), written.request.pages.len()), (vec![2, 3], 4));
        assert!(matches!(written.failures[0].error, DeviceError::Short { .. }));

        let first = |done: &Completion| done.request.pages.iter().map(|p| p[0]).collect::<Vec<_>>();
        let back = read(&mut *queue, Slot(8), pages.filled(0..4, 9));
        assert_eq!((failed(&back), first(&back)), (vec![2, 3], vec![2, 2, 9, 9]));
        let back = read(&mut *queue, Slot(8), pages.filled(0..4, 9));
        assert_eq!((failed(&back), first(&back)), (vec![], vec![2, 2, 1, 1]));
    }

    #[test]
    fn a_short_transfer_of_one_page_moves_none() {
        let faults = Faults { short_write: Some(2), ..Faults::default() };
        assert_eq!(failing_writes(faults, 4), [2]);
    }

    #[test]
    fn an_unreadable_slot_fails_every_request_that_touches_it() {
        let (_, device) = device(Faults { unreadable: Some(Slot(9)), ..Faults::default() });
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(4);
        assert!(write(&mut *queue, Slot(8), pages.filled(0..4, 1)).failures.is_empty());
        for (slot, count, failures) in [(8, 4, 4), (8, 1, 0), (9, 1, 1), (10, 2, 0), (9, 1, 1)] {
            let done = read(&mut *queue, Slot(slot), pages.filled(0..count, 0));
            assert_eq!(done.failures.len(), failures, "{count} from {slot}");
        }
    }

    #[test]
    fn a_stall_delays_one_submission() {
        const STALL_NS: u64 = 100_000_000;
        let faults = Faults { stall: Some(1), stall_ns: STALL_NS, ..Faults::default() };
        let (_, device) = device(faults);
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(1);
        let stalled = [(); 2].map(|()| {
            let start = Instant::now();
            assert!(write(&mut *queue, Slot(1), pages.filled(0..1, 1)).failures.is_empty());
            start.elapsed() >= Duration::from_nanos(STALL_NS)
        });
        assert!(!stalled[0] && stalled[1], "{stalled:?}");
    }

    #[test]
    fn a_device_that_vanishes_does_nothing_any_more() {
        let (plan, device) = device(Faults { vanish_from: Some(2), ..Faults::default() });
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(1);
        assert!(write(&mut *queue, Slot(1), pages.filled(0..1, 1)).failures.is_empty());
        assert!(read(&mut *queue, Slot(1), pages.filled(0..1, 0)).failures.is_empty());
        let gone = |text: String| assert!(text.contains("No such device"), "{text}");
        for _ in 0..2 {
            let (read, write) = (
                read(&mut *queue, Slot(1), pages.filled(0..1, 0)).failures,
                write(&mut *queue, Slot(1), pages.filled(0..1, 2)).failures,
            );
            gone(read[0].error.to_string());
            gone(write[0].error.to_string());
        }
        gone(device.grow(1).unwrap_err().to_string());
        gone(device.discard(Slot(1), 1).unwrap_err().to_string());
        gone(device.open_queue(1).err().unwrap().to_string());
        plan.set(Faults::default());
        let back = read(&mut *queue, Slot(1), pages.filled(0..1, 0));
        assert!(is_filled(&back.request.pages[0], 1), "what was there before is there again");
    }
}
