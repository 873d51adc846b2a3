//! A decorator that detects slots that do not hold what was written to them.
//!
//! Owns: the checksum of a page and when it is computed, stored and compared.
//! Invariants: a slot's checksum is known from the completion of a write without error to the
//! submission of the next write or a discard, and at no other time: while a write is in flight the
//! slot may hold either page or neither, and after a failed one as well. A page that a read returns
//! without a failure is the page that was written last.
//! Not here: where checksums are stored ([`ChecksumStore`]).
//! Rejected: storing the checksum from submission on, because [`SwapDevice::holds`] would then
//! vouch for a write that may still fail; mixing in the slot number, because the store has a place
//! per slot, and a page from another slot does not match there anyway.

use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{
    Completion, DeviceInfo, FreeNotify, IoOp, IoQueue, IoRequest, MAX_REQUEST_PAGES, PageFailure,
    SwapDevice, USUAL_REQUESTS, has_failed,
};
use overspill_base::Slot;
use overspill_base::shared::Table;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use twox_hash::XxHash3_64;

/// A keyed checksum of a page in [`Checksum::BITS`] bits; the upper ones are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub u64);

impl Checksum {
    /// Bits of a checksum. The store may use the others of a word for itself.
    pub const BITS: u32 = 51;

    /// No checksum is known. No page has this checksum.
    pub const NONE: Self = Self(0);

    /// Computes the checksum of `page` with the key `seed`: who does not know that knows no two
    /// pages that match. It is no MAC; two pages match by chance once in 2^51.
    pub fn of(page: &[u8], seed: u64) -> Self {
        let low = XxHash3_64::oneshot_with_seed(seed, page) & ((1 << Self::BITS) - 1);
        Self(low.max(1))
    }
}

/// Stores the checksums of a device's slots.
///
/// A slot's users are ordered by their own locks, so a store needs no ordering.
pub trait ChecksumStore: Send + Sync + Debug {
    /// Returns the checksum of `slot`; [`Checksum::NONE`] at first.
    fn get(&self, slot: Slot) -> Checksum;

    /// Stores `checksum` for `slot`.
    fn set(&self, slot: Slot, checksum: Checksum);
}

/// A store in a table with a word per slot.
#[derive(Clone, Debug)]
pub struct TableStore(Table<AtomicU64>);

impl TableStore {
    /// Stores checksums in `table`, which starts as zeros and has an item per slot of the device.
    pub fn new(table: Table<AtomicU64>) -> Self {
        Self(table)
    }
}

impl ChecksumStore for TableStore {
    fn get(&self, slot: Slot) -> Checksum {
        Checksum(self.0[slot.index()].load(Relaxed))
    }

    fn set(&self, slot: Slot, checksum: Checksum) {
        self.0[slot.index()].store(checksum.0, Relaxed);
    }
}

/// A device whose reads are verified.
#[derive(Debug)]
pub struct Checksummed {
    inner: Arc<dyn SwapDevice>,
    info: DeviceInfo,
    keeper: Keeper,
}

impl Checksummed {
    /// Verifies what `inner` returns. `seed` is random and belongs to `store`: all that share the
    /// store use the same.
    pub fn new(inner: Arc<dyn SwapDevice>, store: Arc<dyn ChecksumStore>, seed: u64) -> Self {
        let info = DeviceInfo { verifies: true, ..inner.info().clone() };
        Self { inner, info, keeper: Keeper { store, seed } }
    }
}

impl SwapDevice for Checksummed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        self.inner.grow(slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let mut spare = Vec::with_capacity(depth as usize);
        let list = || Vec::with_capacity(MAX_REQUEST_PAGES);
        spare.extend(std::iter::repeat_with(list).take(depth.min(USUAL_REQUESTS) as usize));
        Ok(Box::new(VerifyingQueue {
            inner: self.inner.open_queue(depth)?,
            keeper: self.keeper.clone(),
            name: self.info.name.clone(),
            flights: InFlight::new(depth),
            spare,
        }))
    }

    /// Forgets the slots' checksums first: from here on their content is unknown.
    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        self.keeper.forget(first, slots as usize);
        self.inner.discard(first, slots)
    }

    fn free_notify(&self) -> Option<Arc<dyn FreeNotify>> {
        self.inner.free_notify()
    }

    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        self.keeper.knows(slot, page)
    }
}

#[derive(Clone, Debug)]
struct Keeper {
    store: Arc<dyn ChecksumStore>,
    seed: u64,
}

impl Keeper {
    fn sum(&self, page: &[u8]) -> Checksum {
        Checksum::of(page, self.seed)
    }

    fn knows(&self, slot: Slot, page: &[u8]) -> bool {
        match self.store.get(slot) {
            Checksum::NONE => false,
            known => known == self.sum(page),
        }
    }

    fn forget(&self, first: Slot, slots: usize) {
        for slot in (0..slots).map(|n| first.plus(n)) {
            self.store.set(slot, Checksum::NONE);
        }
    }
}

struct VerifyingQueue {
    inner: Box<dyn IoQueue>,
    keeper: Keeper,
    name: String,
    flights: InFlight<Flight>,
    /// Lists for the next requests, so that a few at a time allocate nothing.
    spare: Vec<Vec<Checksum>>,
}

/// A request in flight: the submitter's tag, and the checksums of what is being written.
struct Flight {
    tag: u64,
    slot: Slot,
    sums: Vec<Checksum>,
}

impl Flight {
    fn writes_into(&self, slot: Slot, pages: usize) -> bool {
        let (start, other) = (self.slot.index(), slot.index());
        start < other + pages && other < start + self.sums.len()
    }
}

impl VerifyingQueue {
    /// Computes the pages' checksums; those of the slots are unknown from now on.
    fn begin_write(&mut self, request: &IoRequest) -> Vec<Checksum> {
        let (slot, pages) = (request.slot, request.pages.len());
        debug_assert!(
            !self.flights.iter().any(|flight| flight.writes_into(slot, pages)),
            "slot {slot} is written while a write of it is under way"
        );
        self.keeper.forget(slot, pages);
        let mut sums = self.spare.pop().unwrap_or_default();
        sums.extend(request.pages.iter().map(|page| self.keeper.sum(page)));
        sums
    }

    fn finish(&mut self, completion: &mut Completion) {
        let Flight { tag, mut sums, .. } = self.flights.take(completion.request.tag);
        completion.request.tag = tag;
        match completion.request.op {
            IoOp::Read => self.verify(completion),
            IoOp::Write => {
                self.record(completion, &sums);
                sums.clear();
                if self.spare.len() < self.spare.capacity() {
                    self.spare.push(sums);
                }
            }
        }
    }

    fn verify(&self, completion: &mut Completion) {
        let Completion { request, failures } = completion;
        for (index, page) in request.pages.iter().enumerate() {
            let slot = request.slot.plus(index);
            if !has_failed(failures, index) && !self.keeper.knows(slot, page) {
                let error = DeviceError::Checksum { name: self.name.clone(), slot };
                failures.push(PageFailure { index, error });
            }
        }
    }

    fn record(&self, completion: &Completion, sums: &[Checksum]) {
        for (index, &sum) in sums.iter().enumerate() {
            if !has_failed(&completion.failures, index) {
                self.keeper.store.set(completion.request.slot.plus(index), sum);
            }
        }
    }
}

impl IoQueue for VerifyingQueue {
    fn submit(&mut self, mut request: IoRequest) {
        let sums = match request.op {
            IoOp::Read => Vec::new(),
            IoOp::Write => self.begin_write(&request),
        };
        let flight = Flight { tag: request.tag, slot: request.slot, sums };
        request.tag = self.flights.put(flight);
        self.inner.submit(request);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let first = done.len();
        self.inner.reap(done);
        for completion in &mut done[first..] {
            self.finish(completion);
        }
    }

    fn wait(&mut self) {
        self.inner.wait();
    }

    fn set_window(&mut self, pages: usize) {
        self.inner.set_window(pages);
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
    use crate::faulty::{FaultPlan, Faults, Faulty};
    use crate::testing::{Pages, finds_garbage, ram, read, write};

    const SEED: u64 = 42;

    fn store(slots: usize) -> Arc<TableStore> {
        Arc::new(TableStore::new(Table::on_heap(slots, || AtomicU64::new(0))))
    }

    fn over(inner: Arc<dyn SwapDevice>) -> (Arc<TableStore>, Checksummed) {
        let store = store(inner.info().slots_max as usize);
        (store.clone(), Checksummed::new(inner, store, SEED))
    }

    fn bad_slots(completion: &Completion) -> Vec<u32> {
        let slot_of = |failure: &PageFailure| match failure.error {
            DeviceError::Checksum { slot, .. } => {
                assert_eq!(slot, completion.request.slot.plus(failure.index));
                slot.0
            }
            ref other => panic!("{other}"),
        };
        completion.failures.iter().map(slot_of).collect()
    }

    #[test]
    fn checksums_have_56_bits_and_are_never_none() {
        let page = [7; 4096];
        let sums: Vec<_> = (0..1000).map(|seed| Checksum::of(&page, seed)).collect();
        assert!(sums.iter().all(|sum| *sum != Checksum::NONE && sum.0 >> Checksum::BITS == 0));
        assert_ne!(sums[0], sums[1], "the seed matters");
        assert_ne!(sums[0], Checksum::of(&[8; 4096], 0), "the page matters");
    }

    #[test]
    fn what_was_written_is_read_and_held() {
        let (_, device) = over(ram(16));
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(3);
        let mut buffers = pages.filled(0..3, 9);
        buffers[1].fill(8);
        let written = write(&mut *queue, Slot(5), buffers);
        assert!(written.failures.is_empty());
        assert_eq!(written.request.tag, 5, "the submitter's tag comes back");
        assert!(device.holds(Slot(6), &written.request.pages[1]));
        assert!(!device.holds(Slot(7), &written.request.pages[1]), "another slot");
        assert!(!device.holds(Slot(9), &written.request.pages[1]), "a slot never written");
        assert!(read(&mut *queue, Slot(5), written.request.pages).failures.is_empty());
    }

    #[test]
    fn what_was_never_written_cannot_be_read() {
        let (_, device) = over(ram(16));
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(2);
        assert_eq!(bad_slots(&read(&mut *queue, Slot(3), pages.filled(0..2, 0))), [3, 4]);
    }

    #[test]
    fn a_slot_changed_behind_our_back_is_found_and_the_others_are_not_blamed() {
        let inner = ram(16);
        let (_, device) = over(inner.clone());
        let (mut plain, mut queue) = (inner.open_queue(4).unwrap(), device.open_queue(4).unwrap());
        let pages = Pages::new(4);
        let written = write(&mut *queue, Slot(0), pages.filled(0..3, 1));
        write(&mut *plain, Slot(1), pages.filled(3..4, 2));
        assert_eq!(bad_slots(&read(&mut *queue, Slot(0), written.request.pages)), [1]);
    }

    #[test]
    fn garbage_from_the_device_is_found() {
        finds_garbage(|inner| Arc::new(over(inner).1), bad_slots);
    }

    #[test]
    fn a_failed_write_leaves_nothing_known_of_its_slots() {
        let plan = Arc::new(FaultPlan::new(Faults { fail_write: Some(1), ..Faults::default() }));
        let (store, device) = over(Arc::new(Faulty::new(ram(16), plan)));
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(1);
        let first = write(&mut *queue, Slot(2), pages.filled(0..1, 1)).request.pages;
        assert!(device.holds(Slot(2), &first[0]));
        let second = write(&mut *queue, Slot(2), first);
        assert_eq!(second.failures.len(), 1);
        assert_eq!(store.get(Slot(2)), Checksum::NONE);
        assert_eq!(bad_slots(&read(&mut *queue, Slot(2), second.request.pages)), [2]);
    }

    #[test]
    fn a_discarded_slot_holds_nothing_known() {
        let (_, device) = over(ram(16));
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(3);
        let written = write(&mut *queue, Slot(4), pages.filled(0..3, 1)).request.pages;
        device.discard(Slot(5), 1).unwrap();
        assert!(!device.holds(Slot(5), &written[1]) && device.holds(Slot(6), &written[2]));
        assert_eq!(bad_slots(&read(&mut *queue, Slot(4), written)), [5]);
    }

    #[test]
    fn nothing_is_vouched_for_while_a_write_is_under_way() {
        let (store, device) = over(ram(16));
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(1);
        let buffers = write(&mut *queue, Slot(2), pages.filled(0..1, 1)).request.pages;
        queue.submit(IoRequest { op: IoOp::Write, slot: Slot(2), pages: buffers, tag: 0 });
        assert_eq!(store.get(Slot(2)), Checksum::NONE, "submitted and not reaped");
        queue.reap(&mut Vec::new());
        assert_ne!(store.get(Slot(2)), Checksum::NONE);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a write of it is under way")]
    fn writing_a_slot_twice_at_once_is_a_bug() {
        let (_, device) = over(ram(16));
        let mut queue = device.open_queue(4).unwrap();
        let pages = Pages::new(3);
        for (slot, places) in [(2, 0..2), (3, 2..3)] {
            let pages = pages.filled(places, 1);
            queue.submit(IoRequest { op: IoOp::Write, slot: Slot(slot), pages, tag: 0 });
        }
    }
}
