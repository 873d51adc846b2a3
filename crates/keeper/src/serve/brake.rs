//! Holding back guests that fill more memory than there is room for.
//!
//! Owns: the thread that reads how much they have. Relatives are held back together where all have
//! more than the limit: what they write of what they share becomes copies, of which there is no
//! fault that could wait for room.
//! Invariants: it waits for nobody but the front: neither for what guests are held for, nor for
//! their mappings. What is not registered is not limited, so all depends on how soon that is seen.
//! Relatives are held back only as long as that makes the excess smaller.
//! Not here: finding out what it is (`survey`).
//! Rejected: going by what the engine knows of each guest: what was dropped it learns too late.

use crate::guest::state::Guest;
use crate::serve::shared::Shared;
use crate::serve::unevictable::Unevictable;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::Relaxed;
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
/// So many pages above the limit relatives are held back, and go on when there are a quarter.
const EXCESS_PAGES: i64 = 2048;
/// How long they are held back although the excess stays.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether relatives are held back.
#[derive(Debug, Default)]
struct HoldBack {
    /// Since when, and the least excess since then.
    on: Option<(Instant, i64)>,
    /// An excess that could not be made smaller.
    borne_pages: i64,
}

impl HoldBack {
    /// Takes note of the excess; true if relatives are to be held back now.
    fn is_on(&mut self, excess_pages: i64) -> bool {
        self.borne_pages = self.borne_pages.min(excess_pages.max(0));
        let excess_pages = excess_pages - self.borne_pages;
        match &mut self.on {
            None if excess_pages > EXCESS_PAGES => self.on = Some((Instant::now(), excess_pages)),
            None => {}
            Some(_) if excess_pages < EXCESS_PAGES / 4 => self.on = None,
            Some((since, least)) if *least - excess_pages >= NOTABLE_PAGES => {
                (*since, *least) = (Instant::now(), excess_pages);
            }
            Some((since, _)) if since.elapsed() > PATIENCE => {
                self.borne_pages += excess_pages;
                self.on = None;
            }
            Some(_) => {}
        }
        self.on.is_some()
    }
}

impl Shared {
    /// Holds back guests until told to stop.
    pub(crate) fn brake(&self) {
        let (mut pause, mut hold_back) = (SOON, HoldBack::default());
        let mut unevictable = Unevictable::new();
        while !self.must_stop() {
            let start = Instant::now();
            let guests = self.all_guests();
            let pages: Vec<_> = guests.iter().map(|guest| (guest, guest.pages())).collect();
            let held_pages: i64 = pages.iter().filter_map(|(_, pages)| *pages).sum();
            self.deduct_unevictable(&mut unevictable, held_pages);
            let is_held_back = self.hold_back_relatives(&guests, held_pages, &mut hold_back);
            let grow = self.brake_grown(&pages) | is_held_back;
            pause = if grow { SOON } else { (pause * 2).min(LATE) };
            pause = pause.max(start.elapsed() * REST_PART);
            self.growth.wait(if guests.is_empty() { None } else { Some(pause) });
        }
    }

    /// Holds those that have grown, if they have more than there is room for; true if any has.
    fn brake_grown(&self, guests: &[(&Arc<Guest>, Option<i64>)]) -> bool {
        let growth = guests.iter().filter_map(|(guest, pages)| {
            let growth_pages = guest.growth_pages((*pages)?);
            (growth_pages >= NOTABLE_PAGES).then_some((guest, growth_pages))
        });
        let grown: Vec<_> = growth.collect();
        let sum: i64 = grown.iter().map(|(_, pages)| pages).sum();
        if sum as u64 > self.room_pages() + SLACK_PAGES {
            grown.iter().for_each(|(guest, _)| guest.threads.brake());
        }
        if !grown.is_empty() {
            self.survey.call();
        }
        !grown.is_empty()
    }

    /// Holds back relatives, or lets them go; true if they are held.
    fn hold_back_relatives(
        &self,
        guests: &[Arc<Guest>],
        held_pages: i64,
        hold_back: &mut HoldBack,
    ) -> bool {
        let has_relatives = |guest: &&Arc<Guest>| guest.has_relatives.load(Relaxed);
        let relatives = guests.iter().filter(has_relatives);
        let was_on = hold_back.on.is_some();
        let is_on = hold_back.is_on(held_pages - self.limit_pages() as i64);
        if was_on || is_on {
            relatives.for_each(|guest| guest.threads.hold_back(is_on));
        }
        is_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatives_are_held_back_while_that_helps() {
        let mut hold_back = HoldBack::default();
        assert!(!hold_back.is_on(EXCESS_PAGES));
        assert!(hold_back.is_on(EXCESS_PAGES + 1) && hold_back.is_on(EXCESS_PAGES / 4));
        assert!(!hold_back.is_on(EXCESS_PAGES / 4 - 1));
        assert!(hold_back.is_on(3 * EXCESS_PAGES));
        hold_back.on = Some((Instant::now() - 2 * PATIENCE, 3 * EXCESS_PAGES));
        // It has become smaller.
        assert!(hold_back.is_on(3 * EXCESS_PAGES - NOTABLE_PAGES));
        hold_back.on = Some((Instant::now() - 2 * PATIENCE, 3 * EXCESS_PAGES));
        // It stays, and is borne from then on.
        assert!(!hold_back.is_on(3 * EXCESS_PAGES) && !hold_back.is_on(4 * EXCESS_PAGES));
        assert!(hold_back.is_on(4 * EXCESS_PAGES + 1));
        assert!(!hold_back.is_on(0) && hold_back.is_on(EXCESS_PAGES + 1));
    }
}
