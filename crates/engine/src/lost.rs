//! Pages that an address space refused to map or unmap, and lost pages.
//!
//! Owns: what becomes of a page when its address space refuses.
//! Invariants: content is kept where it is; lost content is never replaced by zeros: a thread that
//! touches it gets SIGBUS, a line reports it, and `pages_lost` counts it. A thread that waits for a
//! page that could not be mapped is woken and faults again. A copy of a mapped page in staging
//! memory or on a slot is never used instead: it may be older than the program's last write.
//! Not here: pages that a device lost (`complete`), the search for a page (`space`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::space::{Mapped, SpaceError};
use crate::types::{Pte, flag};
use overspill_area::AreaNo;
use overspill_base::PageNo;
use overspill_base::report::Cause;
use overspill_base::stats::Event;
use std::time::Duration;

/// Retries of mapping a page that has no other place to be, each after a wait of up to 1 ms.
const PATIENCE_ROUNDS: u32 = 5000;

impl Engine {
    /// Poisons a resident page whose content is lost.
    pub(crate) fn lose(&self, locked: LockedPage, why: SpaceError) {
        let resident = Pte::Resident(locked.frame());
        self.table.replace(locked.page(), resident, Pte::Poisoned);
        self.count_lost(locked.page(), why);
        self.frames.clear(locked.frame(), flag::MAPPED);
        self.drop_cached(locked);
    }

    /// Counts and reports a loss, and makes every touch of `page` raise SIGBUS.
    pub(crate) fn count_lost(&self, page: PageNo, why: SpaceError) {
        self.stats.count(Event::pages_lost);
        self.reports.tell(
            Cause::of("a page is lost"),
            format!("a page is lost and will raise SIGBUS when touched: {why}"),
        );
        self.space.poison(page);
    }

    /// Counts and reports that a device lost the content of `page`, whose word is Poisoned already.
    pub(crate) fn count_poisoned(&self, page: PageNo, area: AreaNo, why: &impl std::fmt::Display) {
        self.stats.count(Event::pages_poisoned);
        self.stats.count(Event::pages_lost);
        let touched = self.store.touch_of_lost();
        self.report_error("a page is lost", area, format!("a page is lost{touched}: {why}"));
        self.space.poison(page);
    }

    /// Deals with a victim that could not be unmapped.
    pub(crate) fn unmap_refused(&self, victim: LockedPage, why: SpaceError) {
        match why {
            SpaceError::Pinned => {
                self.stats.count(Event::evict_pinned);
                self.put_back(victim, LruList::Active);
            }
            SpaceError::Busy | SpaceError::Changing | SpaceError::Refused => {
                self.stats.count(Event::evict_refused);
                self.put_back(victim, LruList::Active);
            }
            // The address space is gone, and with it every user of the page.
            SpaceError::Gone => {
                self.frames.clear(victim.frame(), flag::MAPPED);
                self.forget(victim);
            }
            SpaceError::Missing | SpaceError::Torn => self.lose(victim, why),
        }
    }

    /// Deals with the rest of a run of pages that were read, whose words are Resident, and could
    /// not be mapped. They stay on their slots.
    pub(crate) fn map_refused(&self, rest: impl Iterator<Item = LockedPage>, why: SpaceError) {
        for (n, locked) in rest.enumerate() {
            match (n, why) {
                (0, SpaceError::Refused | SpaceError::Torn | SpaceError::Missing) => {
                    self.lose(locked, why);
                }
                _ => self.leave_on_slot(locked),
            }
        }
    }

    fn leave_on_slot(&self, locked: LockedPage) {
        let (page, entry) = (locked.page(), self.frames.entry(locked.frame()));
        self.stay_on(locked, entry.expect("a page just read is cached"));
        self.space.wake(page);
    }

    /// Deals with the rest of a run of zeros that could not be mapped: the pages are Empty again.
    pub(crate) fn zeros_refused(&self, rest: impl Iterator<Item = LockedPage>, why: SpaceError) {
        for (n, locked) in rest.enumerate() {
            if n == 0 && matches!(why, SpaceError::Refused | SpaceError::Torn) {
                self.lose(locked, why);
                continue;
            }
            let page = locked.page();
            self.forget(locked);
            self.space.wake(page);
        }
    }

    /// Maps a page again that has no other place to be; retries while that cannot be now.
    pub(crate) fn show_in_the_end(
        &self,
        locked: &LockedPage,
        staged: usize,
    ) -> Result<(), SpaceError> {
        self.patiently(|| match self.store.show(locked, &self.memory, staged) {
            Mapped { stopped: None, .. } => Ok(()),
            Mapped { stopped: Some(why), .. } => Err(why),
        })
    }

    /// Repeats `act` while the pages' owner is in the middle of something, and while the kernel has
    /// no memory for it, up to [`PATIENCE_ROUNDS`] times.
    fn patiently(&self, act: impl Fn() -> Result<(), SpaceError>) -> Result<(), SpaceError> {
        let mut rounds = 0;
        loop {
            match act() {
                Err(why @ (SpaceError::Busy | SpaceError::Changing))
                    if rounds < PATIENCE_ROUNDS =>
                {
                    rounds += u32::from(why == SpaceError::Busy);
                    self.freed.wait(self.freed.count(), Some(Duration::from_millis(1)));
                }
                result => return result,
            }
        }
    }
}
