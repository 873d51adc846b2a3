//! Pages that cannot be where they should be.
//!
//! Owns: what becomes of a page when its address space refuses. Invariants: content that is somewhere is kept
//! there; content that is nowhere is never replaced by zeros: its toucher gets SIGBUS, a line says so, and
//! `pages_lost` counts it. Whoever waits for a page that did not come is woken, touches it again, and so
//! asks again.
//! What staging memory or a slot still has of a page that was mapped is no answer: it may be older than what the
//! program wrote.
//! Not here: pages whose device lost them (`swapin`), where a page is looked for (`space`).

use crate::engine::Engine;
use crate::lru::LruList;
use crate::reclaim::Victim;
use crate::space::{Mapped, SpaceError};
use crate::types::{Pte, flag};
use overspill_area::AreaNo;
use overspill_base::stats::Event;
use overspill_base::trouble::Cause;
use overspill_base::{FrameNo, PageNo};
use std::time::Duration;

/// Tries, a millisecond apart at least, of putting a page back that has no other place to be.
const PATIENCE_ROUNDS: u32 = 5000;

impl Engine {
    /// Gives up a locked, resident page whose content is nowhere.
    pub(crate) fn lose(&self, Victim { frame, page }: Victim, why: SpaceError) {
        self.table.replace(page, Pte::Resident(frame), Pte::Poisoned);
        self.count_lost(page, why);
        self.frames.clear(frame, flag::MAPPED);
        self.drop_cached(frame, page);
    }

    /// Counts and tells a loss, and has whoever touches `page` get SIGBUS.
    pub(crate) fn count_lost(&self, page: PageNo, why: SpaceError) {
        self.stats.count(Event::pages_lost);
        self.troubles.tell(
            Cause::of("a page is lost"),
            format!("a page is lost and will raise SIGBUS when touched: {why}"),
        );
        self.space.poison(page);
    }

    /// A device lost the content of `page`, whose word says so.
    pub(crate) fn count_poisoned(&self, page: PageNo, area: AreaNo, why: &impl std::fmt::Display) {
        self.stats.count(Event::pages_poisoned);
        self.stats.count(Event::pages_lost);
        let touched =
            if self.staging.has_homes { "" } else { " and will raise SIGBUS when touched" };
        self.trouble("a page is lost", area, format!("a page is lost{touched}: {why}"));
        self.space.poison(page);
    }

    /// A victim that would not leave the program's sight.
    pub(crate) fn unmap_refused(&self, victim: Victim, why: SpaceError) {
        match why {
            SpaceError::Pinned => {
                self.stats.count(Event::evict_pinned);
                self.put_back(victim, LruList::Active);
            }
            SpaceError::Busy | SpaceError::Refused => {
                self.stats.count(Event::evict_refused);
                self.put_back(victim, LruList::Active);
            }
            // With its address space went whoever could ask for it.
            SpaceError::Gone => {
                self.frames.clear(victim.frame, flag::MAPPED);
                self.table.replace(victim.page, Pte::Resident(victim.frame), Pte::Empty);
                self.drop_cached(victim.frame, victim.page);
            }
            SpaceError::Missing | SpaceError::Torn => self.lose(victim, why),
        }
    }

    /// Pages that were read and could not all be mapped: the rest of a run whose words are Resident. They are on
    /// their slots, and stay there.
    pub(crate) fn map_refused(&self, rest: impl Iterator<Item = Victim>, why: SpaceError) {
        for (n, victim) in rest.enumerate() {
            match (n, why) {
                (0, SpaceError::Refused | SpaceError::Torn | SpaceError::Missing) => {
                    self.lose(victim, why);
                }
                _ => self.leave_on_slot(victim),
            }
        }
    }

    fn leave_on_slot(&self, victim: Victim) {
        let entry = self.frames.entry(victim.frame).expect("a page just read is cached");
        self.stay_on(victim, entry);
        self.space.wake(victim.page);
    }

    /// Zeros that could not all be mapped: the pages are untouched as before.
    pub(crate) fn zeros_refused(&self, rest: impl Iterator<Item = Victim>, why: SpaceError) {
        for (n, victim) in rest.enumerate() {
            if n == 0 && matches!(why, SpaceError::Refused | SpaceError::Torn) {
                self.lose(victim, why);
                continue;
            }
            let Victim { frame, page } = victim;
            self.table.replace(page, Pte::Resident(frame), Pte::Empty);
            self.free_page(frame, page);
            self.space.wake(page);
        }
    }

    /// As [`map_back`](Self::map_back), for a page that has no other place: tries again while there is hope.
    pub(crate) fn map_back_in_the_end(
        &self,
        page: PageNo,
        frame: FrameNo,
        staged: usize,
    ) -> Result<(), SpaceError> {
        let mut rounds = 0;
        loop {
            match self.map_back(page, frame, staged) {
                Mapped { stopped: None, .. } => return Ok(()),
                Mapped { stopped: Some(SpaceError::Busy), .. } if rounds < PATIENCE_ROUNDS => {
                    rounds += 1;
                    self.freed.wait(self.freed.count(), Some(Duration::from_millis(1)));
                }
                Mapped { stopped: Some(why), .. } => return Err(why),
            }
        }
    }

    /// Moves a locked page's content, which is mapped, to another address. Tries again while there is hope.
    ///
    /// # Errors
    /// Why it cannot be had at the new one.
    pub(crate) fn move_content(&self, from: PageNo, to: PageNo) -> Result<(), SpaceError> {
        let mut rounds = 0;
        loop {
            match self.space.transfer(from, to) {
                Err(SpaceError::Busy) if rounds < PATIENCE_ROUNDS => {
                    rounds += 1;
                    self.freed.wait(self.freed.count(), Some(Duration::from_millis(1)));
                }
                result => return result,
            }
        }
    }
}
