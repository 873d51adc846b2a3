//! What a client and the server promise each other, over memory, over devices that fail, and over
//! one that keeps its requests.

use super::memory::PairMemory;
use super::queue::{ring, was_rung};
use super::server::Server;
use super::words::Request;
use super::*;
use crate::faulty::{FaultPlan, Faults, Faulty};
use crate::testing::{Pages, drain, is_filled, ram, read, scattered, write};
use crate::{Completion, IoOp, IoRequest, MAX_REQUEST_PAGES};
use overspill_base::ring::{Receiver, Sender};
use overspill_base::sync::{AtomicBool, LockClass, Mutex};
use overspill_wire::Link;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const SLOTS: u64 = 1024;
struct Rig {
    device: ServedDevice,
    server: JoinHandle<()>,
}

impl Rig {
    fn over(device: Arc<dyn SwapDevice>) -> Self {
        let info = device.info();
        let reserved = info.reserved.iter().map(|slot| slot.0).collect();
        let size = Bytes::of_pages(info.slots_max.into());
        let attachment = Attachment { reserved, ..crate::file::named(info.name.clone(), size) };
        Self::of(device, &attachment)
    }

    fn of(device: Arc<dyn SwapDevice>, attachment: &Attachment) -> Self {
        let (ours, theirs) = Link::pair().unwrap();
        let server = Server::new(device).unwrap();
        let server = std::thread::spawn(move || server.serve(&theirs.into()).unwrap());
        Self { device: ServedDevice::new(ours.into(), attachment), server }
    }

    /// Ends the client, and waits for the server's end.
    fn end(self) {
        drop(self.device);
        self.server.join().unwrap();
    }
}

fn first_error(completion: &Completion) -> &DeviceError {
    &completion.failures.first().expect("it fails").error
}

#[test]
fn what_one_worker_wrote_another_reads() {
    let rig = Rig::over(ram(SLOTS));
    let mut queue = rig.device.open_queue(4).unwrap();
    let pages = Pages::new(8);
    let written = write(&mut *queue, Slot(5), pages.filled(scattered(0..4), 3));
    assert!(written.failures.is_empty());
    assert_eq!(written.request.tag, 5, "the submitter's tag comes back");
    let mut queue = rig.device.open_queue(4).unwrap();
    let found = read(&mut *queue, Slot(5), pages.filled(scattered(4..8), 0));
    assert!(found.failures.is_empty() && found.request.pages.iter().all(|page| is_filled(page, 3)));
    queue.submit(IoRequest { op: IoOp::Read, slot: Slot(0), pages: Vec::new(), tag: 9 });
    assert_eq!(drain(&mut *queue, 1)[0].request.tag, 9, "a request without pages ends as well");
}

/// Workers sleep in `poll` between rounds of random size, as a pager's do.
#[test]
fn no_wake_up_is_missed() {
    const ROUNDS: usize = 3000;
    const WORKERS: u32 = 3;
    let rig = Rig::over(ram(SLOTS));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let device = &rig.device;
            scope.spawn(move || {
                let mut random = fastrand_like(worker);
                let mut queue = device.open_queue(8).unwrap();
                let pages = Pages::new(64);
                for round in 0..ROUNDS {
                    let requests = 1 + random() % 8;
                    for request in 0..requests {
                        let first = worker * 64 + request as u32 * 8;
                        let places = request * 8..request * 8 + 1 + random() % 8;
                        let op = if round % 2 == 0 { IoOp::Write } else { IoOp::Read };
                        let pages = match op {
                            IoOp::Write => pages.filled(places, worker as u8),
                            IoOp::Read => pages.views(places),
                        };
                        queue.submit(IoRequest { op, slot: Slot(first), pages, tag: 0 });
                    }
                    queue.flush();
                    finish(&mut *queue, requests);
                }
            });
        }
    });
}

/// Numbers that look random.
fn fastrand_like(seed: u32) -> impl FnMut() -> usize {
    let mut state = u64::from(seed) + 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    }
}

/// Sleeps in `poll` until so many requests have completed, without a failure.
fn finish(queue: &mut dyn IoQueue, requests: usize) {
    finish_with(queue, requests, |completion| assert!(completion.failures.is_empty()));
}

fn finish_with(queue: &mut dyn IoQueue, requests: usize, each: impl Fn(&Completion)) {
    let mut done = Vec::new();
    queue.reap(&mut done);
    while done.len() < requests {
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        let bell = queue.poll_fd().expect("the server completes");
        let woken = poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], Some(&patience));
        assert_eq!(woken, Ok(1), "a completion without a bell");
        queue.reap(&mut done);
    }
    done.iter().for_each(each);
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn more_requests_than_there_is_room_for_wait() {
    let rig = Rig::over(ram(SLOTS));
    let device = &rig.device;
    let mut queue = device.open_queue(2).unwrap();
    let pages = Pages::new(MAX_REQUEST_PAGES);
    for first in [0, 256, 512] {
        let pages = pages.filled(0..MAX_REQUEST_PAGES, 1);
        queue.submit(IoRequest { op: IoOp::Write, slot: Slot(first), pages, tag: 0 });
    }
    assert!(drain(&mut *queue, 3).iter().all(|completion| completion.failures.is_empty()));
}

#[test]
fn a_failure_is_that_of_the_device() {
    let plan = Arc::new(FaultPlan::new(Faults { fail_write: Some(0), ..Faults::default() }));
    let rig = Rig::over(Arc::new(Faulty::new(ram(SLOTS), plan.clone())));
    let device = &rig.device;
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(2);
    let failed = write(&mut *queue, Slot(3), pages.filled(0..2, 1));
    assert_eq!(failed.failures.len(), 2);
    let expected = DeviceError::Io {
        name: device.info().name.clone(),
        op: IoOp::Write,
        slot: Slot(3),
        errno: Errno::IO,
    };
    assert_eq!(first_error(&failed), &expected);
    plan.set(Faults { short_read: Some(0), ..Faults::default() });
    let short = read(&mut *queue, Slot(3), failed.request.pages);
    assert!(matches!(first_error(&short), DeviceError::Short { .. }), "{short:?}");
    plan.set(Faults { vanish_from: Some(0), ..Faults::default() });
    assert!(!write(&mut *queue, Slot(3), short.request.pages).failures.is_empty());
    assert!(matches!(device.discard(Slot(0), 1), Err(DeviceError::Discard { .. })));
}

#[test]
fn a_file_grows_and_is_full_for_its_client() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().join("swap");
    let kind = crate::SwapKind::File { path, size: Some(Bytes::of_pages(40_000)) };
    let file = crate::file::FileDevice::open(&kind.into(), &Default::default()).unwrap();
    let attachment = file.attachment().clone();
    let rig = Rig::of(Arc::new(file), &attachment);
    let device = &rig.device;
    let usable = device.grow(100).unwrap();
    assert!((100..=40_000).contains(&usable));
    assert_eq!(device.grow(40_000).unwrap(), 40_000);
    assert!(matches!(device.grow(40_001), Err(DeviceError::Full { .. })));
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(1);
    let written = write(&mut *queue, Slot(39_999), pages.filled([0], 6));
    assert!(written.failures.is_empty(), "{written:?}");
    let found = read(&mut *queue, Slot(39_999), written.request.pages);
    assert!(is_filled(&found.request.pages[0], 6));
}

#[test]
fn slots_that_are_reserved_or_do_not_exist_are_refused() {
    let header = Arc::new(Named::with_header(ram(SLOTS)));
    let rig = Rig::over(header);
    let device = &rig.device;
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(2);
    for slot in [0, SLOTS as u32 - 1, u32::MAX] {
        let refused = write(&mut *queue, Slot(slot), pages.filled(0..2, 1));
        let DeviceError::Io { errno, .. } = first_error(&refused) else { panic!("{refused:?}") };
        assert_eq!(*errno, Errno::INVAL);
    }
    assert!(device.discard(Slot(SLOTS as u32), 1).is_err());
    assert!(write(&mut *queue, Slot(1), pages.filled(0..2, 1)).failures.is_empty());
}

/// Whatever comes as words of one pair, the others are served.
#[test]
fn a_pair_that_makes_no_sense_harms_no_other() {
    let rig = Rig::over(ram(SLOTS));
    let mut queue = rig.device.open_queue(4).unwrap();
    let pages = Pages::new(1);
    let mut buffers = write(&mut *queue, Slot(1000), pages.filled([0], 4)).request.pages;
    let mut random = fastrand_like(1);
    for _ in 0..300 {
        let pair = rig.device.client.open_pair().unwrap();
        let mut sender = Sender::new(pair.memory.requests());
        for _ in 0..random() % 400 {
            // Below slot 1000, or above all.
            let word = (random() as u64) << 32 | random() as u64;
            let slot = (word >> 28) % 2000;
            let slot = if slot == 1000 { 999 } else { slot };
            let word = word & ((1 << 28) - 1) & !(255 << 10) | slot << 28 | 1 << 10;
            NonZeroU64::new(word).into_iter().for_each(|word| sender.send(word));
            ring(&pair.door);
        }
        let found = read(&mut *queue, Slot(1000), buffers);
        assert!(found.failures.is_empty() && is_filled(&found.request.pages[0], 4));
        buffers = found.request.pages;
    }
}

/// It is not served any more, and its workers do not wait.
#[test]
fn a_client_that_makes_no_sense_is_left() {
    for len in [1, 11, 12, 13, 20] {
        let (ours, theirs) = Link::pair().unwrap();
        let server = Server::new(ram(SLOTS)).unwrap();
        let server = std::thread::spawn(move || server.serve(&theirs.into()).unwrap());
        let attachment = crate::file::named("ram".into(), Bytes::of_pages(SLOTS));
        let copy = rustix::io::fcntl_dupfd_cloexec(&ours, 3).unwrap();
        let device = ServedDevice::new(copy, &attachment);
        let mut queue = device.open_queue(4).unwrap();
        rustix::net::send(&ours, &vec![9; len], rustix::net::SendFlags::empty()).unwrap();
        server.join().unwrap();
        let pages = Pages::new(1);
        assert!(!write(&mut *queue, Slot(1), pages.filled([0], 4)).failures.is_empty());
        assert!(device.open_queue(1).is_err() && device.discard(Slot(1), 1).is_err());
    }
}

/// Nothing waits for a server that is gone, and what it had is not taken for done.
#[test]
fn requests_fail_when_the_server_ends() {
    let (ours, theirs) = Link::pair().unwrap();
    let attachment = crate::file::named("far".into(), Bytes::of_pages(SLOTS));
    let device = ServedDevice::new(ours.into(), &attachment);
    let (file, memory) = PairMemory::create().unwrap();
    let door = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let (heard, bell) = rustix::pipe::pipe().unwrap();
    assert!(Receiver::new(memory.requests()).may_sleep(), "it is to be rung");
    let server = std::thread::spawn(move || {
        let theirs = Link::from(theirs);
        assert_eq!(theirs.receive(None, None), Ok(Ask::Open));
        let pair = [file, door.try_clone().unwrap(), heard];
        control::answer(&theirs, Outcome::Done, 0, Some(pair)).unwrap();
        // It ends when it has got a request.
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        let rung = poll(&mut [PollFd::new(&door, PollFlags::IN)], Some(&patience));
        assert_eq!(rung, Ok(1));
        drop((theirs, bell, memory));
    });
    // As many as there is room for: their numbers fill a byte.
    let mut queue = device.open_queue(256).unwrap();
    let pages = Pages::new(2);
    let request = |op, pages| IoRequest { op, slot: Slot(9), pages, tag: 0 };
    queue.submit(request(IoOp::Read, pages.filled([0], 8)));
    queue.flush();
    finish_with(&mut *queue, 1, |completion| {
        let DeviceError::Io { errno, .. } = first_error(completion) else { panic!() };
        assert_eq!(*errno, Errno::PIPE);
    });
    server.join().unwrap();
    queue.submit(request(IoOp::Write, pages.filled([0], 8)));
    queue.flush();
    finish_with(&mut *queue, 1, |completion| assert!(!completion.failures.is_empty()));
    assert!(device.open_queue(1).is_err() && device.discard(Slot(1), 1).is_err());
}

#[test]
fn a_server_ends_with_its_client_and_what_that_has_begun() {
    let keeping = Arc::new(Keeping::over(ram(SLOTS)));
    let rig = Rig::over(keeping.clone());
    let pages = Pages::new(1);
    drop((0..5).map(|_| rig.device.open_queue(4).unwrap()).collect::<Vec<_>>());
    let mut queue = rig.device.open_queue(4).unwrap();
    let pages = pages.filled([0], 8);
    queue.submit(IoRequest { op: IoOp::Write, slot: Slot(9), pages, tag: 0 });
    queue.flush();
    keeping.wait_for_a_request();
    // As the kernel ends a process: nothing of it runs any more.
    std::mem::forget(queue);
    keeping.let_go();
    rig.end();
    let mut queue = keeping.inner.open_queue(1).unwrap();
    let pages = Pages::new(1);
    assert!(is_filled(&read(&mut *queue, Slot(9), pages.filled([0], 0)).request.pages[0], 8));
}

#[test]
fn the_memory_is_shared_and_no_client_can_shrink_it() {
    let (file, memory) = PairMemory::create().unwrap();
    let mut sender = Sender::new(PairMemory::open(&file).unwrap().requests());
    sender.send(Request::Close.word());
    let mut receiver = Receiver::new(memory.requests());
    assert_eq!(receiver.take().and_then(Request::of), Some(Request::Close), "they share memory");
    assert!(rustix::fs::ftruncate(&file, 0).is_err(), "a client cannot shrink it");
}

/// A device whose first slot is a header.
#[derive(Debug)]
struct Named {
    inner: Arc<dyn SwapDevice>,
    info: DeviceInfo,
}

impl Named {
    fn with_header(inner: Arc<dyn SwapDevice>) -> Self {
        let info = DeviceInfo { reserved: vec![Slot(0)], ..inner.info().clone() };
        Self { inner, info }
    }
}

impl SwapDevice for Named {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        self.inner.grow(slots)
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        self.inner.discard(first, slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        self.inner.open_queue(depth)
    }
}

/// A device that does nothing until it is let go.
#[derive(Debug)]
struct Keeping {
    inner: Arc<dyn SwapDevice>,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    is_open: AtomicBool,
    kept: Mutex<usize>,
    bell: OwnedFd,
}

impl Keeping {
    fn over(inner: Arc<dyn SwapDevice>) -> Self {
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (is_open, kept) = (AtomicBool::new(false), Mutex::new(LockClass::Control, 0));
        Self { inner, gate: Arc::new(Gate { is_open, kept, bell }) }
    }

    fn wait_for_a_request(&self) {
        while *self.gate.kept.lock() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn let_go(&self) {
        self.gate.is_open.store(true, Relaxed);
        ring(&self.gate.bell);
    }
}

impl SwapDevice for Keeping {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        self.inner.grow(slots)
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        self.inner.discard(first, slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let inner = self.inner.open_queue(depth)?;
        Ok(Box::new(KeepingQueue { inner, gate: self.gate.clone(), kept: Vec::new() }))
    }
}

struct KeepingQueue {
    inner: Box<dyn IoQueue>,
    gate: Arc<Gate>,
    kept: Vec<IoRequest>,
}

impl IoQueue for KeepingQueue {
    fn submit(&mut self, request: IoRequest) {
        self.kept.push(request);
        *self.gate.kept.lock() += 1;
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        if self.gate.is_open.load(Relaxed) {
            was_rung(&self.gate.bell);
            self.kept.drain(..).for_each(|request| self.inner.submit(request));
            self.inner.reap(done);
        }
    }

    fn wait(&mut self) {}

    fn in_flight(&self) -> usize {
        self.kept.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.gate.bell.as_fd())
    }
}
