//! Pages that cannot be where they should be.
//!
//! Owns: what becomes of a page when its address space refuses. Invariants: content that is
//! somewhere is kept there; content that is nowhere is never replaced by zeros: its toucher gets
//! SIGBUS, a line says so, and `pages_lost` counts it. Whoever waits for a page that did not come
//! is woken, touches it again, and so asks again. What staging memory or a slot still has of a page
//! that was mapped is no answer: it may be older than what the program wrote.
//! Not here: pages whose device lost them (`complete`), where a page is looked for (`space`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::space::{Mapped, SpaceError};
use crate::store::Moving;
use crate::types::{Pte, flag};
use overspill_area::AreaNo;
use overspill_base::PageNo;
use overspill_base::report::Cause;
use overspill_base::stats::Event;
use std::time::Duration;

/// Tries, a millisecond apart at least, of putting a page back that has no other place to be.
const PATIENCE_ROUNDS: u32 = 5000;

impl Engine {
    /// Gives up a resident page whose content is nowhere.
    pub(crate) fn lose(&self, locked: LockedPage, why: SpaceError) {
        let resident = Pte::Resident(locked.frame());
        self.table.replace(locked.page(), resident, Pte::Poisoned);
        self.count_lost(locked.page(), why);
        self.frames.clear(locked.frame(), flag::MAPPED);
        self.drop_cached(locked);
    }

    /// Counts and tells a loss, and has whoever touches `page` get SIGBUS.
    pub(crate) fn count_lost(&self, page: PageNo, why: SpaceError) {
        self.stats.count(Event::pages_lost);
        self.reports.tell(
            Cause::of("a page is lost"),
            format!("a page is lost and will raise SIGBUS when touched: {why}"),
        );
        self.space.poison(page);
    }

    /// A device lost the content of `page`, whose word says so.
    pub(crate) fn count_poisoned(&self, page: PageNo, area: AreaNo, why: &impl std::fmt::Display) {
        self.stats.count(Event::pages_poisoned);
        self.stats.count(Event::pages_lost);
        let touched = self.store.touch_of_lost();
        self.report_error("a page is lost", area, format!("a page is lost{touched}: {why}"));
        self.space.poison(page);
    }

    /// A victim that would not leave the program's sight.
    pub(crate) fn unmap_refused(&self, victim: LockedPage, why: SpaceError) {
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
                self.frames.clear(victim.frame(), flag::MAPPED);
                self.forget(victim);
            }
            SpaceError::Missing | SpaceError::Torn => self.lose(victim, why),
        }
    }

    /// Pages that were read and could not all be mapped: the rest of a run whose words are
    /// Resident. They are on their slots, and stay there.
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

    /// Zeros that could not all be mapped: the pages are untouched as before.
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

    /// Brings a page back in sight that has no other place to be: tries again while there is hope.
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

    /// Moves the content of a mapped page to another address. Tries again while there is hope.
    ///
    /// # Errors
    /// Why it cannot be had at the new one.
    pub(crate) fn move_content(
        &self,
        moving: &Moving,
        locked: &LockedPage,
        to: PageNo,
    ) -> Result<(), SpaceError> {
        self.patiently(|| moving.space.transfer(locked.page(), to))
    }

    /// Repeats what the kernel has no memory for.
    fn patiently(&self, act: impl Fn() -> Result<(), SpaceError>) -> Result<(), SpaceError> {
        let mut rounds = 0;
        loop {
            match act() {
                Err(SpaceError::Busy) if rounds < PATIENCE_ROUNDS => {
                    rounds += 1;
                    self.freed.wait(self.freed.count(), Some(Duration::from_millis(1)));
                }
                result => return result,
            }
        }
    }
}
