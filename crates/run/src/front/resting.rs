//! Letting guests go whose calls are caught, when memory has been free for long.
//!
//! Owns: when that is. A gate that is shut costs each call 2 us, so it is not kept for nothing.
//! Invariants: guests are let go only if all that they have, what is out included, would leave much
//! of the limit free, and has for a while. The run goes on to be limited: who comes near the limit
//! is attached to again.
//! Not here: letting go (`leaving`).

use super::{Detaching, Front};
use crate::ground::Ground;
use overspill_base::Bytes;
use std::time::{Duration, Instant};

/// How long memory has been free.
const REST_AFTER: Duration = Duration::from_secs(10);
/// How often it is looked whether it is.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The percentage of the limit below which all must stay.
const FREE_PERCENT: u64 = 60;

/// Whether guests may rest.
#[derive(Debug)]
pub(super) struct Resting {
    looked: Instant,
    /// Since when memory is free.
    since: Option<Instant>,
}

impl Resting {
    pub(super) fn new() -> Self {
        Self { looked: Instant::now(), since: None }
    }

    /// They are needed, or rest: memory has not been free since then.
    pub(super) fn begin_again(&mut self) {
        self.since = None;
    }
}

impl Front {
    /// Begins to let guests go if memory has been free for long; `held_pages` is what all
    /// processes have.
    pub(super) fn rest(&mut self, held_pages: u64) {
        let may_rest = !matches!(self.ground, Ground::Faults(..)) && !self.guests.is_empty();
        if !may_rest || self.resting.looked.elapsed() < LOOK_INTERVAL {
            return;
        }
        let due = self.resting.looked + LOOK_INTERVAL;
        let Some((areas, state)) = self.keeper.state_since(due) else { return };
        self.resting.looked = Instant::now();
        let used: u64 = areas.iter().map(|area| area.used.0).sum();
        // What is in the swap cache has a frame: it is in memory, too, or was freed by its program,
        // and leaves when frames are needed next.
        let cached = Bytes::of_pages(state.engine.cached as u64).0;
        let all = Bytes::of_pages(held_pages).0 + used.saturating_sub(cached);
        if all > self.room.memory().0 / 100 * FREE_PERCENT {
            return self.resting.since = None;
        }
        let since = *self.resting.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= REST_AFTER {
            self.detaching = Detaching::ToRest;
        }
    }

    /// Goes on as before when all are let go.
    pub(super) fn rested(&mut self) {
        if self.detaching == Detaching::ToRest && self.is_without_guests() {
            self.detaching = Detaching::No;
            self.resting.begin_again();
        }
    }
}
