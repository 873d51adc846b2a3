//! What a guest has locked that was paged already, and the engine has given up.
//!
//! Not here: giving it up and taking it again (`serve`).

use overspill_guest::Vpn;
use rangemap::RangeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often it is looked what is locked, if memory has run out.
const SHORT_INTERVAL: Duration = Duration::from_millis(20);
/// And whether what was given up still is.
const INTERVAL: Duration = Duration::from_secs(1);

/// A look rests for so many times as long as the one before took.
const REST: u32 = 20;

/// What was given up, and when that was looked at last, for how long.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    places: RangeSet<Vpn>,
    looked: Option<(Instant, Duration)>,
}

impl Locked {
    pub(crate) fn is_to_look(&self, is_short: bool) -> bool {
        let interval = match (is_short, self.places.is_empty()) {
            (true, _) => SHORT_INTERVAL,
            (false, false) => INTERVAL,
            (false, true) => return false,
        };
        self.looked.is_none_or(|(at, took)| at.elapsed() >= interval.max(took * REST))
    }

    /// Notes what is locked now; returns what is not any more.
    pub(crate) fn note(&mut self, locked: RangeSet<Vpn>, took: Duration) -> Vec<Range<Vpn>> {
        let mut freed = std::mem::replace(&mut self.places, locked);
        for place in self.places.iter() {
            freed.remove(place.clone());
        }
        self.looked = Some((Instant::now(), took));
        freed.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_locked_no_more_is_told_once() {
        let places = |runs: &[(u64, u64)]| {
            runs.iter().map(|&(start, pages)| Vpn(start).run(pages)).collect::<RangeSet<Vpn>>()
        };
        let mut locked = Locked::default();
        let (none, took) = (Duration::ZERO, Duration::from_secs(1));
        assert!(locked.is_to_look(true) && !locked.is_to_look(false));
        assert_eq!(locked.note(places(&[(10, 10), (40, 2)]), none), []);
        assert!(!locked.is_to_look(true), "a moment ago");
        assert_eq!(
            locked.note(places(&[(12, 3)]), none),
            [Vpn(10).run(2), Vpn(15).run(5), Vpn(40).run(2)]
        );
        std::thread::sleep(SHORT_INTERVAL);
        assert!(locked.is_to_look(true));
        assert_eq!(locked.note(places(&[]), took), [Vpn(12).run(3)]);
        std::thread::sleep(SHORT_INTERVAL);
        assert!(!locked.is_to_look(true), "a look takes long");
        locked.looked = None;
        assert!(!locked.is_to_look(false), "nothing was given up");
    }
}
