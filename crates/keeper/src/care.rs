//! Looking after guests: what changes without a fault.
//!
//! Owns: the thread that adopts what was in memory before it was registered, has the engine discard
//! what guests gave up, and ends guests that have ended.
//! Not here: faults (`serve`), new mappings (`survey`), what a child gets (`forks`).

use crate::guest::Guest;
use crate::keeper::Shared;
use crate::known::Known;
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use overspill_engine::Worker;
use overspill_guest::Vpn;
use overspill_guest::map::{Extent, Whereabouts};
use overspill_guest::pagemap::Entry;
use std::ops::Range;
use std::time::Duration;

/// How often the mappings of guests are looked at.
const INTERVAL: Duration = Duration::from_millis(2);

impl Shared {
    /// Looks after all guests until told to stop.
    pub(crate) fn care(&self, worker: &mut Worker) {
        while !self.must_stop() {
            let guests = self.all_guests();
            for guest in &guests {
                self.care_for_one(worker, guest);
            }
            worker.finish(&self.engine);
            self.care.wait(if guests.is_empty() { None } else { Some(INTERVAL) });
        }
    }

    fn care_for_one(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        self.take_children(worker, guest);
        let known = guest.known();
        if known.is_none() && guest.is_over() {
            guest.ended();
        }
        if guest.has_ended() {
            return self.end(worker, guest);
        }
        if let Some(known) = known {
            self.adopt_new(worker, guest, known);
            self.look_at_doomed(guest, known);
            self.stand_still_if_needed(guest, known);
        }
        self.discard_forgotten(worker, guest);
    }

    /// Forgets a guest, when the children that it has forked have their pages.
    fn end(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        let mut owned = guest.hold();
        if owned.is_forking() {
            return;
        }
        owned.map.end();
        drop(owned);
        self.discard_forgotten(worker, guest);
        self.remove(guest);
        if guest.known().is_none() {
            self.front.gone(guest.number);
        }
    }

    /// Has the engine discard pages that the guest gave up, and takes their numbers back.
    pub(crate) fn discard_forgotten(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        let mut owned = guest.hold();
        // A child that was forked before may be about to get them.
        if owned.is_forking() {
            return;
        }
        let forgotten = owned.map.take_forgotten();
        drop(owned);
        if !forgotten.is_empty() {
            // A page may be locked by a read that this worker has to end.
            worker.finish(&self.engine);
        }
        for numbers in forgotten {
            let pages = numbers.end.index() - numbers.start.index();
            self.engine.discard(numbers.start, pages);
            guest.hold().map.release(numbers, &mut self.space.pieces.of(guest));
        }
    }

    /// Notes which pages are gone of those whose content was being removed.
    fn look_at_doomed(&self, guest: &Guest, known: &Known) {
        let mut owned = guest.hold();
        let doomed: Vec<_> = owned.map.doomed().cloned().collect();
        for place in doomed {
            let mut gone = Vec::new();
            let looked = known.pagemap.runs(&place, |run, entry| {
                if entry == Entry::Nothing {
                    gone.push(run);
                }
            });
            if looked.is_err() {
                guest.ended();
            } else if !guest.is_changing(&place) {
                gone.into_iter().for_each(|run| owned.map.seen_new(run));
            }
        }
    }

    /// Has the engine take what is in memory of mappings that are believed since it did so last.
    fn adopt_new(&self, worker: &mut Worker, guest: &Arc<Guest>, known: &Known) {
        loop {
            let mut owned = guest.hold();
            let new = owned.take_new();
            if new.is_empty() {
                return guest.threads.go_on();
            }
            drop(owned);
            self.adopt(worker, (guest, known), new);
        }
    }

    fn adopt(
        &self,
        worker: &mut Worker,
        (guest, known): (&Arc<Guest>, &Known),
        present: Vec<Range<Vpn>>,
    ) {
        for run in present {
            let mut at = run.start;
            while at < run.end {
                let extent = self.bound_at(guest, at, run.end);
                let Some(extent) = extent else { break };
                let is_present = |numbers: Range<PageNo>| are_present(guest, known, &numbers);
                let pages = extent.pages as usize;
                self.engine.adopt(worker, extent.first, pages, is_present);
                at = extent.place().end;
            }
        }
    }

    /// Returns what is bound from `at` on, up to `end`; binds it if nothing is.
    fn bound_at(&self, guest: &Arc<Guest>, at: Vpn, end: Vpn) -> Option<Extent> {
        let mut owned = guest.hold();
        if owned.map.must_hold_threads() {
            return None;
        }
        if owned.map.bound(at.run(1)).next().is_none() {
            owned.map.bind(at, &mut self.space.pieces.of(guest))?;
        }
        owned.map.bound(at..end).next()
    }
}

/// Which of up to 64 pages are in memory, the first with the lowest bit.
fn are_present(guest: &Guest, known: &Known, numbers: &Range<PageNo>) -> u64 {
    let owned = guest.hold();
    let mut present = 0;
    for n in 0..numbers.end.0 - numbers.start.0 {
        if let Whereabouts::At(at) = owned.map.find(numbers.start.plus(n as usize))
            && known.pagemap.at(at) == Ok(Entry::Present)
        {
            present |= 1 << n;
        }
    }
    present
}
