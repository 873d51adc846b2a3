//! The pages of all guests, as one space of the engine's.
//!
//! Owns: looking up where a page is.
//! Invariants: a page is looked up, and what is done there is done, under one hold of its guest.
//! Nobody waits here for longer than a moment for what a guest is in the middle of: the front may
//! have stopped it, and wait for this thread. The engine then leaves the page where it is, and who
//! touches it asks again.
//! Not here: the way in (`fill`), the way out (`move_out`).

use super::pieces::Pieces;
use crate::arrivals::Arrivals;
use crate::guest::agent::AgentError;
use crate::guest::events::pause;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use overspill_base::PageNo;
use overspill_base::report::{Cause, Reports};
use overspill_base::sync::{Arc, MutexGuard};
use overspill_engine::SpaceError;
use overspill_guest::Vpn;
use overspill_guest::map::Whereabouts;
use std::sync::OnceLock;

/// How often it is tried, with pauses: longer than a guest takes that is not stopped meanwhile.
pub(crate) const TRIES: usize = 50;

/// The space.
#[derive(Debug)]
pub(crate) struct GuestSpace {
    pub(crate) pieces: Pieces,
    pub(crate) reports: OnceLock<Arc<Reports>>,
    pub(crate) arrivals: Option<Arrivals>,
}

impl GuestSpace {
    /// Makes the space of a table with `pages` words.
    pub(crate) fn new(pages: usize, arrivals: Option<Arrivals>) -> Self {
        Self { pieces: Pieces::new(pages), reports: OnceLock::new(), arrivals }
    }

    /// Says once, and at powers of ten, what is not as it should be.
    pub(crate) fn report(&self, what: &'static str, line: String) {
        if let Some(reports) = self.reports.get() {
            reports.tell(Cause::of(what), line);
        }
    }

    /// Runs `f` with the guest that has `page`, and its address; [`SpaceError::Gone`] if it is
    /// nowhere, [`SpaceError::Changing`] if that is in doubt for longer than a moment; who waits
    /// for it is woken when it is not any more.
    pub(crate) fn at_page<R>(
        &self,
        page: PageNo,
        f: impl FnOnce(&Guest, MutexGuard<'_, Owned>, Vpn) -> R,
    ) -> Result<R, SpaceError> {
        let guest = self.pieces.owner(page).ok_or(SpaceError::Gone)?;
        for _ in 0..TRIES {
            let mut owned = guest.hold();
            match owned.map.find(page) {
                _ if guest.has_ended() => return Err(gone(&owned)),
                Whereabouts::At(at) => return Ok(f(&guest, owned, at)),
                Whereabouts::Nowhere => return Err(gone(&owned)),
                Whereabouts::Later => guest.catch_up(&mut owned),
            }
            drop(owned);
            pause();
        }
        guest.hold().all_stirred = true;
        guest.call_reader();
        Err(SpaceError::Changing)
    }

    /// Without its agent a guest cannot be limited, and where its pages are is not known. One that
    /// executes another program has none any more, and is left alone.
    pub(crate) fn end_of_agent(&self, guest: &Guest, why: &AgentError) {
        if guest.has_ended() || guest.is_over_soon() {
            return guest.ended();
        }
        self.report("an agent", format!("{} is ended: {why}", guest.name()));
        guest.kill();
    }
}

/// Nobody needs a page that its guest gave up, but for a child that is about to get it.
fn gone(owned: &Owned) -> SpaceError {
    if owned.is_forking() { SpaceError::Changing } else { SpaceError::Gone }
}
