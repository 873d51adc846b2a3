//! Serving a device to a client.
//!
//! Owns: one queue to the device, the client's socket and the memory of its pairs.
//! Invariants: the client can harm itself only: every word of it is checked, and a pair of which
//! one makes no sense is closed. A pair outlives its worker until the last of its requests has
//! completed. It costs nothing while it is silent.
//! Not here: what opens the device.
//! Rejected: looking at every pair on each round: there is one for each worker.

use super::control::{Ask, answer, question};
use super::memory::PairMemory;
use super::queue::{ring, was_rung};
use super::words::{Ended, FLIGHTS, Outcome, Request};
use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{Completion, IoQueue, IoRequest, SwapDevice};
use overspill_base::Slot;
use overspill_base::ring::{Receiver, Sender};
use overspill_wire::{Link, LinkError};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Requests that the device has at a time.
const DEPTH: u32 = 256;
/// Requests taken from one pair before the next one's turn.
const TURN: usize = 32;
/// Pairs, at most: the client has as many workers, and a mistake must not take all descriptors.
const PAIRS_MAX: usize = 1024;
/// Events looked at in one round.
const EVENTS: usize = 64;

fn new_door() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// What a worker hears, and what the server rings. A pipe, so that the worker also hears that there
/// is nobody any more who would ring.
fn new_bell() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
}

/// Names something that can be ready. A number is never used again, so what is ready and gone
/// meanwhile is found nowhere.
type Token = u64;

const CLIENT: Token = 0;
const DEVICE: Token = 1;
const FIRST: Token = 2;

/// The server's end of a worker's rings.
struct Pair {
    memory: PairMemory,
    requests: Receiver,
    completions: Sender,
    door: OwnedFd,
    bell: OwnedFd,
    in_flight: usize,
    /// There are, or were a moment ago, requests to be taken.
    is_active: bool,
    /// There is nobody who would send or take anything.
    is_gone: bool,
}

/// Whom a request belongs to.
struct Ticket {
    pair: Token,
    flight: u8,
}

/// The only one that moves pages to and from its device.
pub struct Server {
    /// Above the pairs, whose memory it may use: dropped first.
    queue: Box<dyn IoQueue>,
    device: Arc<dyn SwapDevice>,
    epoll: OwnedFd,
    pairs: HashMap<Token, Pair>,
    active: Vec<Token>,
    tickets: InFlight<Ticket>,
    next: Token,
    completions: Vec<Completion>,
}

impl Server {
    /// Opens a queue to `device`.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] if the system refuses a queue or a descriptor.
    pub fn new(device: Arc<dyn SwapDevice>) -> Result<Self, DeviceError> {
        let queue = device.open_queue(DEPTH)?;
        let refused = |errno| DeviceError::Queue { name: device.info().name.clone(), errno };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        if let Some(fd) = queue.poll_fd() {
            watch(&epoll, fd, DEVICE).map_err(refused)?;
        }
        Ok(Self {
            queue,
            device,
            epoll,
            pairs: HashMap::new(),
            active: Vec::new(),
            tickets: InFlight::new(DEPTH),
            next: FIRST,
            completions: Vec::new(),
        })
    }

    /// Serves the client at the other end of `link`, until no process has that open any more, or
    /// what it says there makes no sense. Then waits for the requests that the device has.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub fn serve(mut self, link: &Link) -> Result<(), Errno> {
        watch(&self.epoll, link.as_fd(), CLIENT)?;
        while self.attend(link).is_continue() {
            self.take_requests();
            self.queue.flush();
            self.complete();
        }
        // Their pages are in the memory of pairs.
        while self.queue.in_flight() > 0 {
            self.queue.wait();
            self.complete();
        }
        Ok(())
    }

    /// Waits until something is ready, unless there is work, and looks at what is.
    fn attend(&mut self, link: &Link) -> ControlFlow<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let at_once = (!self.active.is_empty()).then_some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        // After EINTR or any other error: look again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), at_once);
        for event in events {
            match event.data.u64() {
                CLIENT => self.answer(link)?,
                DEVICE => {}
                token => self.activate(token),
            }
        }
        ControlFlow::Continue(())
    }

    /// Answers one question, or notices the client's end.
    fn answer(&mut self, link: &Link) -> ControlFlow<()> {
        let answered = match question(link) {
            Ok(Some(ask)) => self.answer_to(link, ask),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        answered.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    }

    /// # Errors
    /// The client takes no answers.
    fn answer_to(&mut self, link: &Link, ask: Ask) -> Result<(), LinkError> {
        let (outcome, number) = match ask {
            Ask::Open => match self.open() {
                Ok(pair) => return answer(link, Outcome::Done, 0, Some(pair)),
                Err(errno) => (Outcome::Failed(errno), 0),
            },
            Ask::Grow { slots } => {
                let grown = self.device.grow(slots);
                (Outcome::of(&grown), grown.unwrap_or(0))
            }
            Ask::Discard { first, slots } => (self.discard(first, slots), 0),
        };
        answer(link, outcome, number, None)
    }

    fn discard(&self, first: Slot, slots: u32) -> Outcome {
        let all = u64::from(self.device.info().slots_max);
        if u64::from(first.0) + u64::from(slots) > all {
            return Outcome::Failed(Errno::INVAL);
        }
        Outcome::of(&self.device.discard(first, slots))
    }

    /// Makes a pair; returns what of it is the worker's: its memory, its door and its bell.
    fn open(&mut self) -> Result<[OwnedFd; 3], Errno> {
        if self.pairs.len() >= PAIRS_MAX {
            return Err(Errno::MFILE);
        }
        let (file, memory) = PairMemory::create()?;
        let (door, (heard, bell)) = (new_door()?, new_bell()?);
        let own = self.next;
        self.next += 1;
        watch(&self.epoll, door.as_fd(), own)?;
        let (requests, completions) =
            (Receiver::new(memory.requests()), Sender::new(memory.completions()));
        // Before the answer, because from then on there may be requests: the worker rings from its
        // first one on.
        let _ = requests.may_sleep();
        let theirs = [file, fcntl_dupfd_cloexec(&door, 3)?, heard];
        let pair = Pair {
            memory,
            requests,
            completions,
            door,
            bell,
            in_flight: 0,
            is_active: false,
            is_gone: false,
        };
        self.pairs.insert(own, pair);
        Ok(theirs)
    }

    /// Takes no more requests of a pair, and forgets it when the last has ended.
    fn close(&mut self, token: Token) {
        let Some(pair) = self.pairs.get_mut(&token) else { return };
        pair.is_gone = true;
        if pair.in_flight == 0 {
            // The worker may have the door open, and ring for ever.
            let _ = epoll::delete(&self.epoll, &pair.door);
            self.pairs.remove(&token);
        }
    }

    /// A worker has rung: there are requests.
    fn activate(&mut self, token: Token) {
        let Some(pair) = self.pairs.get_mut(&token) else { return };
        was_rung(&pair.door);
        if !pair.is_active && !pair.is_gone {
            pair.is_active = true;
            self.active.push(token);
        }
    }

    /// Takes some requests of every pair that has any.
    fn take_requests(&mut self) {
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&token| self.take_turn(token));
        self.active = active;
    }

    /// Takes some requests of a pair; true if there may be more.
    fn take_turn(&mut self, token: Token) -> bool {
        for _ in 0..TURN {
            let Some(pair) = self.pairs.get_mut(&token).filter(|pair| !pair.is_gone) else {
                return false;
            };
            let Some(word) = pair.requests.take() else {
                pair.is_active = !pair.requests.may_sleep();
                return pair.is_active;
            };
            match Request::of(word) {
                Some(request) if pair.in_flight < FLIGHTS => self.begin(token, request),
                _ => self.close(token),
            }
        }
        true
    }

    /// Passes a request on to the device.
    fn begin(&mut self, token: Token, request: Request) {
        let Request::Transfer { flight, op, pages, slot } = request else {
            return self.close(token);
        };
        let pair = self.pairs.get_mut(&token).expect("it has just sent this");
        if !is_usable(&*self.device, slot, pages.len()) {
            let outcome = Outcome::Failed(Errno::INVAL);
            pair.completions.send(Ended { flight, outcome }.word());
            return pair.wake();
        }
        pair.in_flight += 1;
        let pages = pair.memory.run(pages);
        let tag = self.tickets.put(Ticket { pair: token, flight });
        self.queue.submit(IoRequest { op, slot, pages, tag });
    }

    /// Tells the workers what has completed.
    fn complete(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(&mut completions);
        let mut told = Vec::new();
        for Completion { request, failures } in completions.drain(..) {
            let Ticket { pair: token, flight } = self.tickets.take(request.tag);
            let pair = self.pairs.get_mut(&token).expect("a pair outlives its requests");
            pair.in_flight -= 1;
            let failure = failures.first();
            let outcome = failure.map_or(Outcome::Done, |f| Outcome::of_error(&f.error));
            pair.completions.send(Ended { flight, outcome }.word());
            told.push(token);
        }
        self.completions = completions;
        for token in told {
            match self.pairs.get(&token) {
                Some(pair) if pair.is_gone => self.close(token),
                Some(pair) => pair.wake(),
                None => {}
            }
        }
    }
}

impl Pair {
    /// Wakes the worker, if it sleeps.
    fn wake(&self) {
        if self.completions.must_wake() {
            ring(&self.bell);
        }
    }
}

/// True if a request is within the device, and none of its slots is reserved.
fn is_usable(device: &dyn SwapDevice, slot: Slot, pages: usize) -> bool {
    let info = device.info();
    let (first, end) = (u64::from(slot.0), u64::from(slot.0) + pages as u64);
    let is_inside = |reserved: &Slot| (first..end).contains(&u64::from(reserved.0));
    end <= u64::from(info.slots_max) && !info.reserved.iter().any(is_inside)
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
    epoll::add(epoll, fd, EventData::new_u64(token), EventFlags::IN)
}
