//! Operations of a program on ranges: dropping, and giving up.
//!
//! Invariants: pages of the address space are dropped only with their page locks held, so a
//! concurrent fault sees either the old page or none. Ranges are locked in ascending order; reclaim
//! and readahead only try locks, so there is no cycle.
//! These calls may sleep for a page's I/O. The caller must not be a worker with I/O in flight.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::types::{Pte, flag};
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo};

/// Resident pages locked and dropped with one call.
const ZAP_BATCH: usize = 64;

impl Engine {
    /// Drops the content of `pages` pages from `first` on: they read as zeros afterwards.
    pub fn discard(&self, first: PageNo, pages: usize) {
        let mut locked: Vec<LockedPage> = Vec::with_capacity(ZAP_BATCH);
        for page in (0..pages).map(|n| first.plus(n)) {
            let resident = self.lock_or_forget(page);
            if resident.is_none() || locked.len() == ZAP_BATCH {
                self.zap_locked(&mut locked);
            }
            locked.extend(resident);
        }
        self.zap_locked(&mut locked);
    }

    /// Locks a resident page; drops any other.
    fn lock_or_forget(&self, page: PageNo) -> Option<LockedPage> {
        loop {
            let word = self.table.load(page);
            match word {
                Pte::Empty => {
                    // It may be zeros that were evicted.
                    self.distances.forget(page);
                    return None;
                }
                Pte::Resident(frame) => {
                    if let Some(locked) = self.lock_resident(page, frame) {
                        return Some(locked);
                    }
                }
                Pte::Swapped { .. } => {
                    match self.cache.drop_reference(
                        &self.frames,
                        &self.table,
                        page,
                        word,
                        Pte::Empty,
                    ) {
                        Ok(freed) => {
                            self.distances.forget(page);
                            self.stats.count(Event::pgdiscard);
                            freed.into_iter().for_each(|entry| self.free_entry(entry));
                            return None;
                        }
                        Err(_) => continue,
                    }
                }
                Pte::Poisoned => {
                    if self.table.replace(page, word, Pte::Empty) {
                        self.space.zap(page, 1);
                        return None;
                    }
                }
            }
        }
    }

    /// Waits for the lock of a page resident in `frame`; `None` if it is no longer there.
    pub(crate) fn lock_resident(&self, page: PageNo, frame: FrameNo) -> Option<LockedPage> {
        let locked = self.frames.lock(frame)?;
        if self.table.load(page) == Pte::Resident(frame) {
            return Some(locked);
        }
        self.unlock(locked);
        None
    }

    /// Drops adjacent resident pages.
    fn zap_locked(&self, locked: &mut Vec<LockedPage>) {
        let Some(first) = locked.first().map(LockedPage::page) else { return };
        self.space.zap(first, locked.len());
        self.stats.add(Event::pgdiscard, locked.len() as u64);
        locked.drain(..).for_each(|locked| self.forget_resident(locked));
    }

    fn forget_resident(&self, locked: LockedPage) {
        let resident = Pte::Resident(locked.frame());
        self.table.replace(locked.page(), resident, Pte::Empty);
        self.frames.wait_writeback(locked.frame());
        self.frames.clear(locked.frame(), flag::MAPPED);
        self.drop_cached(locked);
    }

    /// Gives up those of `pages` pages from `first` on that are in memory: there they stay, as
    /// nobody's that the engine knows. The others stay the engine's; a page that is on its way out
    /// is waited for, and is then one of those.
    pub fn give_up(&self, first: PageNo, pages: usize) {
        for page in (0..pages).map(|n| first.plus(n)) {
            // One that is brought back to be given up does not count as one that comes back.
            self.distances.forget(page);
            if let Pte::Resident(frame) = self.table.load(page)
                && let Some(locked) = self.lock_resident(page, frame)
            {
                self.forget_resident(locked);
            }
        }
    }
}
