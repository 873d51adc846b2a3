//! New mappings of guests.
//!
//! Owns: the thread that looks for them, registers them, and believes them.
//! Invariant: a mapping is believed as [`SpaceMap::believe`](overspill_guest::map::SpaceMap) asks,
//! under one hold of its guest. One in which there is more than there is room for has its threads
//! held (`threads`).
//! Not here: what is in them already (`care`).
//! Rejected: doing both in one thread. Adopting takes frames, which takes time, in which a program
//! fills what nobody has registered.

use crate::guest::handles::Handles;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use crate::serve::shared::Shared;
use overspill_guest::Vpn;
use overspill_guest::map::{AtAddress, Look};
use overspill_guest::mappings::{self, Mapping};
use overspill_guest::userfault::Message;
use rustix::io::Errno;
use std::ops::Range;
use std::time::Duration;

/// How soon guests are looked at again after something new was found, and at most how late.
const SOON: Duration = Duration::from_micros(300);
const LATE: Duration = Duration::from_millis(5);
/// How often it is looked whether what was found is the engine's.
const TAKEN_TRIES: u32 = 100;
/// Growth by fewer pages is not looked for.
const NOTABLE_PAGES: i64 = 64;
/// Pages that are looked at together: who touches what is out waits for that.
const LOOKED_PAGES: u64 = 4096;
/// How often a guest that changes is asked whether new mappings stand still.
const PATIENCE: u32 = 50;

/// A mapping, and the parts of it that nothing is known of.
type New = (Mapping, Vec<Range<Vpn>>);

impl Shared {
    /// Looks for new mappings until told to stop.
    pub(crate) fn survey_all(&self) {
        let mut pause = SOON;
        while !self.must_stop() {
            let guests = self.all_guests();
            let found = guests.iter().filter(|guest| self.survey(guest)).count();
            pause = if found > 0 { SOON } else { (pause * 2).min(LATE) };
            self.survey.wait(if guests.is_empty() { None } else { Some(pause) });
        }
    }

    /// Registers mappings that are new; true if there are any.
    pub(crate) fn survey(&self, guest: &Guest) -> bool {
        let Some(handles) = guest.handles().filter(|_| !guest.has_ended()) else { return false };
        let mut owned = guest.hold();
        guest.catch_up(&mut owned);
        if owned.is_leaving {
            return false;
        }
        if guest.source.is_under_way() {
            // What is new may have moved there, which is about to be told. It is looked at soon.
            return true;
        }
        let growth_pages = guest.pages().map_or(0, |pages| guest.growth_pages(pages));
        let tells_of_new = guest.source.tells_of_new();
        let is_untold = !tells_of_new && growth_pages >= NOTABLE_PAGES;
        if !tells_of_new && owned.is_confirmed && !is_untold {
            // Its list of mappings may be long.
            self.has_nothing_new(guest);
            return false;
        }
        guest.note_survey();
        match self.survey_held((guest, handles), &mut owned) {
            Ok(believed) if believed.is_empty() && is_untold => {
                drop(owned);
                self.look_for_new(guest, handles, &(Vpn(0)..Vpn(u64::MAX)));
                self.call_care();
                true
            }
            Ok(believed) if believed.is_empty() => {
                if owned.is_confirmed {
                    self.has_nothing_new(guest);
                }
                false
            }
            Ok(believed) => {
                if owned.add_new(&*handles.process, &believed).is_err() {
                    guest.ended();
                }
                if owned.new_pages > self.room_pages() {
                    guest.threads.brake();
                }
                drop(owned);
                self.call_care();
                true
            }
            Err(_) => {
                guest.ended();
                false
            }
        }
    }

    fn has_nothing_new(&self, guest: &Guest) {
        if guest.threads.surveyed() {
            self.call_care();
        }
    }

    /// Has the engine know what is in a place, where no touch tells of what is new. Waits for that,
    /// if it does not take long.
    pub(crate) fn take_new_of(&self, guest: &Guest, place: &Range<Vpn>) {
        let Some(handles) = guest.handles().filter(|_| !guest.source.tells_of_new()) else {
            return;
        };
        self.look_for_new(guest, handles, place);
        for _ in 0..TAKEN_TRIES {
            if guest.hold().new_pages == 0 {
                return;
            }
            self.call_care();
            std::thread::sleep(SOON);
        }
    }

    /// Notes what is new in mappings that are believed, as far as they are within a place, where no
    /// touch tells of it.
    fn look_for_new(&self, guest: &Guest, handles: &Handles, within: &Range<Vpn>) {
        let believed: Vec<_> = guest.hold().map.believed().cloned().collect();
        for place in believed {
            let place = place.start.max(within.start)..place.end.min(within.end);
            for chunk in Vpn::parts(place, LOOKED_PAGES) {
                let mut owned = guest.hold();
                let is_new = |owned: &Owned, at: Vpn| match owned.map.at(at) {
                    AtAddress::Page(page) => self.engine.is_untouched(page),
                    AtAddress::Unbound => true,
                    AtAddress::Later | AtAddress::Unknown => false,
                };
                if owned.add_new_of(&*handles.process, &chunk, is_new).is_err() {
                    return guest.ended();
                }
                if owned.new_pages > self.room_pages() {
                    guest.threads.brake();
                }
            }
        }
    }

    fn survey_held(
        &self,
        (guest, handles): (&Guest, &Handles),
        owned: &mut Owned,
    ) -> Result<Vec<Range<Vpn>>, Errno> {
        if !owned.is_confirmed {
            return confirm((guest, handles), owned);
        }
        if new_mappings((guest, handles), owned, mappings::parse_list(&handles.process.maps()?))
            .is_empty()
        {
            return Ok(Vec::new());
        }
        let mut new =
            new_mappings((guest, handles), owned, mappings::parse(&handles.process.smaps()?));
        new.retain(|(mapping, unknown)| {
            let is_registered = guest.source.register(&mapping.place).is_ok();
            if is_registered {
                owned.kept.see(mapping);
                unknown.iter().for_each(|place| owned.map.doubt(place.clone()));
            }
            is_registered
        });
        let again = mappings::parse_list(&handles.process.maps()?);
        new.retain(|(mapping, _)| {
            let covers = |other: &Mapping| {
                other.place.start <= mapping.place.start && mapping.place.end <= other.place.end
            };
            again.iter().any(|other| other.is_pageable && covers(other))
        });
        Ok(self.believe(guest, owned, new))
    }

    /// Believes the mappings of which no message is outstanding, nor read meanwhile.
    fn believe(&self, guest: &Guest, owned: &mut Owned, mut new: Vec<New>) -> Vec<Range<Vpn>> {
        let mut believed = Vec::new();
        for _ in 0..PATIENCE {
            new.retain(|(mapping, unknown)| match guest.source.look(&mapping.place) {
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
}

/// Compares what is believed of a forked child with its mappings. Returns all that is believed,
/// unless a message is outstanding: then it is to be done again.
fn confirm(
    (guest, handles): (&Guest, &Handles),
    owned: &mut Owned,
) -> Result<Vec<Range<Vpn>>, Errno> {
    let mappings = mappings::parse(&handles.process.smaps()?);
    if !guest.is_quiescent(owned) {
        return Ok(Vec::new());
    }
    // Where the kernel tells of faults it says what is registered.
    let registered = mappings.into_iter().filter(|mapping| match guest.source.tells_of_new() {
        true => mapping.is_registered,
        false => may_page(guest, mapping),
    });
    owned.map.confirm(&registered.map(|mapping| mapping.place).collect());
    owned.is_confirmed = true;
    Ok(owned.map.believed().cloned().collect())
}

/// Returns the mappings that can be paged and have parts that nothing is known of, with these.
fn new_mappings(
    (guest, handles): (&Guest, &Handles),
    owned: &Owned,
    mappings: Vec<Mapping>,
) -> Vec<New> {
    let pageable = mappings.into_iter().filter(|mapping| {
        let place = &mapping.place;
        let is_free = !handles.own.overlaps(place) && owned.map.is_settled(place);
        is_free && may_page(guest, mapping)
    });
    let with_unknown = pageable.map(|mapping| {
        let unknown = owned.map.unknown(&mapping.place);
        (mapping, unknown)
    });
    with_unknown.filter(|(_, unknown)| !unknown.is_empty()).collect()
}

/// True if a mapping may be paged.
fn may_page(guest: &Guest, mapping: &Mapping) -> bool {
    mapping.is_pageable && (!mapping.is_growing || guest.source.may_page_growing())
}
