//! A thread's queue to an export, over several connections that come and go.
//!
//! Owns: which connection has a request, and the requests that none has.
//! Invariants: a request is with one connection or waits; those of a connection that fails are
//! repeated, in their order and before all newer ones. A request ends when a server has answered
//! it, when there is no connection and what was written is gone, or when the server has said
//! nothing for as long as the user wants to wait: whoever waits for a page is told then.
//!
//! A server that was cut off may still do what is repeated elsewhere, and even later: NBD has
//! nothing against that. If the slot has another page by then, its seal does not fit.

use super::Failure;
use super::connection::{Connection, Ended};
use super::connector::Connector;
use super::device::Target;
use super::patience::Patience;
use crate::failure::{News, State};
use overspill_device::{Completion, DeviceError, IoQueue, IoRequest, failed};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Events looked at in one round.
const EVENTS: usize = 32;
/// Not the number of a lane.
const NEWS: u64 = u64::MAX;
/// Neither.
const TIMER: u64 = u64::MAX - 1;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

pub(super) struct NbdQueue {
    target: Arc<Target>,
    /// Places for connections.
    lanes: Vec<Option<Lane>>,
    connector: Connector,
    /// None if the server is waited for as long as it takes.
    patience: Option<Patience>,
    news: News,
    /// With no connection, oldest first.
    waiting: VecDeque<IoRequest>,
    depth: usize,
    finished: Vec<Completion>,
    ended: Vec<Ended>,
    epoll: OwnedFd,
}

/// A connection, and what it is watched for.
struct Lane {
    connection: Connection,
    interest: PollFlags,
}

impl NbdQueue {
    /// A queue whose connections are yet to be made.
    pub(super) fn new(target: Arc<Target>, depth: u32) -> Result<Self, Errno> {
        let connector = Connector::start(target.clone())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &connector, EventData::new_u64(NEWS), EventFlags::IN)?;
        let patience = target.timeout.map(Patience::new).transpose()?;
        if let Some(timer) = &patience {
            epoll::add(&epoll, timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        }
        let news = News::new(&target.name, target.say);
        let lanes: Vec<_> = (0..target.connections).map(|_| None).collect();
        lanes.iter().for_each(|_| connector.want());
        Ok(Self {
            target,
            lanes,
            connector,
            patience,
            news,
            waiting: VecDeque::new(),
            depth: depth.max(1) as usize,
            finished: Vec::new(),
            ended: Vec::new(),
            epoll,
        })
    }

    fn flying(&self) -> usize {
        let up = self.lanes.iter().flatten();
        self.waiting.len() + up.map(|lane| lane.connection.in_flight()).sum::<usize>()
    }

    /// Gives waiting requests to the connections with the least to do; fails them if it is known
    /// that there will be none.
    fn assign(&mut self) {
        while let Some(request) = self.waiting.pop_front() {
            let up = self.lanes.iter_mut().flatten();
            match up.min_by_key(|lane| lane.connection.in_flight()) {
                Some(lane) => lane.connection.push(request),
                None => match self.news.state() {
                    State::Gone => self.end((request, Err(Errno::STALE))),
                    State::Silent => self.end((request, Err(Errno::TIMEDOUT))),
                    _ => return self.waiting.push_front(request),
                },
            }
        }
    }

    /// Gives up waiting, and the connections on which nothing came: what is asked next waits for
    /// new ones, or fails.
    fn give_up(&mut self) {
        self.news
            .turn(State::Silent, "it has said nothing within timeout=; what it is asked fails");
        let busy = |lane: &mut Lane| lane.connection.in_flight() > 0;
        let silent: Vec<Lane> =
            self.lanes.iter_mut().filter_map(|lane| lane.take_if(busy)).collect();
        for lane in silent {
            self.connector.want();
            self.waiting.extend(lane.connection.into_requests());
        }
        while let Some(request) = self.waiting.pop_front() {
            self.end((request, Err(Errno::TIMEDOUT)));
        }
    }

    /// Looks at what has happened, after waiting for something if `patience` is none.
    fn attend(&mut self, patience: Option<&Timespec>) {
        let mut events = Vec::with_capacity(EVENTS);
        // After EINTR or any other error: look again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), patience);
        let mut has_rung = false;
        for event in events {
            match event.data.u64() {
                NEWS => self.learn(),
                TIMER => has_rung = true,
                lane => self.serve(lane as usize),
            }
        }
        // What has come by now was said in time.
        if has_rung {
            self.look_at_timer();
        }
    }

    fn look_at_timer(&mut self) {
        let is_waiting = self.flying() > 0;
        if self.patience.as_mut().is_some_and(|patience| patience.is_over(is_waiting)) {
            self.give_up();
        }
    }

    /// Takes what has arrived on one connection, and sends what waits.
    fn serve(&mut self, number: usize) {
        let Some(lane) = &mut self.lanes[number] else { return };
        let received = lane.connection.receive(&mut self.ended);
        self.patience.iter_mut().filter(|_| !self.ended.is_empty()).for_each(Patience::renew);
        let mut ended = std::mem::take(&mut self.ended);
        ended.drain(..).for_each(|end| self.end(end));
        self.ended = ended;
        match received {
            Ok(()) => self.send(number),
            Err(failure) => self.lose(number, &failure),
        }
    }

    fn send(&mut self, number: usize) {
        let Some(lane) = &mut self.lanes[number] else { return };
        let sent = lane.connection.send().and_then(|()| watch(&self.epoll, number, lane));
        if let Err(failure) = sent {
            self.lose(number, &failure);
        }
    }

    fn end(&mut self, (request, result): Ended) {
        let Some(errno) = result.err() else {
            return self.finished.push(Completion { request, failures: Vec::new() });
        };
        let (name, op, slot) = (self.target.name.clone(), request.op, request.slot);
        let error = match errno {
            Errno::NOSPC => DeviceError::Full { name, size: self.target.size() },
            errno => DeviceError::Io { name, op, slot, errno },
        };
        self.finished.push(failed(request, &error));
    }

    /// Repeats what a connection has not done, and has another one made.
    fn lose(&mut self, number: usize, failure: &Failure) {
        let Some(lane) = self.lanes[number].take() else { return };
        // Closed by what follows, which removes it from the epoll as well.
        for request in lane.connection.into_requests().rev() {
            self.waiting.push_front(request);
        }
        self.connector.want();
        if self.lanes.iter().all(Option::is_none) {
            let wait = "its pages wait until it is back";
            self.news.turn(State::Lost, &format!("the connection is lost, and {wait}: {failure}"));
        }
        self.assign();
    }

    /// Takes the connections that were made, and the reasons why others were not.
    fn learn(&mut self) {
        let attempts: Vec<_> = self.connector.attempts().collect();
        for attempt in attempts {
            match attempt.and_then(|connection| self.take_up(connection)) {
                Ok(()) => self.news.turn(State::Up, "it is back"),
                Err(failure) if self.lanes.iter().all(Option::is_none) => self.heed(failure),
                Err(_) => {}
            }
        }
        self.assign();
    }

    /// Why there is still no connection.
    fn heed(&mut self, failure: Failure) {
        match failure {
            Failure::Broken(_) => {}
            Failure::Refused(why) => self.news.refuse(why),
            Failure::Gone(why) => self.news.turn(State::Gone, &why),
        }
    }

    fn take_up(&mut self, connection: Connection) -> Result<(), Failure> {
        let number = self.lanes.iter().position(Option::is_none).expect("no more than asked for");
        let interest = PollFlags::IN;
        let data = EventData::new_u64(number as u64);
        let added = epoll::add(&self.epoll, &connection, data, events_of(interest));
        if let Err(errno) = added {
            self.connector.want();
            return Err(Failure::Broken(errno.to_string()));
        }
        self.lanes[number] = Some(Lane { connection, interest });
        Ok(())
    }
}

/// Watches a connection for what it waits for now.
fn watch(epoll: &OwnedFd, number: usize, lane: &mut Lane) -> Result<(), Failure> {
    let wanted = lane.connection.interest();
    if lane.interest != wanted {
        let data = EventData::new_u64(number as u64);
        let modified = epoll::modify(epoll, &lane.connection, data, events_of(wanted));
        modified.map_err(std::io::Error::from)?;
        lane.interest = wanted;
    }
    Ok(())
}

fn events_of(interest: PollFlags) -> EventFlags {
    if interest.contains(PollFlags::OUT) {
        EventFlags::IN | EventFlags::OUT
    } else {
        EventFlags::IN
    }
}

impl IoQueue for NbdQueue {
    fn submit(&mut self, request: IoRequest) {
        if request.pages.is_empty() {
            return self.finished.push(Completion { request, failures: Vec::new() });
        }
        while self.flying() >= self.depth {
            self.flush();
            self.attend(None);
        }
        let is_first = self.flying() == 0;
        self.waiting.push_back(request);
        self.patience.iter_mut().for_each(|patience| patience.begin(is_first));
        self.assign();
    }

    fn flush(&mut self) {
        for number in 0..self.lanes.len() {
            if self.lanes[number].as_ref().is_some_and(|lane| lane.connection.is_sending()) {
                self.send(number);
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.attend(Some(&AT_ONCE));
        self.flush();
        done.append(&mut self.finished);
    }

    fn wait(&mut self) {
        while self.finished.is_empty() && self.flying() > 0 {
            self.flush();
            self.attend(None);
        }
    }

    fn in_flight(&self) -> usize {
        self.flying() + self.finished.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

impl Drop for NbdQueue {
    /// Waits as long as there is a server. What is in flight has no pages of ours in the kernel.
    fn drop(&mut self) {
        while self.flying() > 0 && self.lanes.iter().any(Option::is_some) {
            self.wait();
            self.finished.clear();
        }
        self.lanes.drain(..).flatten().for_each(|lane| lane.connection.take_leave());
    }
}
