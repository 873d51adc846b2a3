//! Memory that moves only in another way than usual, or while its guest stands still.
//!
//! Owns: which memory that is, which guests are asked to stand still, and what is done then. Pages
//! that are there though their content was being removed stay for good (MADV_FREE): nothing says
//! when a removal is over, but none is under way in a program that stands still, so they are
//! content from then on. And where memory has run out, memory that cannot be written moves out,
//! too: it is made writable while it moves, which the program would otherwise see.
//! Invariants: a guest stands still only for this, and only for a moment. Memory that can be
//! executed and not written stays in memory: giving the first right back may be refused.
//! Not here: how its threads are held (`threads`), moving pages (`moving`).
//! Rejected: moving protected memory by mremap, which the kernel does even if an unread message is
//! about another mapping there; taking MADV_FREE as done after some time.

use crate::agent::Protection;
use crate::guest::Guest;
use crate::keeper::Shared;
use crate::known::Known;
use crate::survey::text;
use overspill_base::sync::Arc;
use overspill_guest::Vpn;
use overspill_guest::map::Extent;
use overspill_guest::mappings::{self, Mapping};
use rangemap::RangeMap;
use std::time::{Duration, Instant};

/// How long removals may be under way before a guest is asked to stand still, if there is room.
const USUAL_WAIT: Duration = Duration::from_secs(1);
/// And if there is none.
const SHORT_WAIT: Duration = Duration::from_millis(5);
/// How often it is looked how mappings are protected.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The part of the limit that is made free where memory has run out.
const ENOUGH_PART: usize = 4;

/// What waits for a guest to stand still.
#[derive(Debug, Default)]
pub(crate) struct Still {
    /// Whether pages did not move because of their protection.
    has_protected: bool,
    /// Since when removals are under way, or were when it was asked last.
    since: Option<Instant>,
    /// What can be executed, too; and while it stands still, what cannot be written.
    protections: RangeMap<Vpn, Protection>,
    /// Whether that is not so any more, and when the mappings were looked at last.
    is_stale: bool,
    looked: Option<Instant>,
}

impl Still {
    /// Notes that a removal begins.
    pub(crate) fn dooms(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Returns how a page is to move, and for how many pages from there on that is so, at most.
    pub(crate) fn protection(&self, at: Vpn) -> (u64, Option<Protection>) {
        match self.protections.get_key_value(&at) {
            Some((place, protection)) => (place.end.0 - at.0, Some(*protection)),
            None => (u64::MAX, None),
        }
    }

    /// Notes a page that did not move because of its protection.
    pub(crate) fn note_protected(&mut self, at: Vpn) {
        (self.has_protected, self.is_stale) = (true, true);
        self.protections.remove(at.run(1));
    }

    /// Notes how mappings are protected: what can be executed, and if the guest stands still what
    /// cannot be written.
    fn look(&mut self, maps: &str, stands: bool) {
        let protected = |mapping: Mapping| {
            let protection = protection_of(&mapping)?;
            (stands || protection == Protection::All).then_some((mapping.place, protection))
        };
        self.protections = mappings::parse_list(maps).into_iter().filter_map(protected).collect();
        (self.is_stale, self.looked) = (false, Some(Instant::now()));
    }

    fn is_to_look(&self) -> bool {
        self.is_stale && self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_PAUSE)
    }

    fn is_due(&self, wait: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= wait)
    }
}

impl Shared {
    /// Has a guest stand still if something waits for that.
    pub(crate) fn stand_still_if_needed(&self, guest: &Arc<Guest>, known: &Known) {
        let is_short = self.shortage.is_on();
        let mut owned = guest.hold();
        let has_doomed = owned.map.doomed().next().is_some();
        let still = &mut owned.still;
        if still.is_to_look()
            && let Ok(maps) = text(&known.maps)
        {
            still.look(&maps, false);
        }
        let wait = if is_short { SHORT_WAIT } else { USUAL_WAIT };
        let is_needed = has_doomed && still.is_due(wait) || is_short && still.has_protected;
        if is_needed || !has_doomed {
            still.since = has_doomed.then(Instant::now);
        }
        drop(owned);
        if is_needed && guest.threads.stand_still() {
            self.while_still(guest, known);
            guest.threads.walk_on();
        }
    }

    fn while_still(&self, guest: &Guest, known: &Known) {
        let mut owned = guest.hold();
        guest.catch_up(&mut owned);
        if !guest.is_quiescent(&owned) {
            return;
        }
        let doomed: Vec<_> = owned.map.doomed().cloned().collect();
        doomed.iter().for_each(|place| guest.spare(&mut owned, place.clone()));
        if owned.add_new(&known.pagemap, &doomed).is_err() {
            guest.ended();
        }
        owned.still.since = None;
        if self.shortage.is_on()
            && let Ok(maps) = text(&known.maps)
        {
            owned.still.has_protected = false;
            owned.still.look(&maps, true);
            let protected = owned.still.protections.iter().map(|(place, _)| place.clone());
            let extents: Vec<Extent> =
                protected.flat_map(|place| owned.map.bound(place).collect::<Vec<_>>()).collect();
            drop(owned);
            self.move_protected(extents);
            guest.hold().still.look(&maps, false);
        }
    }

    /// Moves out what cannot be written, as much as is worth the stop.
    fn move_protected(&self, extents: Vec<Extent>) {
        let enough_pages = (self.engine.limit_frames() / ENOUGH_PART) as u64;
        for Extent { first, pages, .. } in extents {
            if self.room_pages() >= enough_pages || self.must_stop() {
                return;
            }
            self.engine.page_out(first, pages as usize);
        }
    }
}

/// How memory is protected that does not move as usual.
fn protection_of(mapping: &Mapping) -> Option<Protection> {
    match (mapping.is_readable, mapping.is_writable, mapping.is_executable) {
        (true, false, false) => Some(Protection::Read),
        (false, false, false) => Some(Protection::Nothing),
        (true, true, true) => Some(Protection::All),
        (_, true, _) | (_, _, true) => None,
    }
}
