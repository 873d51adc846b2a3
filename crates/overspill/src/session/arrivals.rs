//! Which pages of a run came into memory when, as they come.
//!
//! Invariants: every page that came is told once, or counted as missed.
//! Not here: what is made of it.

use super::Session;
use overspill_area::MemberNo;
use overspill_base::clock;
use overspill_base::history::{Change, History, Place};
use overspill_base::sync::Arc;
use overspill_engine::PageTable;
use std::time::Duration;

/// A page that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// Since the [`Arrivals`] were made.
    pub after: Duration,
    /// The number of the process.
    pub process: i32,
    /// The page's address there.
    pub address: u64,
    /// True if it had been out, false if it was touched for the first time.
    pub was_out: bool,
}

/// Reads arrivals from the history of a run.
#[derive(Debug)]
pub struct Arrivals {
    session: Arc<Session>,
    history: History,
    place: Place,
    begun_ns: u64,
}

impl Arrivals {
    /// From now on; none if no history is kept.
    pub(super) fn of(session: Arc<Session>) -> Option<Self> {
        let history = session.history(MemberNo(0))?;
        Some(Self { session, history, place: Place::default(), begun_ns: clock::now_ns() })
    }

    /// Tells of the pages that came since the last call. To be called before the history begins to
    /// overwrite itself.
    pub fn take(&mut self, mut tell: impl FnMut(Arrived)) {
        for Change { time_ns, member, address, before, after } in
            self.history.after(&mut self.place)
        {
            if PageTable::brought_in(before, after) {
                tell(Arrived {
                    after: Duration::from_nanos(time_ns.saturating_sub(self.begun_ns)),
                    process: self.session.process_of(MemberNo(member)),
                    address,
                    was_out: PageTable::was_out(before),
                });
            }
        }
    }

    /// Returns the number of changes that came too fast to be read.
    pub fn missed(&self) -> u64 {
        self.place.missed()
    }
}
