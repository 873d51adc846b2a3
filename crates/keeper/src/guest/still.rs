//! What waits for a guest to stand still, and what is to move in another way than usual.
//!
//! Not here: which guests are asked to stand still, and what is done then (`serve`).

use super::agent::Protection;
use overspill_guest::Vpn;
use overspill_guest::mappings::{self, Mapping};
use rangemap::RangeMap;
use std::time::{Duration, Instant};

/// How often it is looked how mappings are protected.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What waits for a guest to stand still.
#[derive(Debug, Default)]
pub(crate) struct Still {
    /// Whether pages did not move because of their protection.
    pub(crate) has_protected: bool,
    /// Since when removals are under way, or were when it was asked last.
    pub(crate) since: Option<Instant>,
    /// What can be executed, too; and while it stands still, what cannot be written.
    pub(crate) protections: RangeMap<Vpn, Protection>,
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
    pub(crate) fn look(&mut self, maps: &str, stands: bool) {
        let protected = |mapping: Mapping| {
            let protection = protection_of(&mapping)?;
            (stands || protection == Protection::All).then_some((mapping.place, protection))
        };
        self.protections = mappings::parse_list(maps).into_iter().filter_map(protected).collect();
        (self.is_stale, self.looked) = (false, Some(Instant::now()));
    }

    pub(crate) fn is_to_look(&self) -> bool {
        self.is_stale && self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_PAUSE)
    }

    pub(crate) fn is_due(&self, wait: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= wait)
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
