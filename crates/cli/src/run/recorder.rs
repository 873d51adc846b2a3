//! Records which pages a run touches, for `overspill-lab policy --trace`.
//!
//! Owns: reading the history before it overwrites itself.
//! Invariant: what is missing is said.

use super::beside::beside;
use crate::say;
use overspill::session::Touches;
use std::time::Duration;

/// In this time at most half of the history is written, by two processors.
const PERIOD: Duration = Duration::from_millis(50);

/// Runs `work`; returns its result, and the numbers of the pages touched meanwhile.
pub(super) fn record<R>(mut touches: Touches, work: impl FnOnce() -> R) -> (R, Vec<u32>) {
    let mut touched = Vec::new();
    let look = || {
        touches.take(&mut touched);
        PERIOD
    };
    let result = beside(PERIOD, look, work);
    let missed = touches.missed();
    if missed > 0 {
        say::line(format!("{missed} changes came too fast to be recorded: give more --memory"));
    }
    (result, touched)
}
