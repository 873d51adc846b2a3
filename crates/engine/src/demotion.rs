//! Whether there is something to demote.
//!
//! Invariants: it is due from an allocation that finds an area nearly full until the area has room,
//! or nothing more can be demoted; then it is not due again before a while has passed.
//! Not here: demoting (`demote`); what nearly full is (`slots`).

use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Pause before demotion goes on that was interrupted, because frames ran low.
const PAUSE: Duration = Duration::from_millis(100);

/// See the module. Both are hints, hence relaxed.
#[derive(Debug, Default)]
pub(crate) struct Demotion {
    is_due: AtomicBool,
    /// Not before the eviction clock stands here.
    not_before: AtomicU64,
}

impl Demotion {
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Relaxed)
    }

    /// True if it could be made due now.
    pub(crate) fn may_fall_due(&self, clock: u64) -> bool {
        !self.is_due() && clock >= self.not_before.load(Relaxed)
    }

    pub(crate) fn fall_due(&self) {
        self.is_due.store(true, Relaxed);
    }

    pub(crate) fn end(&self) {
        self.is_due.store(false, Relaxed);
    }

    /// Lets it not be due again before the eviction clock stands at `clock`.
    pub(crate) fn put_off(&self, clock: u64) {
        self.not_before.store(clock, Relaxed);
    }

    /// How long the reclaim thread may sleep when nothing wakes it.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.is_due().then_some(PAUSE)
    }
}
