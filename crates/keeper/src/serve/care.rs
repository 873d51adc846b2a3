//! Looking after guests: what changes without a fault.
//!
//! Owns: the thread that adopts what was in memory before it was registered, has the engine discard
//! what guests gave up, and ends guests that have ended.
//! Not here: faults (`serve`), new mappings (`survey`), what a child gets (`forks`).

use crate::guest::handles::Handles;
use crate::guest::state::Guest;
use crate::serve::shared::Shared;
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use overspill_engine::Worker;
use overspill_guest::Vpn;
use overspill_guest::map::{Extent, Whereabouts};
use overspill_guest::pagemap::Entry;
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// How often the mappings of guests are looked at.
const INTERVAL: Duration = Duration::from_millis(2);
/// How long a guest is held because there is no room for what it has.
const PATIENCE: Duration = Duration::from_secs(2);

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

    pub(crate) fn care_for_one(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        self.take_children(worker, guest);
        let handles = guest.handles();
        if handles.is_none() && guest.is_over() {
            guest.ended();
        }
        if guest.has_ended() {
            return self.end(worker, guest);
        }
        if let Some(handles) = handles {
            self.adopt_new(worker, guest, handles);
            self.look_at_doomed(guest, handles);
            self.stand_still_if_needed(guest, handles);
            self.see_to_locked(guest, handles);
        }
        self.discard_forgotten(worker, guest);
    }

    /// Forgets a guest, when the children that it has forked have their pages.
    fn end(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        let mut owned = guest.hold();
        if owned.is_forking_after_end() {
            return;
        }
        owned.map.end();
        drop(owned);
        self.discard_forgotten(worker, guest);
        self.remove(guest);
        if guest.handles().is_none() {
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
    fn look_at_doomed(&self, guest: &Guest, handles: &Handles) {
        let mut owned = guest.hold();
        let doomed: Vec<_> = owned.map.doomed().cloned().collect();
        for place in doomed {
            let mut gone = Vec::new();
            let looked = handles.process.runs(&place, &mut |run, entry| {
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

    /// Has the engine take what is in memory of mappings that are believed since it did so last. A
    /// guest that is held stays so while there is no room for that, but not for good.
    fn adopt_new(&self, worker: &mut Worker, guest: &Arc<Guest>, handles: &Handles) {
        let mut new = guest.hold().take_new();
        while !new.is_empty() {
            let rest = self.adopt(worker, (guest, handles), new);
            if !rest.is_empty() {
                if guest.hold().add_new_again(rest) < PATIENCE {
                    return;
                }
                break;
            }
            new = guest.hold().take_new();
        }
        guest.threads.go_on();
    }

    /// Returns what is left of it if there is no frame now, or it is not known where it lies.
    fn adopt(
        &self,
        worker: &mut Worker,
        (guest, handles): (&Arc<Guest>, &Handles),
        present: Vec<Range<Vpn>>,
    ) -> Vec<Range<Vpn>> {
        let mut runs = present.into_iter();
        while let Some(run) = runs.next() {
            let mut at = run.start;
            while at < run.end {
                let place = at..run.end;
                match self.bound_at(guest, &place) {
                    Bound::Extent(extent)
                        if self.adopt_extent(worker, (guest, handles), extent) =>
                    {
                        at = extent.place().end;
                    }
                    Bound::Extent(_) | Bound::Later => {
                        return [place].into_iter().chain(runs).collect();
                    }
                    Bound::Nothing => break,
                }
            }
        }
        Vec::new()
    }

    /// True if the engine has all of it that is in memory.
    fn adopt_extent(
        &self,
        worker: &mut Worker,
        (guest, handles): (&Guest, &Handles),
        extent: Extent,
    ) -> bool {
        let (pages, is_in_doubt) = (extent.pages as usize, Cell::new(false));
        let is_present =
            |numbers: Range<PageNo>| are_present(guest, handles, &numbers, &is_in_doubt);
        self.engine.adopt(worker, extent.first, pages, is_present) == pages && !is_in_doubt.get()
    }

    /// Returns what is bound from the start of `place` on; binds it if nothing is.
    fn bound_at(&self, guest: &Arc<Guest>, place: &Range<Vpn>) -> Bound {
        let mut owned = guest.hold();
        if owned.is_leaving {
            return Bound::Nothing;
        }
        if owned.map.must_hold_threads() {
            return Bound::Later;
        }
        let is_unbound = owned.map.bound(place.start.run(1)).next().is_none();
        if is_unbound {
            let new = guest.bindable(&owned, place.start);
            let mut pieces = self.space.pieces.of(guest);
            if owned.map.bind(place.start, &new, &mut pieces).is_none() {
                return Bound::Nothing;
            }
        }
        owned.map.bound(place.clone()).next().map_or(Bound::Nothing, Bound::Extent)
    }
}

/// What is bound at an address.
enum Bound {
    Extent(Extent),
    /// That is in doubt.
    Later,
    /// Nothing, and nothing can be.
    Nothing,
}

/// Which of up to 64 pages are in memory, the first with the lowest bit; says if that is in doubt.
fn are_present(
    guest: &Guest,
    handles: &Handles,
    numbers: &Range<PageNo>,
    is_in_doubt: &Cell<bool>,
) -> u64 {
    let owned = guest.hold();
    let mut present = 0;
    for n in 0..numbers.end.0 - numbers.start.0 {
        match owned.map.find(numbers.start.plus(n as usize)) {
            Whereabouts::At(at) if handles.process.at(at) == Ok(Entry::Present) => {
                present |= 1 << n;
            }
            Whereabouts::At(_) | Whereabouts::Nowhere => {}
            Whereabouts::Later => is_in_doubt.set(true),
        }
    }
    present
}
