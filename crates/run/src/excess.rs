//! What a run holds above its limit, for longer than a moment, because it cannot leave memory.
//!
//! Owns: how much that is, and when it is said.
//! Invariant: what counts was there all the time for a while: bursts are not it, they are held
//! back before they can be told. Nor is what is about to leave, as of a limit that was lowered.
//! Not here: keeping to the limit (`looking`, and the keeper).

use overspill_base::Bytes;
use overspill_keeper::LEFT_PART;
use std::time::{Duration, Instant};

/// For how long.
const WHILE: Duration = Duration::from_secs(2);
/// Counters are that wrong, and staging takes some.
const SLACK_PART: u64 = 32;
const SLACK_PAGES: u64 = 1024;

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Excess {
    /// Since when there is some, and the least since then.
    on: Option<(Instant, u64)>,
    /// What there was in the last while, and at most.
    lasting_pages: u64,
    most_pages: u64,
    is_told: bool,
}

impl Excess {
    /// Takes note of what is held, and what of that cannot leave; true if it is to be said that
    /// this is too much.
    pub(crate) fn note(&mut self, held_pages: u64, stuck_pages: u64, limit_pages: u64) -> bool {
        let stuck_pages = stuck_pages.saturating_sub(limit_pages - limit_pages / LEFT_PART);
        let excess_pages = held_pages.saturating_sub(limit_pages).min(stuck_pages);
        if excess_pages <= SLACK_PAGES + limit_pages / SLACK_PART {
            (self.on, self.lasting_pages) = (None, 0);
            return false;
        }
        let (since, least) = self.on.unwrap_or((Instant::now(), excess_pages));
        self.on = Some((since, least.min(excess_pages)));
        if since.elapsed() < WHILE {
            return false;
        }
        self.on = None;
        self.lasting_pages = least.min(excess_pages);
        self.most_pages = self.most_pages.max(self.lasting_pages);
        !std::mem::replace(&mut self.is_told, true)
    }

    /// How much there is now.
    pub(crate) fn now(&self) -> Bytes {
        Bytes::of_pages(self.lasting_pages)
    }

    /// The most that there was.
    pub(crate) fn most(&self) -> Bytes {
        Bytes::of_pages(self.most_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once() {
        let mut excess = Excess::default();
        let limit: u64 = 1 << 16;
        let fits = limit / 4 * 3;
        let last = |excess: &mut Excess| {
            excess.on = excess.on.map(|(since, least)| (since - WHILE, least));
        };
        assert!(!excess.note(limit + SLACK_PAGES, limit, limit) && excess.on.is_none());
        assert!(!excess.note(2 * limit, limit, limit), "a burst");
        assert!(!excess.note(limit, limit, limit));
        assert!(!excess.note(2 * limit, limit, limit));
        last(&mut excess);
        assert!(excess.note(limit + 10_000, fits + 10_000, limit));
        assert_eq!((excess.now(), excess.most()), (Bytes::of_pages(10_000), excess.now()));
        assert!(!excess.note(limit + 20_000, limit + 10_000, limit));
        last(&mut excess);
        assert!(!excess.note(limit + 20_000, limit + 10_000, limit), "it was said");
        assert_eq!(excess.now(), Bytes::of_pages(20_000));
        assert!(!excess.note(4 * limit, fits, limit), "it is about to leave");
        assert_eq!((excess.now(), excess.most()), (Bytes(0), Bytes::of_pages(20_000)));
    }
}
