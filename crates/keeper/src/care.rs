//! Looking after guests: what changes without a fault.
//!
//! Owns: the thread that registers new mappings, adopts what is in memory already, has the engine
//! discard what guests gave up, and ends guests that have ended.
//! Invariant: a mapping is believed as [`SpaceMap::believe`](overspill_guest::map::SpaceMap) asks,
//! under one hold of its guest.
//! Not here: faults (`serve`).

use crate::guest::{Guest, Owned};
use crate::keeper::Shared;
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use overspill_engine::Worker;
use overspill_guest::Vpn;
use overspill_guest::map::{Extent, Look, Whereabouts};
use overspill_guest::mappings::{self, Mapping};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Message, Userfault};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::ops::Range;
use std::time::Duration;

/// How often the mappings of guests are looked at.
const INTERVAL: Duration = Duration::from_millis(2);
/// How often a guest that changes is asked whether new mappings stand still.
const PATIENCE: u32 = 50;

impl Shared {
    /// Looks after all guests until told to stop.
    pub(crate) fn care(&self, worker: &mut Worker) {
        while !self.must_stop() {
            let guests: Vec<Arc<Guest>> = self.guests.lock().values().cloned().collect();
            for guest in &guests {
                self.care_for_one(worker, guest);
            }
            worker.finish(&self.engine);
            self.wait_for_care(if guests.is_empty() { None } else { Some(INTERVAL) });
        }
    }

    fn care_for_one(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        if guest.has_ended() {
            guest.hold().map.end();
            self.discard_forgotten(worker, guest);
            self.remove(guest);
            return;
        }
        let believed = self.survey(guest);
        for place in believed {
            self.adopt(worker, guest, &place);
        }
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
            let looked = guest.pagemap.runs(&place, |run, entry| {
                if entry == Entry::Nothing {
                    owned.map.seen_new(run);
                }
            });
            if looked.is_err() {
                guest.ended();
            }
        }
    }

    /// Registers mappings that are new; returns what is believed now, and was not.
    fn survey(&self, guest: &Guest) -> Vec<Range<Vpn>> {
        let mut owned = guest.hold();
        guest.catch_up(&mut owned);
        if guest.has_ended() {
            return Vec::new();
        }
        let surveyed = self.survey_held(guest, &mut owned);
        surveyed.unwrap_or_else(|_| {
            guest.ended();
            Vec::new()
        })
    }

    fn survey_held(&self, guest: &Guest, owned: &mut Owned) -> Result<Vec<Range<Vpn>>, Errno> {
        if self.new_mappings(guest, owned, &guest.maps, mappings::parse_list)?.is_empty() {
            return Ok(Vec::new());
        }
        let mut new = self.new_mappings(guest, owned, &guest.smaps, mappings::parse)?;
        new.retain(|(mapping, unknown)| {
            let is_registered = guest.may_register(&mapping.place)
                && guest.userfault.register(&mapping.place).is_ok();
            if is_registered {
                unknown.iter().for_each(|place| owned.map.doubt(place.clone()));
            }
            is_registered
        });
        let again = mappings::parse_list(&text(&guest.maps)?);
        new.retain(|(mapping, _)| {
            let covers = |other: &Mapping| {
                other.place.start <= mapping.place.start && mapping.place.end <= other.place.end
            };
            again.iter().any(|other| other.is_pageable && covers(other))
        });
        Ok(self.believe(guest, owned, new))
    }

    /// Believes the mappings of which no message is outstanding, nor read meanwhile.
    fn believe(
        &self,
        guest: &Guest,
        owned: &mut Owned,
        mut new: Vec<(Mapping, Vec<Range<Vpn>>)>,
    ) -> Vec<Range<Vpn>> {
        let mut believed = Vec::new();
        for _ in 0..PATIENCE {
            new.retain(|(mapping, unknown)| match guest.userfault.look(&mapping.place) {
                Ok(Look::Changing) => true,
                Ok(Look::Registered) => {
                    unknown.iter().for_each(|place| owned.map.believe(place.clone()));
                    believed.extend(unknown.iter().cloned());
                    false
                }
                Ok(Look::NotRegistered) | Err(_) => false,
            });
            if new.is_empty() {
                break;
            }
            while let Some(message) = guest.next(owned) {
                match message {
                    Message::Event(event) => new.retain(|(m, _)| !event.concerns(&m.place)),
                    Message::Fault(fault) => guest.put_off(owned, fault),
                    Message::Fork(_) => {}
                }
            }
        }
        believed
    }

    /// Returns the mappings that can be paged and have parts that nothing is known of, with these.
    fn new_mappings(
        &self,
        guest: &Guest,
        owned: &Owned,
        file: &OwnedFd,
        parse: fn(&str) -> Vec<Mapping>,
    ) -> Result<Vec<(Mapping, Vec<Range<Vpn>>)>, Errno> {
        let mappings = parse(&text(file)?).into_iter();
        let pageable = mappings.filter(|mapping| {
            let place = &mapping.place;
            mapping.is_pageable && !guest.own.overlaps(place) && owned.map.is_settled(place)
        });
        let with_unknown = pageable.map(|mapping| {
            let unknown = owned.map.unknown(&mapping.place);
            (mapping, unknown)
        });
        Ok(with_unknown.filter(|(_, unknown)| !unknown.is_empty()).collect())
    }

    /// Has the engine take the pages of `place` that are in memory.
    fn adopt(&self, worker: &mut Worker, guest: &Arc<Guest>, place: &Range<Vpn>) {
        let mut present = Vec::new();
        let looked = guest.pagemap.present(place, |run| present.push(run));
        if looked.is_err() {
            return guest.ended();
        }
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
        let bound = owned.map.bound(at..end).next();
        bound
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

/// Reads a file of `/proc` from its start.
fn text(file: &OwnedFd) -> Result<String, Errno> {
    let (mut bytes, mut read) = (vec![0; 1 << 16], 0);
    loop {
        match rustix::io::pread(file.as_fd(), &mut bytes[read..], read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if bytes.len() - read < 1 << 15 {
            bytes.resize(2 * bytes.len(), 0);
        }
    }
    bytes.truncate(read);
    // Names of mappings are the guest's, and may be anything.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
