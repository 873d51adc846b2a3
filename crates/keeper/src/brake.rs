//! Holding back guests that fill more memory than there is room for.
//!
//! Owns: the thread that reads how much they have.
//! Invariant: it waits for nobody but the front: neither for what guests are held for, nor for
//! their mappings. What is not registered is not limited, so all depends on how soon that is seen.
//! Not here: finding out what it is (`survey`).
//! Rejected: going by what the engine knows of each guest: what was dropped it learns too late.

use crate::guest::Guest;
use crate::keeper::Shared;
use overspill_base::sync::Arc;
use std::time::{Duration, Instant};

/// How soon guests are looked at again that grow, and others.
const SOON: Duration = Duration::from_micros(300);
const LATE: Duration = Duration::from_millis(2);
/// How many times longer it rests than it looks: nothing else has a CPU before it.
const REST_PART: u32 = 3;
/// Growth by fewer pages is none: counters of the kernel are that wrong.
const NOTABLE_PAGES: i64 = 64;
/// So many more than there is room for lead to no hold: the counters' error, full staging, and what
/// is found and registered a moment later anyway.
const SLACK_PAGES: u64 = 512;

impl Shared {
    /// Holds back guests until told to stop.
    pub(crate) fn brake(&self) {
        let mut pause = SOON;
        while !self.must_stop() {
            let start = Instant::now();
            let guests = self.all_guests();
            let grow = self.brake_grown(&guests);
            pause = if grow { SOON } else { (pause * 2).min(LATE) };
            pause = pause.max(start.elapsed() * REST_PART);
            self.growth.wait(if guests.is_empty() { None } else { Some(pause) });
        }
    }

    /// Holds those that have grown, if they have more than there is room for; true if any has.
    fn brake_grown(&self, guests: &[Arc<Guest>]) -> bool {
        let growth = guests.iter().map(|guest| (guest, guest.growth_pages()));
        let grown: Vec<_> = growth.filter(|(_, pages)| *pages >= NOTABLE_PAGES).collect();
        let sum: i64 = grown.iter().map(|(_, pages)| pages).sum();
        if sum as u64 > self.room_pages() + SLACK_PAGES {
            grown.iter().for_each(|(guest, _)| guest.threads.brake());
        }
        if !grown.is_empty() {
            self.survey.call();
        }
        !grown.is_empty()
    }
}
