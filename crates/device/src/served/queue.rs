//! A worker's queue to a served device.
//!
//! Owns: the requests in flight, and which of the shared pages they have.
//! Invariants: a page on its way is a copy, so the server never sees the submitter's. After a fork
//! the rings belong to the parent alone. Where one request at a time is in flight nothing is
//! allocated, so it can be made in a signal handler.
//! Not here: what the server does.

use super::control::Pair;
use super::words::{Ended, FLIGHTS, Outcome, Request};
use crate::buffers::Buffers;
use crate::error::DeviceError;
use crate::{Completion, DeviceInfo, IoOp, IoQueue, IoRequest, MAX_REQUEST_PAGES, failed};
use overspill_base::Bytes;
use overspill_base::ring::{Receiver, Sender};
use overspill_base::shared::PageBuf;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(super) struct ServedQueue {
    name: String,
    size: Bytes,
    requests: Sender,
    completions: Receiver,
    door: OwnedFd,
    bell: OwnedFd,
    /// The bell was rung, or is about to be, since it was last found rung.
    is_bell_due: bool,
    buffers: Buffers,
    flights: Box<[Option<Flight>]>,
    idle: Vec<u8>,
    finished: Vec<Completion>,
    /// For the next request.
    spare: Vec<PageBuf>,
    owner: Pid,
}

/// A request, and the shared pages it has.
struct Flight {
    request: IoRequest,
    pages: Vec<PageBuf>,
}

impl ServedQueue {
    pub(super) fn new(pair: Pair, info: &DeviceInfo, depth: u32) -> Self {
        let Pair { memory, door, bell } = pair;
        let flights = (depth.max(1) as usize).min(FLIGHTS);
        Self {
            name: info.name.clone(),
            size: info.capacity(),
            requests: Sender::new(memory.requests()),
            completions: Receiver::new(memory.completions()),
            door,
            bell,
            is_bell_due: false,
            buffers: Buffers::of(memory.pages(), MAX_REQUEST_PAGES),
            flights: (0..flights).map(|_| None).collect(),
            idle: (0..flights).rev().map(|flight| flight as u8).collect(),
            finished: Vec::with_capacity(flights),
            spare: Vec::with_capacity(MAX_REQUEST_PAGES),
            owner: getpid(),
        }
    }

    fn flying(&self) -> usize {
        self.flights.len() - self.idle.len()
    }

    /// Takes shared pages for a request, after waiting for them.
    fn take_pages(&mut self, pages: usize) -> Vec<PageBuf> {
        let mut taken = std::mem::take(&mut self.spare);
        while !self.buffers.take(pages, &mut taken) {
            self.await_some();
        }
        taken
    }

    /// Takes everything that has completed, and has the server ring for what comes next.
    fn collect(&mut self) {
        let finished_before = self.finished.len();
        loop {
            while let Some(word) = self.completions.take() {
                self.complete(Ended::of(word));
            }
            self.is_bell_due |= self.completions.is_awake();
            let waits_in_vain = self.flying() > 0 && self.finished.len() == finished_before;
            let mut heard = Heard::Nothing;
            let may_sleep = self.completions.may_sleep_silenced(|| {
                if self.is_bell_due || waits_in_vain {
                    heard = listen(&self.bell);
                }
            });
            match heard {
                Heard::Bell => self.is_bell_due = false,
                Heard::Nothing => {}
                Heard::End => self.give_up(),
            }
            if may_sleep {
                return;
            }
        }
    }

    /// The server has ended, and with it the requests that it had.
    fn give_up(&mut self) {
        for flight in 0..self.flights.len() {
            let outcome = Outcome::Failed(Errno::PIPE);
            self.complete(Ended { flight: flight as u8, outcome });
        }
    }

    fn complete(&mut self, Ended { flight, outcome }: Ended) {
        let place = self.flights.get_mut(usize::from(flight));
        let Some(Flight { mut request, mut pages }) = place.and_then(Option::take) else {
            // The server has answered what nobody asked.
            return;
        };
        self.idle.push(flight);
        if request.op == IoOp::Read && outcome == Outcome::Done {
            for (page, shared) in request.pages.iter_mut().zip(&pages) {
                page.copy_from_slice(shared);
            }
        }
        pages.drain(..).for_each(|page| self.buffers.give(&page));
        if self.spare.capacity() < pages.capacity() {
            self.spare = pages;
        }
        self.finished.push(match outcome {
            Outcome::Done => Completion { request, failures: Vec::new() },
            other => {
                let error = self.error(&request, other);
                failed(request, &error)
            }
        });
    }

    fn error(&self, request: &IoRequest, outcome: Outcome) -> DeviceError {
        let (name, op, slot) = (self.name.clone(), request.op, request.slot);
        match outcome {
            Outcome::Full => DeviceError::Full { name, size: self.size },
            Outcome::Short => DeviceError::Short { name, op, slot },
            other => DeviceError::Io { name, op, slot, errno: other.errno() },
        }
    }

    /// Waits for a completion, and takes all there are.
    fn await_some(&mut self) {
        self.flush();
        self.collect();
        if self.finished.is_empty() && self.flying() > 0 {
            // After EINTR or any other error: look again.
            let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], None);
            self.collect();
        }
    }
}

/// Makes a bell silent; false if it was not rung.
pub(super) fn was_rung(bell: &OwnedFd) -> bool {
    listen(bell) == Heard::Bell
}

/// What a worker hears.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    Bell,
    /// There is nobody who would ring.
    End,
}

fn listen(bell: &OwnedFd) -> Heard {
    match rustix::io::read(bell, &mut [0u8; 8]) {
        Ok(0) => Heard::End,
        Ok(_) => Heard::Bell,
        Err(_) => Heard::Nothing,
    }
}

/// Rings a bell, once or again.
pub(super) fn ring(bell: &OwnedFd) {
    // A bell that cannot count further is rung already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl IoQueue for ServedQueue {
    fn submit(&mut self, request: IoRequest) {
        if request.pages.is_empty() {
            self.finished.push(Completion { request, failures: Vec::new() });
            return;
        }
        while self.idle.is_empty() {
            self.await_some();
        }
        let mut pages = self.take_pages(request.pages.len());
        if request.op == IoOp::Write {
            for (shared, page) in pages.iter_mut().zip(&request.pages) {
                shared.copy_from_slice(page);
            }
        }
        let flight = self.idle.pop().expect("just made sure of");
        let first = self.buffers.index_of(&pages[0]);
        let (op, slot, run) = (request.op, request.slot, first..first + pages.len());
        self.requests.send(Request::Transfer { flight, op, pages: run, slot }.word());
        self.flights[usize::from(flight)] = Some(Flight { request, pages });
    }

    fn flush(&mut self) {
        if self.requests.must_wake() {
            ring(&self.door);
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.collect();
        done.append(&mut self.finished);
    }

    fn wait(&mut self) {
        while self.finished.is_empty() && self.flying() > 0 {
            self.await_some();
        }
    }

    fn set_window(&mut self, pages: usize) {
        self.buffers.set_usual(pages.max(MAX_REQUEST_PAGES));
    }

    fn in_flight(&self) -> usize {
        self.flying() + self.finished.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }
}

impl Drop for ServedQueue {
    fn drop(&mut self) {
        if getpid() != self.owner {
            return;
        }
        while self.flying() > 0 {
            self.await_some();
            self.finished.clear();
        }
        self.requests.send(Request::Close.word());
        self.flush();
    }
}
