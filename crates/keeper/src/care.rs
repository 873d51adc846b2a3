//! Looking after guests: what changes without a fault.
//!
//! Owns: the thread that adopts what was in memory before it was registered, has the engine discard
//! what guests gave up, and ends guests that have ended.
//! Not here: faults (`serve`), new mappings (`survey`).

use crate::guest::Guest;
use crate::keeper::Shared;
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
            let guests: Vec<Arc<Guest>> = self.guests.lock().values().cloned().collect();
            for guest in &guests {
                self.care_for_one(worker, guest);
                self.take_children(guest);
            }
            self.care_for_children();
            worker.finish(&self.engine);
            let is_idle = guests.is_empty() && self.children.is_empty();
            self.wait_for_care(if is_idle { None } else { Some(INTERVAL) });
        }
    }

    fn care_for_one(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        if guest.has_ended() {
            guest.hold().map.end();
            self.discard_forgotten(worker, guest);
            self.remove(guest);
            return;
        }
        self.adopt_new(worker, guest);
        self.look_at_doomed(guest);
        self.discard_forgotten(worker, guest);
    }

    /// Has the engine discard pages that the guest gave up, and takes their numbers back.
    pub(crate) fn discard_forgotten(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        let forgotten = guest.hold().map.take_forgotten();
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
    fn look_at_doomed(&self, guest: &Guest) {
        let mut owned = guest.hold();
        let doomed: Vec<_> = owned.map.doomed().cloned().collect();
        for place in doomed {
            let mut gone = Vec::new();
            let looked = guest.pagemap.runs(&place, |run, entry| {
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
    fn adopt_new(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        loop {
            let mut owned = guest.hold();
            let new = owned.take_new();
            if new.is_empty() {
                return guest.brake(&mut owned, false);
            }
            drop(owned);
            self.adopt(worker, guest, new);
        }
    }

    fn adopt(&self, worker: &mut Worker, guest: &Arc<Guest>, present: Vec<Range<Vpn>>) {
        for run in present {
            let mut at = run.start;
            while at < run.end {
                let extent = self.bound_at(guest, at, run.end);
                let Some(extent) = extent else { break };
                let is_present = |numbers: Range<PageNo>| self.are_present(guest, &numbers);
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

    /// Which of up to 64 pages are in memory, the first with the lowest bit.
    fn are_present(&self, guest: &Guest, numbers: &Range<PageNo>) -> u64 {
        let owned = guest.hold();
        let mut present = 0;
        for n in 0..numbers.end.0 - numbers.start.0 {
            if let Whereabouts::At(at) = owned.map.find(numbers.start.plus(n as usize))
                && guest.pagemap.at(at) == Ok(Entry::Present)
            {
                present |= 1 << n;
            }
        }
        present
    }
}
