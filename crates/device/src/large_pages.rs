//! A decorator whose slots hold several pages each.
//!
//! Owns: the arithmetic between large slots and the plain ones of the inner device, and splitting
//! requests that are too large for one. A large page that fails in part fails as a whole.
//! Invariants: a request is complete when all of its parts are. A large slot that contains a
//! reserved one is reserved. A read allocates nothing, so it can be made in a signal handler: lists
//! of plain pages are kept for the next request.
//! Not here: checksums and seals, which are kept per plain slot, in a layer below this one.
//! Rejected: pages of any size in every layer. Device headers, checksums, alignment and the checks
//! of requests all use 4 KiB, and only pools and regions need more.

use crate::SwapDevice;
use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{
    Completion, DeviceInfo, FreeNotify, IoQueue, IoRequest, MAX_REQUEST_PAGES, PageFailure,
};
use overspill_base::shared::PageBuf;
use overspill_base::{Bytes, PAGE_SIZE, Slot};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Number of lists of plain pages kept for the next requests: enough for the largest page.
const SPARE_LISTS: usize = 2;

/// A device with pages of a multiple of 4 KiB.
#[derive(Debug)]
pub struct LargePages {
    inner: Arc<dyn SwapDevice>,
    info: DeviceInfo,
    /// Plain pages in a large one.
    pages: usize,
}

impl LargePages {
    /// Divides `inner` into slots of `pages` of its slots.
    ///
    /// # Errors
    /// [`DeviceError::TooSmall`] if the device has no room for one.
    ///
    /// # Safety
    /// Every buffer passed to a queue of this device is the first of `pages` adjacent pages, all of
    /// which fulfil the contract of [`PageBuf::from_raw`]. Otherwise transfers run past it.
    pub unsafe fn new(inner: Arc<dyn SwapDevice>, pages: usize) -> Result<Self, DeviceError> {
        let plain = inner.info().clone();
        let mut reserved: Vec<Slot> =
            plain.reserved.iter().map(|slot| Slot(slot.0 / pages as u32)).collect();
        reserved.dedup();
        let info = DeviceInfo {
            slots_max: plain.slots_max / pages as u32,
            reserved,
            write_pages_usual: plain.write_pages_usual.map(|plain| (plain / pages).max(1)),
            ..plain
        };
        if info.slots_max as usize <= info.reserved.len() {
            let size = Bytes::of_pages(plain.slots_max.into());
            let least = Bytes::of_pages((info.reserved.len() as u64 + 1) * pages as u64);
            return Err(DeviceError::TooSmall { name: info.name, size, least });
        }
        Ok(Self { inner, info, pages })
    }

    fn plain(&self, slots: u32) -> u32 {
        slots * self.pages as u32
    }
}

impl SwapDevice for LargePages {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let grown = self.inner.grow(self.plain(slots))?;
        Ok((grown / self.pages as u32).min(self.info.slots_max))
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        // A request of one large page can take several of the inner device.
        let parts = depth * self.pages.div_ceil(MAX_REQUEST_PAGES) as u32;
        let list = || Vec::with_capacity(MAX_REQUEST_PAGES);
        Ok(Box::new(LargeQueue {
            inner: self.inner.open_queue(parts)?,
            pages: self.pages,
            flights: InFlight::new(depth),
            parts: InFlight::new(parts),
            reaped: Vec::with_capacity(parts as usize),
            spare: std::iter::repeat_with(list).take(SPARE_LISTS).collect(),
        }))
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        self.inner.discard(Slot(self.plain(first.0)), self.plain(slots))
    }

    fn free_notify(&self) -> Option<Arc<dyn FreeNotify>> {
        let (inner, pages) = (self.inner.free_notify()?, self.pages);
        Some(Arc::new(LargeNotify { inner, pages }))
    }

    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        let first = Slot(self.plain(slot.0));
        let mut plain = page.chunks_exact(PAGE_SIZE).enumerate();
        plain.all(|(n, page)| self.inner.holds(first.plus(n), page))
    }
}

/// Notifies of every plain slot in a large one.
#[derive(Debug)]
struct LargeNotify {
    inner: Arc<dyn FreeNotify>,
    pages: usize,
}

impl FreeNotify for LargeNotify {
    fn slot_free(&self, slot: Slot) {
        let first = Slot(slot.0 * self.pages as u32);
        (0..self.pages).for_each(|n| self.inner.slot_free(first.plus(n)));
    }
}

struct LargeQueue {
    inner: Box<dyn IoQueue>,
    pages: usize,
    flights: InFlight<Flight>,
    parts: InFlight<Part>,
    reaped: Vec<Completion>,
    /// Lists of completed parts.
    spare: Vec<Vec<PageBuf>>,
}

/// A request in flight.
struct Flight {
    request: IoRequest,
    parts: usize,
    failures: Vec<PageFailure>,
}

/// A part of it that the inner device has.
struct Part {
    flight: u64,
    /// Its first plain page, counted from the request's start.
    first: usize,
}

impl LargeQueue {
    /// The plain pages of a part.
    fn plain_pages(&mut self, flight: u64, first: usize) -> Vec<PageBuf> {
        let mut plain = self.spare.pop().unwrap_or_default();
        let large = &self.flights.get_mut(flight).request.pages;
        let end = (large.len() * self.pages).min(first + MAX_REQUEST_PAGES);
        plain.extend((first..end).map(|n| {
            let start = large[n / self.pages].as_ptr();
            // SAFETY: inside the large page that begins at `start` (contract of `LargePages::new`),
            // whose handle stays in the flight until all parts have completed.
            unsafe { PageBuf::from_raw(start.add(n % self.pages * PAGE_SIZE)) }
        }));
        plain
    }

    fn keep(&mut self, mut plain: Vec<PageBuf>) {
        if self.spare.len() < SPARE_LISTS {
            plain.clear();
            self.spare.push(plain);
        }
    }

    /// Records the completion of a part; returns the request's, if it was the last.
    fn end_part(&mut self, part: Completion) -> Option<Completion> {
        let Part { flight: number, first } = self.parts.take(part.request.tag);
        let flight = self.flights.get_mut(number);
        for PageFailure { index, error } in part.failures {
            let index = (first + index) / self.pages;
            if flight.failures.iter().all(|failure| failure.index != index) {
                flight.failures.push(PageFailure { index, error });
            }
        }
        flight.parts -= 1;
        let ended = flight.parts == 0;
        self.keep(part.request.pages);
        if !ended {
            return None;
        }
        let Flight { request, failures, .. } = self.flights.take(number);
        Some(Completion { request, failures })
    }
}

impl IoQueue for LargeQueue {
    fn submit(&mut self, request: IoRequest) {
        let (op, start) = (request.op, Slot(request.slot.0 * self.pages as u32));
        let parts = (request.pages.len() * self.pages).div_ceil(MAX_REQUEST_PAGES).max(1);
        let flight = self.flights.put(Flight { request, parts, failures: Vec::new() });
        for first in (0..parts).map(|part| part * MAX_REQUEST_PAGES) {
            let pages = self.plain_pages(flight, first);
            let tag = self.parts.put(Part { flight, first });
            self.inner.submit(IoRequest { op, slot: start.plus(first), pages, tag });
        }
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.inner.reap(&mut reaped);
        done.extend(reaped.drain(..).filter_map(|part| self.end_part(part)));
        self.reaped = reaped;
    }

    fn wait(&mut self) {
        self.inner.wait();
    }

    fn set_window(&mut self, pages: usize) {
        self.inner.set_window(pages * self.pages);
    }

    fn in_flight(&self) -> usize {
        self.flights.iter().count()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::{FaultPlan, Faults, Faulty};
    use crate::file::{FileDevice, OpenOptions};
    use crate::testing::{Pages, drain, is_filled, ram, read};
    use crate::{Device, IoOp};

    /// So large that one page takes two inner requests.
    const LARGE: usize = 512;

    fn large(inner: Arc<dyn SwapDevice>) -> LargePages {
        // SAFETY: the tests' buffers are the first of LARGE pages that are not used otherwise.
        unsafe { LargePages::new(inner, LARGE) }.unwrap()
    }

    /// Fills large pages of `memory`, and returns their handles.
    fn filled(memory: &Pages, places: &[usize], byte: u8) -> Vec<PageBuf> {
        let first = |&place| {
            let rest = place * LARGE..(place + 1) * LARGE;
            memory.filled(rest, byte).swap_remove(0)
        };
        places.iter().map(first).collect()
    }

    fn run(queue: &mut dyn IoQueue, op: IoOp, slot: u32, pages: Vec<PageBuf>) -> Completion {
        queue.submit(IoRequest { op, slot: Slot(slot), pages, tag: 77 });
        assert_eq!(queue.in_flight(), 1);
        drain(queue, 1).pop().unwrap()
    }

    fn plain(memory: &Pages, place: usize) -> Vec<PageBuf> {
        memory.views(place * LARGE..(place + 1) * LARGE)
    }

    #[test]
    fn what_was_written_to_large_slots_is_read_from_them() {
        let device = large(ram(8 * LARGE as u64 + 3));
        assert_eq!(device.info().slots_max, 8);
        let memory = Pages::new(4 * LARGE);
        let mut queue = device.open_queue(8).unwrap();
        let pages = filled(&memory, &[2], 5).into_iter().chain(filled(&memory, &[0], 6)).collect();
        let written = run(&mut *queue, IoOp::Write, 6, pages);
        assert_eq!((written.request.tag, written.failures.len()), (77, 0));
        let read = run(&mut *queue, IoOp::Read, 6, filled(&memory, &[1, 3], 0));
        assert!(read.failures.is_empty() && queue.in_flight() == 0);
        for (place, byte) in [(1, 5), (3, 6)] {
            assert!(plain(&memory, place).iter().all(|page| is_filled(page, byte)), "{place}");
        }
    }

    #[test]
    fn a_page_that_fails_in_part_fails_once_and_alone() {
        // Of four inner requests, the second fails: the second half of the first page.
        let plan = Arc::new(FaultPlan::new(Faults { fail_write: Some(1), ..Faults::default() }));
        let device = large(Arc::new(Faulty::new(ram(4 * LARGE as u64), plan)));
        let memory = Pages::new(2 * LARGE);
        let mut queue = device.open_queue(8).unwrap();
        let written = run(&mut *queue, IoOp::Write, 0, filled(&memory, &[0, 1], 1));
        assert_eq!(written.failures.iter().map(|f| f.index).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_in_words() {
        let small = ram(LARGE as u64 - 1);
        // SAFETY: no queue is made.
        let error = unsafe { LargePages::new(small, LARGE) }.unwrap_err();
        assert!(matches!(error, DeviceError::TooSmall { .. }), "{error}");
    }

    #[test]
    fn every_part_of_a_slot_without_holders_is_forgotten() {
        let spec = format!("compressed:{}M", (4 * LARGE * PAGE_SIZE) >> 20).parse().unwrap();
        let plain = Device::open(&spec, &OpenOptions::default()).unwrap().shared(None);
        let device = large(plain.clone());
        let memory = Pages::new(2 * LARGE);
        let mut queue = device.open_queue(8).unwrap();
        run(&mut *queue, IoOp::Write, 1, filled(&memory, &[0, 1], 5));
        device.free_notify().unwrap().slot_free(Slot(1));
        let mut queue = plain.open_queue(8).unwrap();
        for (slot, byte) in [(LARGE, 0), (2 * LARGE - 1, 0), (2 * LARGE, 5)] {
            let pages = read(&mut *queue, Slot(slot as u32), memory.filled(0..1, 9)).request.pages;
            assert!(is_filled(&pages[0], byte), "slot {slot}");
        }
    }

    #[test]
    fn growing_and_reserved_slots_are_counted_in_large_pages() {
        let directory = tempfile::tempdir().unwrap();
        let spec = format!("file:{}:16M", directory.path().display()).parse().unwrap();
        let file = FileDevice::open(&spec, &OpenOptions::default()).unwrap();
        let device = large(Arc::new(file));
        assert_eq!(device.info().slots_max, 8);
        assert!((3..=8).contains(&device.grow(3).unwrap()));
    }
}
