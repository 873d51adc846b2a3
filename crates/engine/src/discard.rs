//! What a program does to ranges on purpose: drop them, move them, lock them in memory.
//!
//! Invariants: the address space's pages are dropped only while their page locks are held, so a
//! fault in between sees either the old page or none. Ranges are locked in ascending order; reclaim
//! and readahead only try locks, so there is no cycle.
//! These calls may sleep for a page's I/O. The caller must not be a worker with I/O in flight.

use crate::engine::Engine;
use crate::space::SpaceError;
use crate::types::{Pte, flag};
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo};

/// Resident pages locked and dropped with one call.
const ZAP_BATCH: usize = 64;

impl Engine {
    /// Forgets the content of `pages` pages from `first` on: they read as zeros afterwards.
    pub fn discard(&self, first: PageNo, pages: usize) {
        let mut locked: Vec<FrameNo> = Vec::with_capacity(ZAP_BATCH);
        let mut next = first;
        for page in (0..pages).map(|n| first.plus(n)) {
            if let Some(frame) = self.lock_resident(page) {
                if locked.len() == ZAP_BATCH {
                    self.zap_locked(next, &mut locked);
                }
                if locked.is_empty() {
                    next = page;
                }
                locked.push(frame);
                continue;
            }
            self.zap_locked(next, &mut locked);
        }
        self.zap_locked(next, &mut locked);
    }

    /// Forgets a page that is not resident, or locks the frame of one that is.
    fn lock_resident(&self, page: PageNo) -> Option<FrameNo> {
        loop {
            let word = self.table.load(page);
            match word {
                Pte::Empty => return None,
                Pte::Resident(frame) => {
                    self.frames.lock(frame);
                    if self.table.load(page) == word {
                        return Some(frame);
                    }
                    self.unlock_frame(frame);
                }
                Pte::Swapped { .. } => {
                    match self.cache.drop_reference(&self.table, page, word, Pte::Empty) {
                        Ok(freed) => {
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

    /// Drops adjacent resident pages whose frames are locked.
    fn zap_locked(&self, first: PageNo, locked: &mut Vec<FrameNo>) {
        if locked.is_empty() {
            return;
        }
        self.space.zap(first, locked.len());
        self.stats.add(Event::pgdiscard, locked.len() as u64);
        for (n, frame) in locked.drain(..).enumerate() {
            let page = first.plus(n);
            self.table.replace(page, Pte::Resident(frame), Pte::Empty);
            self.frames.wait_writeback(frame);
            self.frames.clear(frame, flag::MAPPED);
            self.drop_cached(frame, page);
        }
    }

    /// Moves the content of `pages` pages from `from` to the untouched pages at `to`. Nobody may
    /// touch either range meanwhile.
    pub fn transfer(&self, from: PageNo, to: PageNo, pages: usize) {
        for n in 0..pages {
            self.transfer_page(from.plus(n), to.plus(n));
        }
    }

    fn transfer_page(&self, from: PageNo, to: PageNo) {
        loop {
            let word = self.table.load(from);
            let moved = match word {
                Pte::Empty => true,
                Pte::Resident(frame) => self.transfer_resident(from, to, word, frame),
                Pte::Swapped { entry, .. } => match self.cache.lookup(entry) {
                    Some(frame) => self.transfer_cached(from, to, word, frame),
                    None => self.transfer_uncached(from, to, word, entry),
                },
                Pte::Poisoned => {
                    self.space.poison(to);
                    self.table.replace(to, Pte::Empty, word);
                    // Nobody would take the poison away later: discarding skips empty words.
                    self.space.zap(from, 1);
                    self.table.replace(from, word, Pte::Empty)
                }
            };
            if moved {
                return;
            }
        }
    }

    fn transfer_resident(&self, from: PageNo, to: PageNo, word: Pte, frame: FrameNo) -> bool {
        self.frames.lock(frame);
        if self.table.load(from) != word {
            self.unlock_frame(frame);
            return false;
        }
        self.frames.wait_writeback(frame);
        if let Err(why) = self.move_content(from, to) {
            self.lose_moved(from, to, frame, why);
            return true;
        }
        self.rename(from, to, word, frame);
        true
    }

    /// The content of a locked page could not follow it to its new address.
    fn lose_moved(&self, from: PageNo, to: PageNo, frame: FrameNo, why: SpaceError) {
        self.table.replace(to, Pte::Empty, Pte::Poisoned);
        self.count_lost(to, why);
        self.space.zap(from, 1);
        self.table.replace(from, Pte::Resident(frame), Pte::Empty);
        self.frames.clear(frame, flag::MAPPED);
        self.drop_cached(frame, from);
    }

    fn transfer_uncached(&self, from: PageNo, to: PageNo, word: Pte, entry: SwapEntry) -> bool {
        let moved = self.cache.move_reference(&self.table, from, to, word);
        if moved {
            self.note_page(entry, to);
        }
        moved
    }

    fn transfer_cached(&self, from: PageNo, to: PageNo, word: Pte, frame: FrameNo) -> bool {
        self.frames.lock(frame);
        if self.table.load(from) != word || self.frames.page(frame) != Some(from) {
            self.unlock_frame(frame);
            return false;
        }
        self.rename(from, to, word, frame);
        true
    }

    fn rename(&self, from: PageNo, to: PageNo, word: Pte, frame: FrameNo) {
        self.table.replace(to, Pte::Empty, word);
        self.frames.set_page(frame, to);
        self.frames.entry(frame).into_iter().for_each(|entry| self.note_page(entry, to));
        self.table.replace(from, word, Pte::Empty);
        if self.table.take_faulted(from) {
            self.space.wake(from);
        }
        self.unlock_page(frame, to);
    }

    /// Keeps a page in memory, or stops doing so. False if it is not in memory now: touch it and
    /// ask again.
    pub fn set_unevictable(&self, page: PageNo, unevictable: bool) -> bool {
        self.if_resident(page, |frame| self.frames.set_unevictable(frame, unevictable))
            .unwrap_or(!unevictable)
    }

    /// Keeps a page in memory until it is unpinned as often as it was pinned. False if it is not in
    /// memory now: touch it and ask again. Pins and
    /// [`set_unevictable`](Self::set_unevictable) do not know of each other.
    pub fn pin(&self, page: PageNo) -> bool {
        self.if_resident(page, |frame| self.frames.pin(frame, true)).unwrap_or(false)
    }

    /// Ends one pin of a page.
    pub fn unpin(&self, page: PageNo) {
        while self.if_resident(page, |frame| self.frames.pin(frame, false)) == Some(false) {}
    }

    /// Does something to the locked frame of a page. `None` if the page is not in memory,
    /// `Some(false)` if it has just changed.
    fn if_resident(&self, page: PageNo, act: impl FnOnce(FrameNo)) -> Option<bool> {
        let word = self.table.load(page);
        let Pte::Resident(frame) = word else { return None };
        self.frames.lock(frame);
        let same = self.table.load(page) == word;
        if same {
            act(frame);
        }
        self.unlock_frame(frame);
        Some(same)
    }
}
