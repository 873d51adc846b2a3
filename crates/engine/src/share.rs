//! Sharing: a forked child's pages get the content of its parent's.
//!
//! Owns: what the child gets of a page that the kernel could not give it, because it was not in the
//! parent's memory.
//! Invariants: the child never reads zeros for a page that its parent had. A hold is added to a
//! slot only while its content stays: a page of its is there and its write has ended. Pages that
//! share a slot are as independent as any two: each has a frame of its own when it is in memory,
//! and gives up its hold by itself; none writes to the slot as long as others are on it.
//! Not here: pages that are in memory, which the kernel copies on write
//! ([`adopt`](Engine::adopt)).
//! Rejected: using what a mapped page of the parent has on its slot, where the child's page is
//! missing: it may be older than what was evicted before the fork.

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::space::SpaceError;
use crate::store::Store;
use crate::types::{Pte, flag};
use crate::worker::Worker;
use overspill_area::{SwapEntry, TooManyHolders};
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo};

/// Why a child could not be given all pages of its parent. End it, and discard its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// A page that could not be written to a device needs a frame, and there is none.
    #[error("memory ran out while a child was given its parent's pages: raise the limit")]
    NoFrame,
    /// Too many children have a page that none of them has touched.
    #[error(transparent)]
    TooMany(#[from] TooManyHolders),
}

impl Engine {
    /// Gives the untouched pages from `to` on what those of the `pages` pages from `from` on hold
    /// that are out. Of the others `in_memory` says whether the child has them, so that
    /// [`adopt`](Self::adopt) takes them. A lost page is lost in the child too. Sleeps for pages
    /// that are on their way.
    ///
    /// Neither range may be touched or dropped meanwhile, nor lie in the span of a page that is:
    /// zeros would be mapped there. No page of the parent may have been mapped since the child's
    /// memory was copied; one that was is lost in the child, because its content then is not known.
    /// A page that found no slot on its way out is waited for until it is mapped again; an address
    /// space that refuses that for as long as the call takes loses it in the end.
    ///
    /// # Errors
    /// [`ShareError`].
    ///
    /// # Panics
    /// With a pool.
    pub fn share(
        &self,
        worker: &mut Worker,
        (from, to): (PageNo, PageNo),
        pages: usize,
        in_memory: impl Fn(PageNo) -> bool,
    ) -> Result<(), ShareError> {
        assert!(matches!(self.store, Store::Moving(_)), "pages of a pool are nobody's");
        // A page may be locked by a read that this worker has to end.
        worker.finish(self);
        self.has_shared.store(true, Relaxed);
        let mut pairs = (0..pages).map(|n| (from.plus(n), to.plus(n)));
        pairs.try_for_each(|(from, to)| self.share_page(worker, (from, to), &in_memory))
    }

    fn share_page(
        &self,
        worker: &mut Worker,
        (from, to): (PageNo, PageNo),
        in_memory: &impl Fn(PageNo) -> bool,
    ) -> Result<(), ShareError> {
        loop {
            let word = self.table.load(from);
            let done = match word {
                Pte::Empty => true,
                Pte::Resident(frame) => self.share_resident((from, to), frame, in_memory),
                Pte::Swapped { entry, .. } => {
                    self.drop_left_behind(entry, to);
                    match self.frame_on(from, entry) {
                        Some(frame) => self.share_cached(worker, from, to, (word, entry), frame)?,
                        None => self.share_uncached(from, to, (word, entry))?,
                    }
                }
                Pte::Poisoned => {
                    self.table.replace(to, Pte::Empty, word);
                    self.space.poison(to);
                    true
                }
            };
            if done {
                return Ok(());
            }
        }
    }

    /// Poisons the child's page, unless it has it. What the parent has on a slot is not used
    /// instead: it may be older than what was evicted before the fork.
    fn share_resident(
        &self,
        (from, to): (PageNo, PageNo),
        frame: FrameNo,
        in_memory: &impl Fn(PageNo) -> bool,
    ) -> bool {
        // One that is on its way out is swapped, or mapped again, when its lock is free.
        let Some(locked) = self.lock_resident(from, frame) else { return false };
        self.unlock(locked);
        if !in_memory(to) && self.table.replace(to, Pte::Empty, Pte::Poisoned) {
            self.count_lost(to, SpaceError::Missing);
        }
        true
    }

    fn share_uncached(
        &self,
        from: PageNo,
        to: PageNo,
        (word, entry): (Pte, SwapEntry),
    ) -> Result<bool, TooManyHolders> {
        let mut shared = Ok(());
        let unchanged = self.cache.while_uncached(&self.frames, &self.table, (from, word), || {
            shared = self.put_on(to, word, entry);
            true
        });
        shared.map(|()| unchanged)
    }

    fn share_cached(
        &self,
        worker: &mut Worker,
        from: PageNo,
        to: PageNo,
        (word, entry): (Pte, SwapEntry),
        frame: FrameNo,
    ) -> Result<bool, ShareError> {
        let Some(locked) = self.frames.lock(frame) else { return Ok(false) };
        let is_it = locked.page() == from
            && self.frames.entry(frame) == Some(entry)
            && self.table.load(from) == word;
        let shared = match is_it {
            true => self.share_locked(worker, &locked, to, (word, entry)),
            false => Ok(()),
        };
        self.unlock(locked);
        shared.map(|()| is_it)
    }

    fn share_locked(
        &self,
        worker: &mut Worker,
        parent: &LockedPage,
        to: PageNo,
        (word, entry): (Pte, SwapEntry),
    ) -> Result<(), ShareError> {
        self.frames.wait_writeback(parent.frame());
        if self.frames.has(parent.frame(), flag::DIRTY) {
            return self.copy_staged(worker, parent, to);
        }
        Ok(self.put_on(to, word, entry)?)
    }

    /// Adds a page to a slot whose content stays meanwhile.
    fn put_on(&self, page: PageNo, word: Pte, entry: SwapEntry) -> Result<(), TooManyHolders> {
        self.areas.get(entry.area()).share(entry.slot())?;
        self.stats.count(Event::pgshare);
        let was_untouched = self.table.replace(page, Pte::Empty, word);
        assert!(was_untouched, "{page} was touched while it was given a slot");
        Ok(())
    }

    /// Maps the child's page with what is in staging memory only, because its write failed.
    fn copy_staged(
        &self,
        worker: &mut Worker,
        parent: &LockedPage,
        to: PageNo,
    ) -> Result<(), ShareError> {
        let staged = self.frames.staged(parent.frame()).expect("a dirty page is staged");
        let child = self.frame_for(worker, to).ok_or(ShareError::NoFrame)?;
        let was_untouched = self.table.replace(to, Pte::Empty, Pte::Resident(child.frame()));
        assert!(was_untouched, "{to} was touched while it was given its content");
        match self.show_in_the_end(&child, staged) {
            Ok(()) => {
                self.frames.set(child.frame(), flag::MAPPED);
                self.put_back(child, LruList::Inactive);
            }
            Err(why) => self.lose(child, why),
        }
        Ok(())
    }
}
