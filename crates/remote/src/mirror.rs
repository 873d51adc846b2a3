//! Two devices with the same pages.
//!
//! Owns: which of the two are up to date, and which is read from.
//! Invariants: a page is written when every side that is up to date has it. A side on which a write
//! has failed is left: nothing is read from it any more, because it may have an older page. The
//! last side is never left; what fails there fails. A request is with one side at a time, because
//! its pages are. No side is ever full: to wait for its room would be not to listen to the other.
//! Not here: what is silent for how long (`timeout=`); making a side that was left up to date
//! again; pages that were changed without an error, which encryption notices after they were read.
//! Rejected: writing to both at once, which takes a copy of each page; a pair of requests for each
//! page above the device, which would double the engine's work for a few.

#[cfg(test)]
mod tests;

use crate::failure::{News, State};
use overspill_base::sync::{LockClass, Mutex};
use overspill_base::{Bytes, Slot};
use overspill_device::file::Attachment;
use overspill_device::{
    Completion, Device, DeviceError, DeviceInfo, IoOp, IoQueue, IoRequest, PageFailure, SwapDevice,
    SwapSpec,
};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// One of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    First,
    Second,
}

impl Side {
    const BOTH: [Self; 2] = [Self::First, Self::Second];

    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// What is known of the two, by all queues.
struct Standing {
    left: Option<Side>,
    /// Is read from, unless it was left.
    preferred: Side,
    news: News,
}

impl Standing {
    fn is_left(&self, side: Side) -> bool {
        self.left == Some(side)
    }

    /// The first to write to.
    fn writable(&self) -> Side {
        if self.is_left(Side::First) { Side::Second } else { Side::First }
    }

    fn readable(&self) -> Side {
        if self.is_left(self.preferred) { self.preferred.other() } else { self.preferred }
    }

    /// A write has failed on `side`.
    fn leave(&mut self, side: Side, error: &DeviceError) {
        if self.left.is_none() {
            self.left = Some(side);
            let line =
                format!("one of the two is left, its pages are kept once from now on: {error}");
            self.news.turn(State::Lost, &line);
        }
    }
}

struct Mirror {
    sides: [Arc<dyn SwapDevice>; 2],
    info: DeviceInfo,
    standing: Arc<Mutex<Standing>>,
}

impl Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("name", &self.info.name).finish_non_exhaustive()
    }
}

/// Makes one device of two.
pub(crate) fn mirror(first: Device, second: Device, spec: &SwapSpec, say: fn(&str)) -> Device {
    let attachment = attachment(first.attachment(), second.attachment(), spec);
    let device = Mirror::new([first.bare(), second.bare()], attachment.info(), say);
    Device::Remote { device: Arc::new(device), attachment: Box::new(attachment) }
}

/// What holds for both.
fn attachment(first: &Attachment, second: &Attachment, spec: &SwapSpec) -> Attachment {
    let slots_max = first.slots_max.min(second.slots_max);
    let mut reserved = [&first.reserved[..], &second.reserved].concat();
    reserved.retain(|&slot| slot < slots_max);
    reserved.sort_unstable();
    reserved.dedup();
    let is_encryption = |note: &String| note.starts_with("encrypted");
    let notes = first.notes.iter().chain(&second.notes).filter(|note| !is_encryption(note));
    let mut attachment = Attachment {
        name: format!("{} and {}", first.name, second.name),
        slots_max,
        reserved,
        rotational: first.rotational || second.rotational,
        synchronous: false,
        discards: first.discards || second.discards,
        page_discard: first.page_discard || second.page_discard,
        grows: first.grows || second.grows,
        was_empty: false,
        algorithm: None,
        encrypted: false,
        served: true,
        notes: notes.cloned().collect(),
    };
    attachment.encrypt_as(spec);
    attachment
}

impl Mirror {
    fn new(sides: [Arc<dyn SwapDevice>; 2], info: DeviceInfo, say: fn(&str)) -> Self {
        let news = News::new(&info.name, say);
        let standing = Standing { left: None, preferred: Side::First, news };
        let standing = Arc::new(Mutex::new(LockClass::ServedDevice, standing));
        Self { sides, info, standing }
    }

    /// The devices that are up to date.
    fn good(&self) -> impl Iterator<Item = &Arc<dyn SwapDevice>> {
        let left = self.standing.lock().left;
        Side::BOTH
            .into_iter()
            .zip(&self.sides)
            .filter(move |(side, _)| left != Some(*side))
            .map(|(_, device)| device)
    }
}

impl SwapDevice for Mirror {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let all = self.info.slots_max;
        if slots > all {
            let size = Bytes::of_pages(all.into());
            return Err(DeviceError::Full { name: self.info.name.clone(), size });
        }
        let grown = self.good().map(|device| device.grow(slots));
        grown.collect::<Result<Vec<_>, _>>().map(|usable| usable.into_iter().fold(all, u32::min))
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        let mut discarding = self.good().filter(|device| device.info().discards);
        discarding.try_for_each(|device| device.discard(first, slots))
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let [first, second] = &self.sides;
        let queues = [first.open_queue(depth)?, second.open_queue(depth)?];
        let refused = |errno| DeviceError::Queue { name: self.info.name.clone(), errno };
        let queue = MirrorQueue::new(queues, depth, self.standing.clone()).map_err(refused)?;
        Ok(Box::new(queue))
    }
}

/// A request, and what has become of it so far.
#[derive(Clone, Copy)]
struct Flight {
    /// As it was submitted.
    tag: u64,
    /// Where it is.
    side: Side,
    /// It was with the other one before.
    is_second: bool,
    /// The other one has all of its pages.
    is_written: bool,
}

struct MirrorQueue {
    queues: [Box<dyn IoQueue>; 2],
    /// Requests in flight, at most: as many as either side takes.
    depth: usize,
    standing: Arc<Mutex<Standing>>,
    flights: HashMap<u64, Flight>,
    next: u64,
    finished: Vec<Completion>,
    epoll: OwnedFd,
}

impl MirrorQueue {
    fn new(
        queues: [Box<dyn IoQueue>; 2],
        depth: u32,
        standing: Arc<Mutex<Standing>>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in queues.iter().filter_map(|queue| queue.poll_fd()) {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        let (depth, flights, finished) = (depth.max(1) as usize, HashMap::new(), Vec::new());
        Ok(Self { queues, depth, standing, flights, next: 0, finished, epoll })
    }

    /// Hands a request to a side.
    fn send(&mut self, mut request: IoRequest, flight: Flight) {
        request.tag = self.next;
        self.next += 1;
        let side = flight.side;
        self.flights.insert(request.tag, flight);
        self.queues[side as usize].submit(request);
    }

    /// Takes what has completed on either side, and goes on with it, until nothing has.
    fn collect(&mut self) {
        loop {
            let mut reaped = Vec::new();
            self.queues.iter_mut().for_each(|queue| queue.reap(&mut reaped));
            if reaped.is_empty() {
                return;
            }
            reaped.into_iter().for_each(|completion| self.advance(completion));
            self.flush();
        }
    }

    /// Waits for what happens on either side, until that is enough.
    fn collect_until(&mut self, is_enough: impl Fn(&Self) -> bool) {
        self.flush();
        self.collect();
        while !is_enough(self) {
            let mut events = Vec::with_capacity(2);
            // After EINTR or any other error: look again.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), None::<&Timespec>);
            self.collect();
        }
    }

    fn advance(&mut self, completion: Completion) {
        let Completion { request, failures } = completion;
        let flight = self.flights.remove(&request.tag).expect("it was sent");
        match request.op {
            IoOp::Read => self.advance_read(request, failures, flight),
            IoOp::Write => self.advance_write(request, failures, flight),
        }
    }

    /// What cannot be read from one is read from the other, if that has not been left.
    fn advance_read(&mut self, request: IoRequest, failures: Vec<PageFailure>, flight: Flight) {
        let other = flight.side.other();
        let mut standing = self.standing.lock();
        if failures.is_empty() || flight.is_second || standing.is_left(other) {
            drop(standing);
            return self.finish(request, failures, flight.tag);
        }
        standing.preferred = other;
        drop(standing);
        self.send(request, Flight { side: other, is_second: true, ..flight });
    }

    fn advance_write(&mut self, request: IoRequest, failures: Vec<PageFailure>, flight: Flight) {
        let (side, other) = (flight.side, flight.side.other());
        let mut standing = self.standing.lock();
        if let Some(failure) = failures.first() {
            standing.leave(side, &failure.error);
        }
        // What a side has does not count if it was left meanwhile.
        let is_here = failures.is_empty() && !standing.is_left(side);
        let is_written = is_here || flight.is_written && !standing.is_left(other);
        let is_last = flight.is_second || standing.is_left(other);
        drop(standing);
        match (is_last, is_written) {
            (false, _) => {
                self.send(request, Flight { side: other, is_second: true, is_written, ..flight });
            }
            (true, true) => self.finish(request, Vec::new(), flight.tag),
            (true, false) => self.finish(request, failures, flight.tag),
        }
    }

    fn finish(&mut self, mut request: IoRequest, failures: Vec<PageFailure>, tag: u64) {
        request.tag = tag;
        self.finished.push(Completion { request, failures });
    }
}

impl IoQueue for MirrorQueue {
    fn submit(&mut self, request: IoRequest) {
        if self.flights.len() >= self.depth {
            self.collect_until(|queue| queue.flights.len() < queue.depth);
        }
        let standing = self.standing.lock();
        let side = match request.op {
            IoOp::Read => standing.readable(),
            IoOp::Write => standing.writable(),
        };
        drop(standing);
        let tag = request.tag;
        self.send(request, Flight { tag, side, is_second: false, is_written: false });
    }

    fn flush(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.flush());
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.collect();
        done.append(&mut self.finished);
    }

    fn wait(&mut self) {
        self.collect_until(|queue| !queue.finished.is_empty() || queue.flights.is_empty());
    }

    fn in_flight(&self) -> usize {
        self.flights.len() + self.finished.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}
