//! Serving of faults.
//!
//! Owns: the order of messages, and what an address that was touched needs.
//! Invariant: what the page table says of a page is the truth: one that is neither present nor
//! marked is new, whatever it was before.
//! Not here: waiting for messages (`read`), what happens to a page (`engine`).

use crate::guest::events::Ended;
use crate::guest::source::Told;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use crate::serve::shared::Shared;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, MutexGuard};
use overspill_base::{Bytes, PageNo, clock};
use overspill_engine::{FaultOutcome, Worker};
use overspill_guest::Vpn;
use overspill_guest::map::AtAddress;
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Fault, Message, Refusal};

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
    /// Serves the fault of a guest that has messages, and applies those before it; returns how many
    /// there were. If there is another one, the readers hear of it.
    pub(crate) fn serve(&self, worker: &mut Worker, guest: &Arc<Guest>) -> u32 {
        let mut messages = 0;
        while !guest.has_ended() {
            let start_ns = clock::now_ns();
            let mut owned = guest.hold();
            match guest.next(&mut owned) {
                Some(Message::Fault(fault)) => {
                    self.serve_fault(worker, guest, owned, (fault, start_ns));
                    return messages + 1;
                }
                Some(_) => messages += 1,
                None => {
                    let has_turns = !owned.turns.is_empty();
                    drop(owned);
                    if messages > 0 || has_turns {
                        self.settle(worker, guest);
                    }
                    return messages;
                }
            }
        }
        self.call_care();
        messages
    }

    /// Settles what is in doubt of a guest, and serves the faults that wait for that.
    pub(crate) fn settle(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        self.take_children(worker, guest);
        let mut owned = guest.hold();
        guest.catch_up(&mut owned);
        let waiting = guest.take_waiting(&mut owned);
        let has_turns = !owned.turns.is_empty();
        drop(owned);
        if has_turns {
            self.begin_turns(guest);
        }
        self.serve_waiting(worker, guest, waiting);
        self.call_care();
    }

    fn serve_waiting(&self, worker: &mut Worker, guest: &Arc<Guest>, waiting: Vec<Fault>) {
        for fault in waiting {
            let start_ns = clock::now_ns();
            self.serve_fault(worker, guest, guest.hold(), (fault, start_ns));
        }
    }

    /// What a fault needs is decided under the hold under which it was read, or a later one.
    fn serve_fault<'g>(
        &self,
        worker: &mut Worker,
        guest: &'g Arc<Guest>,
        mut owned: MutexGuard<'g, Owned>,
        (fault, start_ns): (Fault, u64),
    ) {
        loop {
            let mut need = self.need(guest, &mut owned, fault.at).unwrap_or(Need::Nothing);
            if need == Need::Later {
                guest.settle(&mut owned);
                need = self.need(guest, &mut owned, fault.at).unwrap_or(Need::Nothing);
            }
            match need {
                Need::Page(page) => {
                    drop(owned);
                    match self.engine.fault(worker, page, start_ns) {
                        // The guest has ended, and nobody waits any more.
                        FaultOutcome::Stray if guest.has_ended() => {}
                        // It gave the page up meanwhile.
                        FaultOutcome::Stray => {
                            owned = guest.hold();
                            continue;
                        }
                        FaultOutcome::OutOfMemory => self.no_page(guest, fault),
                        FaultOutcome::Mapped | FaultOutcome::Pending | FaultOutcome::Poisoned => {
                            self.shortage.is_over();
                            self.bring_around(worker, guest, fault.at);
                        }
                    }
                }
                Need::Zeros => self.put_zeros(guest, &mut owned, fault),
                Need::Nothing => guest.source.wake(&fault.at.run(1)),
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

    /// Brings what has to come with a page so that mappings do not become too many.
    fn bring_around(&self, worker: &mut Worker, guest: &Guest, at: Vpn) {
        for at in guest.source.comes_along(at).iter().flat_map(Vpn::each) {
            let here = guest.hold().map.at(at);
            if let AtAddress::Page(page) = here
                && self.engine.fault(worker, page, clock::now_ns()) == FaultOutcome::OutOfMemory
            {
                return;
            }
        }
    }

    fn need(&self, guest: &Arc<Guest>, owned: &mut Owned, at: Vpn) -> Result<Need, Ended> {
        if owned.is_forking() {
            return Ok(Need::Later);
        }
        if guest.source.has_waited() && guest.handles().is_none() {
            self.is_unreachable(guest);
        }
        let here = owned.map.at(at);
        match guest.source.told(at, here == AtAddress::Later, &|| is_guarded(guest, at)) {
            Ok(Told::LookThere) => {}
            Ok(told) => return Ok(need_of_told(told, here)),
            Err(why) => {
                self.space.end_of_agent(guest, &why);
                return Ok(Need::Nothing);
            }
        }
        let Some(handles) = guest.handles() else {
            let is_doomed = here == AtAddress::Unbound && owned.map.is_doomed(&at.run(1));
            return Ok(match need_of_child(guest, owned, at) {
                // A mark of what was being dropped when it was forked, which zeros do not replace.
                Need::Zeros if is_doomed => self.bind(guest, owned, at),
                need => need,
            });
        };
        if let AtAddress::Page(page) = here
            && self.engine.is_out(page)
        {
            // The page table is looked at before it is filled.
            return Ok(Need::Page(page));
        }
        let entry = guest.entry(handles, owned, at)?;
        Ok(match (here, entry) {
            (AtAddress::Later, _) => Need::Later,
            (_, Entry::Present | Entry::Guarded) => Need::Nothing,
            (AtAddress::Page(page), Entry::Marked) => Need::Page(page),
            (AtAddress::Page(page), Entry::Nothing) if self.engine.is_untouched(page) => {
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

    fn bind(&self, guest: &Arc<Guest>, owned: &mut Owned, at: Vpn) -> Need {
        let new = guest.bindable(owned, at);
        match owned.map.bind(at, &new, &mut self.space.pieces.of(guest)) {
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
        match guest.source.zero(&page).stopped {
            None => self.call_care(),
            Some(Refusal::Changing | Refusal::NoMemory) => guest.put_off(owned, fault),
            Some(Refusal::Gone) => guest.ended(),
            // Where nothing is registered the touch finds out for itself.
            Some(Refusal::Present | Refusal::NoMapping) => guest.source.wake(&page),
            Some(why @ Refusal::Unexpected(_)) => {
                let line = format!("{}: zeros at {:?}: {why}", guest.name(), fault.at);
                self.space.report("filling a page", line);
                guest.source.wake(&page);
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
            let _ = guest.source.poison(at);
            return guest.source.wake(&at.run(1));
        }
        let line = format!("{} is ended: its page at {at:?} is out, and lost", guest.name());
        self.space.report("a lost page", line);
        self.engine.stats().count(overspill_base::stats::Event::pages_lost);
        guest.kill();
    }

    /// A forked child waits for a page, and for somebody who could bring it: a debugger may have
    /// it.
    fn is_unreachable(&self, guest: &Guest) {
        if !guest.is_lost() {
            let line = format!(
                "{} is ended: it waits for a page, and nobody can attach to it",
                guest.name()
            );
            self.space.report("a forked child", line);
            guest.kill();
        }
    }

    /// There is no page for a fault now.
    fn no_page(&self, guest: &Guest, fault: Fault) {
        let has_children = self.guests.lock().values().any(|guest| guest.handles().is_none());
        match self.shortage.lasts(has_children) {
            true => self.out_of_memory(guest),
            false => guest.put_off(&mut guest.hold(), fault),
        }
    }

    /// Ends a guest that touched a page for which there is none. The others wait for what it has.
    fn out_of_memory(&self, guest: &Guest) {
        let why = self.engine.last_error().unwrap_or_else(|| "no page can be moved out".into());
        let limit = Bytes::of_pages(self.limit_pages() as u64);
        let name = guest.name();
        let line = format!("out of memory, {name} killed: the limit of {limit} is full, and {why}");
        self.space.report("out of memory", line);
        self.out_of_memory.store(true, Relaxed);
        guest.kill();
        self.shortage.is_over();
    }
}

/// What a fault needs of which its source knows all.
fn need_of_told(told: Told, here: AtAddress) -> Need {
    match (told, here) {
        (Told::LookThere | Told::Settled, _) => Need::Nothing,
        (Told::Later, _) | (Told::Out, AtAddress::Later) => Need::Later,
        (Told::Out, AtAddress::Page(page)) => Need::Page(page),
        (Told::Out, AtAddress::Unbound | AtAddress::Unknown) => Need::Lost,
    }
}

/// True if a touch of a page raises SIGSEGV whatever its mapping allows, as far as the page table
/// tells (Linux 6.15).
fn is_guarded(guest: &Guest, at: Vpn) -> bool {
    guest.handles().is_some_and(|handles| handles.process.at(at) == Ok(Entry::Guarded))
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
