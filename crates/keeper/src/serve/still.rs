//! Memory that moves only in another way than usual, or while its guest stands still.
//!
//! Owns: which guests are asked to stand still, and what is done then. Pages
//! that are there though their content was being removed stay for good (MADV_FREE): nothing says
//! when a removal is over, but none is under way in a program that stands still, so they are
//! content from then on. And where memory has run out, memory that cannot be written moves out,
//! too: it is made writable while it moves, which the program would otherwise see.
//! Invariants: a guest stands still only for this, and only for a moment. Memory that can be
//! executed and not written stays in memory: giving the first right back may be refused.
//! Not here: how its threads are held (`threads`), moving pages (`moving`).
//! Rejected: moving protected memory by mremap, which the kernel does even if an unread message is
//! about another mapping there; taking MADV_FREE as done after some time.

use crate::guest::handles::Handles;
use crate::guest::state::Guest;
use crate::serve::shared::Shared;
use overspill_base::sync::Arc;
use overspill_guest::map::Extent;
use std::time::{Duration, Instant};

/// How long removals may be under way before a guest is asked to stand still, if there is room.
const USUAL_WAIT: Duration = Duration::from_secs(1);
/// And if there is none.
const SHORT_WAIT: Duration = Duration::from_millis(5);
/// The part of the limit that is made free where memory has run out.
const ENOUGH_PART: usize = 4;

impl Shared {
    /// Has a guest stand still if something waits for that.
    pub(crate) fn stand_still_if_needed(&self, guest: &Arc<Guest>, handles: &Handles) {
        let is_short = self.shortage.is_on();
        let mut owned = guest.hold();
        let has_doomed = owned.map.doomed().next().is_some();
        let still = &mut owned.still;
        if still.is_to_look()
            && let Ok(maps) = handles.process.maps()
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
            self.while_still(guest, handles);
            guest.threads.walk_on();
        }
    }

    fn while_still(&self, guest: &Guest, handles: &Handles) {
        let mut owned = guest.hold();
        guest.catch_up(&mut owned);
        if !guest.is_quiescent(&owned) {
            return;
        }
        let doomed: Vec<_> = owned.map.doomed().cloned().collect();
        doomed.iter().for_each(|place| guest.spare(&mut owned, place.clone()));
        if owned.add_new(&*handles.process, &doomed).is_err() {
            guest.ended();
        }
        owned.still.since = None;
        if self.shortage.is_on()
            && let Ok(maps) = handles.process.maps()
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
