//! Memory that guests lock when it is paged already (mlock(2), mlockall(2)).
//!
//! Owns: giving it up where memory has run out, and taking it again when it is locked no more. What
//! is locked cannot leave, so its frames are of no use to anybody else; from then on it counts as
//! what is unevictable.
//! Invariant: a program is not ended for what it has locked: the limit is exceeded, which the front
//! says.
//! Not here: what is locked before a mapping is seen, which is never paged (`guest::mappings`).

use crate::guest::handles::Handles;
use crate::guest::state::Guest;
use crate::serve::shared::Shared;
use overspill_guest::Vpn;
use overspill_guest::mappings;
use std::ops::Range;
use std::time::Instant;

impl Shared {
    /// Gives up what a guest has locked if memory has run out, and takes it again later.
    pub(crate) fn see_to_locked(&self, guest: &Guest, handles: &Handles) {
        let is_short = self.shortage.is_on();
        if !guest.hold().locked.is_to_look(is_short) {
            return;
        }
        // Faults go on meanwhile. What is another mapping by then is taken again by the next look.
        let begun = Instant::now();
        let Ok(smaps) = handles.process.smaps() else { return guest.ended() };
        let all = mappings::parse(&smaps).into_iter();
        let locked: Vec<_> = all.filter(|it| it.is_locked).map(|it| it.place).collect();
        let mut owned = guest.hold();
        let bound = |place: &Range<Vpn>| owned.map.bound(place.clone()).collect::<Vec<_>>();
        let extents: Vec<_> = locked.iter().flat_map(bound).collect();
        let places = extents.iter().map(|extent| extent.place()).collect();
        let freed = owned.locked.note(places, begun.elapsed());
        if owned.add_new(&*handles.process, &freed).is_err() {
            guest.ended();
        }
        drop(owned);
        for extent in extents {
            self.engine.give_up(extent.first, extent.pages as usize);
        }
    }
}
