//! The process that has a device open, and serves it to others.
//!
//! Owns: a thread with one queue to the device, the clients' sockets and the memory of their pairs.
//! Invariants: a client can harm itself only: every word of it is checked, and one that says what
//! makes no sense is left. A pair outlives its client until the last of its requests has completed,
//! and only then is [`Clients::end`] called. A pair costs nothing while it is silent.
//! Not here: who may become a client.
//! Rejected: a thread for each client, of which there may be thousands; looking at every pair on
//! each round, for the same reason.

use super::control::{Ask, MESSAGE_BYTES, answer};
use super::memory::PairMemory;
use super::queue::{ring, was_rung};
use super::words::{Ended, FLIGHTS, Outcome, Request};
use super::{errno_of, wait_unused};
use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{Completion, IoQueue, IoRequest, SwapDevice};
use overspill_base::Slot;
use overspill_base::ring::{Receiver, Sender};
use overspill_base::sync::{Condvar, LockClass, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Requests that the device has at a time.
const DEPTH: u32 = 256;
/// Requests taken from one pair before the next one's turn.
const TURN: usize = 32;
/// Pairs of one client, at most: it has as many workers, and a mistake must not take all
/// descriptors.
const PAIRS_MAX: usize = 1024;
/// Events looked at in one round.
const EVENTS: usize = 64;

/// Is told for whom requests may be under way. As long as that is so, the slots that a client held
/// must not become another's, even if the client has ended: its last writes are yet to come.
pub trait Clients: Send + Sync + Debug {
    /// From now on there may be requests of `client`; false if there must be none.
    fn begin(&self, client: u32) -> bool;

    /// What began once has ended.
    fn end(&self, client: u32);

    /// No process has the socket of a client any more.
    fn leave(&self) {}
}

/// Serves a device until it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    news: Mutex<News>,
    /// A client has left.
    left: Condvar,
    /// Rung when there are news.
    bell: OwnedFd,
}

/// What the thread does not know yet.
#[derive(Debug, Default)]
struct News {
    /// Sockets of new clients.
    arrived: Vec<OwnedFd>,
    /// Clients that have not left yet.
    clients: usize,
    is_over: bool,
}

impl Server {
    /// Starts the thread, the only one that moves pages to and from `device`.
    ///
    /// # Errors
    /// [`DeviceError::Queue`] if the system refuses a queue, a descriptor or a thread.
    pub fn start(
        device: Arc<dyn SwapDevice>,
        clients: Arc<dyn Clients>,
    ) -> Result<Self, DeviceError> {
        let name = device.info().name.clone();
        let refused = |errno| DeviceError::Queue { name: name.clone(), errno };
        let news = Mutex::new(LockClass::ServedDevice, News::default());
        let (left, bell) = (Condvar::new(), new_door().map_err(refused)?);
        let shared = Arc::new(Shared { news, left, bell });
        let service = Service::new(device, clients, shared.clone())?;
        let builder = std::thread::Builder::new().name("ovs-device".into());
        let thread = builder.spawn(move || service.run());
        let thread = thread.map_err(|error| refused(errno_of(&error)))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Serves the client at the other end of `socket`, until no process has that open any more.
    pub fn take(&self, socket: OwnedFd) {
        let mut news = self.shared.news.lock();
        news.arrived.push(socket);
        news.clients += 1;
        drop(news);
        ring(&self.shared.bell);
    }

    /// Waits until there is no client, at most for `patience`; false if there is one.
    pub fn wait_unused(&self, patience: Duration) -> bool {
        let Shared { news, left, .. } = &*self.shared;
        wait_unused(news, left, |news| news.clients, patience)
    }
}

impl Drop for Server {
    /// Waits for the requests that the device has.
    fn drop(&mut self) {
        self.shared.news.lock().is_over = true;
        ring(&self.shared.bell);
        // A panic was reported when it happened.
        self.thread.take().map(JoinHandle::join);
    }
}

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

const NEWS: Token = 0;
const DEVICE: Token = 1;
const FIRST: Token = 2;

struct Caller {
    socket: OwnedFd,
    pairs: Vec<Token>,
}

/// The server's end of a worker's rings.
struct Pair {
    caller: Token,
    memory: PairMemory,
    requests: Receiver,
    completions: Sender,
    door: OwnedFd,
    bell: OwnedFd,
    client: u32,
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

struct Service {
    /// Above the pairs, whose memory it may use: dropped first, and waits for its requests.
    queue: Box<dyn IoQueue>,
    device: Arc<dyn SwapDevice>,
    clients: Arc<dyn Clients>,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    callers: HashMap<Token, Caller>,
    pairs: HashMap<Token, Pair>,
    active: Vec<Token>,
    tickets: InFlight<Ticket>,
    next: Token,
    completions: Vec<Completion>,
}

impl Service {
    fn new(
        device: Arc<dyn SwapDevice>,
        clients: Arc<dyn Clients>,
        shared: Arc<Shared>,
    ) -> Result<Self, DeviceError> {
        let queue = device.open_queue(DEPTH)?;
        let watched = watch(&shared.bell, queue.poll_fd());
        let name = &device.info().name;
        let epoll = watched.map_err(|errno| DeviceError::Queue { name: name.clone(), errno })?;
        Ok(Self {
            queue,
            device,
            clients,
            shared,
            epoll,
            callers: HashMap::new(),
            pairs: HashMap::new(),
            active: Vec::new(),
            tickets: InFlight::new(DEPTH),
            next: FIRST,
            completions: Vec::new(),
        })
    }

    fn run(mut self) {
        while self.attend().is_continue() {
            self.take_requests();
            self.queue.flush();
            self.complete();
        }
    }

    /// Waits until something is ready, unless there is work, and looks at what is.
    fn attend(&mut self) -> ControlFlow<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let at_once = (!self.active.is_empty()).then_some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        // After EINTR or any other error: look again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), at_once);
        for event in events {
            match event.data.u64() {
                NEWS => self.learn()?,
                DEVICE => {}
                token if self.callers.contains_key(&token) => self.answer(token),
                token => self.activate(token),
            }
        }
        ControlFlow::Continue(())
    }

    /// Takes the news.
    fn learn(&mut self) -> ControlFlow<()> {
        was_rung(&self.shared.bell);
        let mut news = self.shared.news.lock();
        let (arrived, is_over) = (std::mem::take(&mut news.arrived), news.is_over);
        drop(news);
        for socket in arrived {
            let token = self.token();
            let is_watched = self.watch(&socket, token).is_ok();
            self.callers.insert(token, Caller { socket, pairs: Vec::new() });
            if !is_watched {
                // It is closed, and its client told so by that.
                self.leave(token);
            }
        }
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn token(&mut self) -> Token {
        self.next += 1;
        self.next
    }

    fn watch(&self, fd: &OwnedFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
    }

    /// Answers one question of a caller, or notices its end.
    fn answer(&mut self, token: Token) {
        let mut message = [0; MESSAGE_BYTES + 1];
        let socket = &self.callers[&token].socket;
        let received = retry_on_intr(|| recv(socket, &mut message, RecvFlags::DONTWAIT));
        let answered = match received {
            Err(Errno::AGAIN) => Some(()),
            Ok((n, _)) => Ask::of(&message[..n]).and_then(|ask| self.answer_to(token, ask)),
            Err(_) => None,
        };
        if answered.is_none() {
            self.leave(token);
        }
    }

    /// None if the caller takes no answers.
    fn answer_to(&mut self, token: Token, ask: Ask) -> Option<()> {
        let (outcome, number) = match ask {
            Ask::Open { client } => match self.open(token, client) {
                Ok(sent) => return sent,
                Err(errno) => (Outcome::Failed(errno), 0),
            },
            Ask::Grow { slots } => {
                let grown = self.device.grow(slots);
                (Outcome::of(&grown), grown.unwrap_or(0))
            }
            Ask::Discard { first, slots } => (self.discard(first, slots), 0),
        };
        answer(self.callers[&token].socket.as_fd(), outcome, number, &[]).ok()
    }

    fn discard(&self, first: Slot, slots: u32) -> Outcome {
        let all = u64::from(self.device.info().slots_max);
        if u64::from(first.0) + u64::from(slots) > all {
            return Outcome::Failed(Errno::INVAL);
        }
        Outcome::of(&self.device.discard(first, slots))
    }

    /// Makes a pair and hands it over; none inside if the caller takes no answers.
    fn open(&mut self, token: Token, client: u32) -> Result<Option<()>, Errno> {
        if self.callers[&token].pairs.len() >= PAIRS_MAX {
            return Err(Errno::MFILE);
        }
        let (file, memory) = PairMemory::create()?;
        let (door, (heard, bell)) = (new_door()?, new_bell()?);
        let own = self.token();
        self.watch(&door, own)?;
        let (requests, completions) =
            (Receiver::new(memory.requests()), Sender::new(memory.completions()));
        // Both before the answer, because from then on there may be requests: the worker rings
        // from its first one on.
        if !self.clients.begin(client) {
            return Err(Errno::CONNRESET);
        }
        let _ = requests.may_sleep();
        let descriptors = [&file, &door, &heard].map(AsFd::as_fd);
        let socket = self.callers[&token].socket.as_fd();
        let sent = answer(socket, Outcome::Done, 0, &descriptors).ok();
        let pair = Pair {
            caller: token,
            memory,
            requests,
            completions,
            door,
            bell,
            client,
            in_flight: 0,
            is_active: false,
            is_gone: false,
        };
        self.pairs.insert(own, pair);
        self.callers.get_mut(&token).expect("it is asking").pairs.push(own);
        Ok(sent)
    }

    /// Forgets a caller that has ended, or that makes no sense.
    fn leave(&mut self, token: Token) {
        let Some(Caller { pairs, socket }) = self.callers.remove(&token) else { return };
        pairs.into_iter().for_each(|pair| self.close(pair));
        drop(socket);
        self.shared.news.lock().clients -= 1;
        self.shared.left.notify_all();
        self.clients.leave();
    }

    /// Takes no more requests of a pair, and forgets it when the last has ended.
    fn close(&mut self, token: Token) {
        let Some(pair) = self.pairs.get_mut(&token) else { return };
        pair.is_gone = true;
        if pair.in_flight > 0 {
            return;
        }
        // The worker may have the door open, and ring for ever.
        let _ = epoll::delete(&self.epoll, &pair.door);
        self.clients.end(pair.client);
        if let Some(caller) = self.callers.get_mut(&pair.caller) {
            caller.pairs.retain(|&pair| pair != token);
        }
        self.pairs.remove(&token);
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

/// Watches what is there from the beginning.
fn watch(bell: &OwnedFd, device: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let all = [(NEWS, Some(bell.as_fd())), (DEVICE, device)];
    for (token, fd) in all.into_iter().filter_map(|(token, fd)| Some((token, fd?))) {
        epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
    }
    Ok(epoll)
}
