//! Shared by this crate's tests: pages to move, and moving them one request at a time.

use crate::faulty::{FaultPlan, Faults, Faulty};
use crate::file::{FileDevice, OpenOptions};
use crate::seal::{Algorithm, Sealer, Seals};
use crate::{Completion, IoOp, IoQueue, IoRequest, SwapDevice, SwapKind};
use overspill_base::shared::{PageArena, PageBuf, Table};
use overspill_base::{Bytes, Slot};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Memory for a test's pages.
pub(crate) struct Pages(PageArena);

impl Pages {
    pub(crate) fn new(pages: usize) -> Self {
        Self(PageArena::new(pages).unwrap())
    }

    /// Handles to the pages at `places`, every byte `byte`. A test reuses a place only after its
    /// last request is complete.
    pub(crate) fn filled(&self, places: impl IntoIterator<Item = usize>, byte: u8) -> Vec<PageBuf> {
        let page = |place| {
            // SAFETY: the test keeps the arena, and uses no older handle to the place.
            let mut page = unsafe { self.0.page(place) };
            page.fill(byte);
            page
        };
        places.into_iter().map(page).collect()
    }
}

impl Pages {
    /// Handles to the pages at `places`, unchanged.
    pub(crate) fn views(&self, places: Range<usize>) -> Vec<PageBuf> {
        // SAFETY: as in `filled`.
        places.map(|place| unsafe { self.0.page(place) }).collect()
    }
}

/// Encrypts the content of so many slots.
pub(crate) fn sealer(algorithm: Algorithm, slots: usize) -> Sealer {
    let words = Table::on_heap(slots * Seals::WORDS, || AtomicU64::new(0));
    Sealer::new(algorithm, Seals::new(words)).unwrap()
}

pub(crate) fn is_filled(page: &[u8], byte: u8) -> bool {
    page.iter().all(|&found| found == byte)
}

/// A memory device.
pub(crate) fn ram(slots: u64) -> Arc<dyn SwapDevice> {
    let kind = SwapKind::Ram { size: Bytes::of_pages(slots) };
    Arc::new(FileDevice::open(&kind.into(), &OpenOptions::default()).unwrap())
}

pub(crate) fn write(queue: &mut dyn IoQueue, slot: Slot, pages: Vec<PageBuf>) -> Completion {
    run(queue, IoRequest { op: IoOp::Write, slot, pages, tag: slot.0.into() })
}

pub(crate) fn read(queue: &mut dyn IoQueue, slot: Slot, pages: Vec<PageBuf>) -> Completion {
    run(queue, IoRequest { op: IoOp::Read, slot, pages, tag: slot.0.into() })
}

fn run(queue: &mut dyn IoQueue, request: IoRequest) -> Completion {
    queue.submit(request);
    drain(queue, 1).pop().unwrap()
}

/// Waits for `count` requests.
pub(crate) fn drain(queue: &mut dyn IoQueue, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    queue.flush();
    while done.len() < count {
        queue.wait();
        queue.reap(&mut done);
    }
    done
}

/// Scatters a range of places: every second first, then the others.
pub(crate) fn scattered(places: Range<usize>) -> Vec<usize> {
    places.clone().step_by(2).chain(places.skip(1).step_by(2)).collect()
}

/// A device made by `over` finds what a device below it garbles, and takes nothing else for that.
pub(crate) fn finds_garbage(
    over: impl FnOnce(Arc<dyn SwapDevice>) -> Arc<dyn SwapDevice>,
    bad_slots: impl Fn(&Completion) -> Vec<u32>,
) {
    let plan = Arc::new(FaultPlan::new(Faults { garble_read: Some(1), ..Faults::default() }));
    let device = over(Arc::new(Faulty::new(ram(16), plan)));
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(2);
    let mut buffers = write(&mut *queue, Slot(4), pages.filled(0..2, 1)).request.pages;
    for expected in [&[][..], &[4, 5], &[]] {
        let completion = read(&mut *queue, Slot(4), buffers);
        assert_eq!(bad_slots(&completion), expected);
        buffers = completion.request.pages;
    }
}
