//! The threads that serve faults.
//!
//! Owns: reading of messages, and what an address that was touched needs. Invariants: a reader is
//! pinned to each CPU: all that sleep on a userfaultfd are woken by a fault, and the one on the
//! toucher's CPU gets there first, without an interrupt to another CPU. What the page table says of
//! a page is the truth: one that is neither present nor marked is new, whatever it was before. Not
//! here: what happens to a page (`engine`). Rejected: one reader (23 000 faults a second of one
//! thread, 45 000 of two, where a reader on each CPU serves 80 000 and 190 000); following the
//! toucher by its CPU, which both then chase.

use crate::guest::{Ended, Guest, Owned};
use crate::keeper::Shared;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{PageNo, clock};
use overspill_engine::{FaultOutcome, Worker};
use overspill_guest::Vpn;
use overspill_guest::map::AtAddress;
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Fault, Message, Refusal, Userfault};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, OwnedFd};

/// How long a reader sleeps at most while something is in doubt, or waits for its turn.
const DOUBT_NS: i64 = 200_000;

/// What a touched address needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    /// The engine decides.
    Page(PageNo),
    /// Zeros, if it is registered and new.
    Zeros,
    /// Nothing: it is there.
    Nothing,
    /// To be asked again.
    Later,
    /// Its content is out, but nothing is known of it.
    Lost,
    /// A number, of which there are no more.
    NoNumber,
}

impl Shared {
    /// Serves all guests until told to stop. `ready` says which have messages.
    pub(crate) fn read(&self, worker: &mut Worker, ready: &OwnedFd) {
        worker.reclaims = true;
        while !self.must_stop() {
            let mut busy = false;
            for guest in self.ready(ready) {
                busy |= self.serve(worker, &guest);
            }
            busy |= worker.poll(&self.engine) > 0;
            if !busy {
                self.sleep(worker, ready);
            }
        }
        worker.finish(&self.engine);
    }

    /// Returns the guests that have messages, or faults that wait.
    fn ready(&self, ready: &OwnedFd) -> Vec<Arc<Guest>> {
        let mut events = Vec::with_capacity(16);
        let _ = epoll::wait(ready, rustix::buffer::spare_capacity(&mut events), Some(&ZERO));
        let guests = self.guests.lock();
        let has_message = |n: u64| events.iter().any(|event| event.data.u64() == n);
        let is_ready = |(n, guest): (&u64, &Arc<Guest>)| {
            (has_message(*n) || guest.has_waiting()).then(|| guest.clone())
        };
        guests.iter().filter_map(is_ready).collect()
    }

    fn sleep(&self, worker: &Worker, ready: &OwnedFd) {
        let mut fds = vec![
            PollFd::new(ready, PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        fds.extend(worker.poll_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let is_waiting = self.guests.lock().values().any(|guest| guest.has_waiting());
        let doubt = Timespec { tv_sec: 0, tv_nsec: DOUBT_NS };
        // After EINTR or any other error: look again.
        let _ = poll(&mut fds, is_waiting.then_some(&doubt));
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }

    /// Serves a guest until it has no message; true if it had any.
    fn serve(&self, worker: &mut Worker, guest: &Arc<Guest>) -> bool {
        let mut busy = false;
        while !guest.has_ended() {
            let mut owned = guest.hold();
            let message = guest.next(&mut owned);
            let Some(message) = message else {
                guest.settle(&mut owned);
                drop(owned);
                self.take_children(worker, guest);
                let waiting = guest.take_waiting(&mut guest.hold());
                self.serve_waiting(worker, guest, waiting);
                break;
            };
            drop(owned);
            busy = true;
            match message {
                Message::Fault(fault) => self.serve_fault(worker, guest, fault),
                Message::Event(_) | Message::Fork(_) => self.call_care(),
            }
        }
        if guest.has_ended() {
            self.call_care();
        }
        busy
    }

    fn serve_waiting(&self, worker: &mut Worker, guest: &Arc<Guest>, waiting: Vec<Fault>) {
        for fault in waiting {
            self.serve_fault(worker, guest, fault);
        }
    }

    fn serve_fault(&self, worker: &mut Worker, guest: &Arc<Guest>, fault: Fault) {
        let start_ns = clock::now_ns();
        loop {
            let mut owned = guest.hold();
            let mut need = self.need(guest, &mut owned, fault.at).unwrap_or(Need::Nothing);
            if need == Need::Later {
                guest.settle(&mut owned);
                need = self.need(guest, &mut owned, fault.at).unwrap_or(Need::Nothing);
            }
            match need {
                Need::Page(page) => {
                    drop(owned);
                    match self.engine.fault(worker, page, start_ns) {
                        // The guest gave the page up meanwhile.
                        FaultOutcome::Stray => continue,
                        FaultOutcome::OutOfMemory => self.out_of_memory(guest),
                        FaultOutcome::Mapped | FaultOutcome::Pending | FaultOutcome::Poisoned => {}
                    }
                }
                Need::Zeros => self.put_zeros(guest, &mut owned, fault),
                Need::Nothing => guest.userfault.wake(&fault.at.run(1)),
                Need::Later => guest.put_off(&mut owned, fault),
                Need::Lost => {
                    drop(owned);
                    self.lost(guest, fault.at);
                }
                Need::NoNumber => {
                    drop(owned);
                    self.out_of_memory(guest);
                }
            }
            return;
        }
    }

    fn need(&self, guest: &Arc<Guest>, owned: &mut Owned, at: Vpn) -> Result<Need, Ended> {
        if owned.is_forking() {
            return Ok(Need::Later);
        }
        let Some(known) = guest.known() else { return Ok(need_of_child(guest, owned, at)) };
        let entry = guest.entry(known, owned, at)?;
        Ok(match (owned.map.at(at), entry) {
            (AtAddress::Later, _) => Need::Later,
            (_, Entry::Present | Entry::Guarded) => Need::Nothing,
            (AtAddress::Page(page), Entry::Marked) => Need::Page(page),
            (AtAddress::Page(page), Entry::Nothing) if self.is_as_it_was(guest, page) => {
                Need::Page(page)
            }
            (AtAddress::Page(_), Entry::Nothing) => {
                if !guest.drop_gone(owned, &at.run(1)) {
                    return Ok(Need::Later);
                }
                self.call_care();
                self.bind(guest, owned, at)
            }
            (AtAddress::Unbound, Entry::Nothing) => self.bind(guest, owned, at),
            (AtAddress::Unknown, Entry::Nothing) => Need::Zeros,
            // Its content was removed, and the mark is about to be.
            (AtAddress::Unbound, Entry::Marked) if owned.map.is_doomed(&at.run(1)) => {
                self.bind(guest, owned, at)
            }
            // It may have come by a move of which the message is outstanding.
            (AtAddress::Unbound | AtAddress::Unknown, Entry::Marked)
                if owned.map.is_in_doubt() || guest.is_changing(&at.run(1)) =>
            {
                Need::Later
            }
            (AtAddress::Unbound | AtAddress::Unknown, Entry::Marked) => Need::Lost,
        })
    }

    /// True if a page that has neither memory nor a mark is what the engine takes it for: never
    /// touched, or out on a kernel without marks.
    fn is_as_it_was(&self, guest: &Guest, page: PageNo) -> bool {
        !guest.userfault.abilities().marks || self.engine.is_untouched(page)
    }

    fn bind(&self, guest: &Arc<Guest>, owned: &mut Owned, at: Vpn) -> Need {
        match owned.map.bind(at, &mut self.space.pieces.of(guest)) {
            Some(_) => match owned.map.at(at) {
                AtAddress::Page(page) => Need::Page(page),
                _ => Need::Later,
            },
            None => Need::NoNumber,
        }
    }

    /// Answers a touch of memory that nobody has registered yet, or that grew.
    fn put_zeros(&self, guest: &Arc<Guest>, owned: &mut Owned, fault: Fault) {
        let page = fault.at.run(1);
        match guest.userfault.zero(&page).stopped {
            None => self.call_care(),
            Some(Refusal::Changing | Refusal::NoMemory) => guest.put_off(owned, fault),
            Some(Refusal::Gone) => guest.ended(),
            // Where nothing is registered the touch finds out for itself.
            Some(Refusal::Present | Refusal::NoMapping) => guest.userfault.wake(&page),
            Some(why @ Refusal::Unexpected(_)) => {
                let line = format!("{}: zeros at {:?}: {why}", guest.name(), fault.at);
                self.space.report("filling a page", line);
                guest.userfault.wake(&page);
            }
        }
    }

    fn lost(&self, guest: &Guest, at: Vpn) {
        // Of a guest that has ended nothing is known any more, and nobody reads it.
        if guest.has_ended() {
            return;
        }
        if guest.is_lost() {
            // If it cannot be yet, the child touches it again, and so asks again.
            let _ = guest.userfault.poison(at);
            return guest.userfault.wake(&at.run(1));
        }
        let line = format!("{} is ended: its page at {at:?} is out, and lost", guest.name());
        self.space.report("a lost page", line);
        self.engine.stats().count(overspill_base::stats::Event::pages_lost);
        guest.kill();
    }

    fn out_of_memory(&self, guest: &Guest) {
        let why = self.engine.last_error().unwrap_or_else(|| "no page can be evicted".into());
        let line = format!("memory has run out, {} is ended: {why}", guest.name());
        self.space.report("memory has run out", line);
        self.out_of_memory.store(true, Relaxed);
        guest.kill();
    }
}

/// Of a child that is not attached to it is not known what is there. The kernel refuses to fill
/// what is not empty, so zeros are right where they can be put.
fn need_of_child(guest: &Guest, owned: &Owned, at: Vpn) -> Need {
    match owned.map.at(at) {
        _ if guest.is_lost() => Need::Lost,
        AtAddress::Later => Need::Later,
        AtAddress::Page(page) => Need::Page(page),
        AtAddress::Unbound | AtAddress::Unknown => Need::Zeros,
    }
}

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
