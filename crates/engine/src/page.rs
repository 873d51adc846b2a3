//! Operations on one page: the transitions of the table in [`crate::types`].
//!
//! Owns: every change of a page's word together with its frame. Each function takes the page lock
//! as a [`LockedPage`], and returns or ends it.
//! Invariants: a page gives up its slot only when neither its word nor the cache refers to it;
//! threads that wait for a page lock are woken by the thread that releases it.
//! Not here: which pages (`reclaim`, `readahead`), I/O (`complete`), pages that are lost (`lost`).

use crate::distances::Refault;
use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::lru::LruList;
use crate::swap_cache::Inserted;
use crate::transfer::ToRead;
use crate::types::{Pte, flag};
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{FrameNo, PageNo};

/// The result of mapping a page from staging memory.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Staged {
    /// It is mapped.
    Mapped(LockedPage),
    /// Its word or its staging page has changed.
    Changed,
    /// The space refused: it stays in staging memory, and the faulting thread retries.
    Refused,
}

impl Engine {
    /// Returns the frame of a mapped page. A hint, unless its lock is held.
    pub(crate) fn resident_frame(&self, page: PageNo) -> Option<FrameNo> {
        match self.table.load(page) {
            Pte::Resident(frame) => Some(frame),
            _ => None,
        }
    }

    /// Returns the frame of a swapped page that is in the swap cache.
    pub(crate) fn cached_frame(&self, page: PageNo) -> Option<FrameNo> {
        match self.table.load(page) {
            Pte::Swapped { entry, .. } => self.frame_on(page, entry),
            _ => None,
        }
    }

    /// Returns the frame in which `page` is cached under `entry`.
    pub(crate) fn frame_on(&self, page: PageNo, entry: SwapEntry) -> Option<FrameNo> {
        self.cache.lookup(entry, page, &self.frames)
    }

    /// Releases a page lock, and wakes threads of the program that found the page locked.
    pub(crate) fn unlock(&self, locked: LockedPage) {
        let page = locked.page();
        self.frames.unlock(locked);
        self.wake_faulted(page);
    }

    /// Wakes threads of the program that found `page` locked.
    fn wake_faulted(&self, page: PageNo) {
        if self.table.take_faulted(page) {
            self.space.wake(page);
        }
    }

    /// Frees the frame of a page that is no longer in memory.
    pub(crate) fn free(&self, locked: LockedPage) {
        let page = locked.page();
        self.lru.remove(&locked, &self.frames);
        self.frames.free(locked);
        self.wake_faulted(page);
        if self.starving.load(Relaxed) > 0 {
            self.freed.notify();
        }
    }

    /// Puts a page on a list and unlocks it.
    pub(crate) fn put_back(&self, locked: LockedPage, list: LruList) {
        self.lru.add(&locked, list, &self.frames);
        self.unlock(locked);
    }

    /// Removes a page from the swap cache, and gives up its slot if its word does not refer to it.
    pub(crate) fn uncache(&self, locked: &LockedPage) {
        let freed = self.cache.remove(locked, &self.frames, &self.table);
        freed.into_iter().for_each(|entry| self.free_entry(entry));
    }

    /// Frees the frame of a page that is not mapped, and gives up its slot if its word does not
    /// refer to it.
    pub(crate) fn drop_cached(&self, locked: LockedPage) {
        if self.distances.counts(locked.page())
            && let Some(entry) = self.frames.entry(locked.frame())
            && self.table.is_on(locked.page(), entry)
        {
            self.went_out(locked.page());
        }
        self.uncache(&locked);
        self.release_staged(locked.frame());
        self.free(locked);
    }

    /// Releases the staging page of a frame, if it has one.
    pub(crate) fn release_staged(&self, frame: FrameNo) {
        if let Some(staged) = self.frames.staged(frame) {
            self.frames.set_staged(frame, None);
            self.store.release(staged);
        }
    }

    /// Turns the word of a page in staging memory to Resident; returns its entry and its staging
    /// page. On failure releases the lock.
    pub(crate) fn claim_staged(
        &self,
        locked: LockedPage,
        word: Pte,
    ) -> Option<(LockedPage, SwapEntry, usize)> {
        let (frame, page) = (locked.frame(), locked.page());
        if let (Some(staged), Pte::Swapped { entry, .. }) = (self.frames.staged(frame), word)
            && self.table.replace(page, word, Pte::Resident(frame))
        {
            self.mark_copy(entry);
            return Some((locked, entry, staged));
        }
        self.unlock(locked);
        None
    }

    /// Maps a cached page from staging memory. On failure releases the lock.
    pub(crate) fn map_staged(&self, locked: LockedPage, word: Pte) -> Staged {
        let Some((locked, entry, staged)) = self.claim_staged(locked, word) else {
            return Staged::Changed;
        };
        if self.store.show(&locked, &self.memory, staged).stopped.is_some() {
            // Its content stays in staging memory.
            let (frame, page) = (locked.frame(), locked.page());
            self.unmark_copy(entry);
            self.table.replace(page, Pte::Resident(frame), word);
            self.unlock(locked);
            self.space.wake(page);
            return Staged::Refused;
        }
        self.note_mapped(&locked);
        Staged::Mapped(locked)
    }

    /// Updates the state of a page just mapped from staging memory, and releases its staging page,
    /// unless its write is in flight: then the completion sees MAPPED and releases it.
    fn note_mapped(&self, locked: &LockedPage) {
        let frame = locked.frame();
        let before = self.frames.set(frame, flag::MAPPED);
        if before & flag::WRITEBACK == 0 {
            self.release_staged(frame);
        }
        if self.frames.clear(frame, flag::DIRTY) & flag::DIRTY != 0 {
            self.uncache(locked);
        }
        self.keep_or_free_copy(locked);
    }

    /// Frees the copy that a page just mapped has on its slot, if the area is being swapped off, or
    /// if slots are scarce and the tuning reclaims copies early, or other pages are on the slot.
    /// Keeps one being written.
    pub(crate) fn keep_or_free_copy(&self, locked: &LockedPage) {
        let Some(entry) = self.frames.entry(locked.frame()) else { return };
        let area = entry.area();
        let early = self.tuning.reclaims_copies_early() || self.has_other_pages(entry);
        let scarce = early && self.areas.get(area).is_half_full();
        let unwanted = scarce || self.swaps.get(area).is_leaving();
        if unwanted && !self.frames.has(locked.frame(), flag::WRITEBACK) {
            self.uncache(locked);
        }
    }

    /// Turns the word of a page just read to Resident; drops the page if it was discarded
    /// meanwhile.
    pub(crate) fn accept(&self, locked: LockedPage, entry: SwapEntry) -> Option<LockedPage> {
        let (frame, page) = (locked.frame(), locked.page());
        let ours = self.table.load_on(page, entry);
        let Some(word) = ours.filter(|&word| self.table.replace(page, word, Pte::Resident(frame)))
        else {
            // A faulting thread sleeps for this read; it retries with the new state.
            self.space.wake(page);
            self.drop_cached(locked);
            return None;
        };
        self.mark_copy(entry);
        if self.frames.clear(frame, flag::READAHEAD) & flag::READAHEAD != 0 {
            self.frames.set(frame, flag::STREAMED);
        }
        if self.refault_activates(word) {
            self.frames.set(frame, flag::ACTIVE);
        }
        Some(locked)
    }

    /// As [`accept`](Self::accept), for a page that has waited in staging memory since it was read.
    /// Returns its staging page, for the caller to map.
    pub(crate) fn accept_waiting(
        &self,
        locked: LockedPage,
        word: Pte,
    ) -> Option<(LockedPage, usize)> {
        let (locked, _, at) = self.claim_staged(locked, word)?;
        let frame = locked.frame();
        self.frames.set_staged(frame, None);
        self.frames.clear(frame, flag::READAHEAD);
        self.frames.set(frame, flag::STREAMED);
        self.stats.count(Event::workingset_refault);
        Some((locked, at))
    }

    /// Caches the entry of a page to be read ahead, and passes the page lock to the read; on
    /// failure frees the frame.
    pub(crate) fn cache_ahead(&self, locked: LockedPage, entry: SwapEntry) -> Option<ToRead> {
        let frame = locked.frame();
        match self.cache.insert(entry, &locked, &self.frames, &self.table) {
            Inserted::Yes => {
                self.came_back(locked.page());
                self.frames.set(frame, flag::READAHEAD);
                self.frames.lend_to_io(locked);
                Some(ToRead { entry, frame })
            }
            Inserted::Exists | Inserted::Changed => {
                self.free(locked);
                None
            }
        }
    }

    /// Completes a page that was read and is mapped, and unlocks it.
    pub(crate) fn finish_read(&self, locked: LockedPage) {
        self.frames.set(locked.frame(), flag::MAPPED);
        self.keep_or_free_copy(&locked);
        // A page that has waited is already on a list.
        if !self.frames.has(locked.frame(), flag::LRU | flag::ADD_PENDING) {
            let active = self.frames.has(locked.frame(), flag::ACTIVE);
            let list = if active { LruList::Active } else { LruList::Inactive };
            self.lru.add(&locked, list, &self.frames);
        }
        self.unlock(locked);
    }

    /// Leaves a page read ahead in the swap cache until it is touched or reclaimed.
    pub(crate) fn leave_in_cache(&self, locked: LockedPage, entry: SwapEntry) {
        if self.table.is_on(locked.page(), entry) {
            self.put_back(locked, LruList::Inactive);
        } else {
            self.drop_cached(locked);
        }
    }

    /// Counts the refault of a page whose word was `word`; true if it should be active.
    pub(crate) fn refault_activates(&self, word: Pte) -> bool {
        self.stats.count(Event::workingset_refault);
        let Pte::Swapped { shadow, .. } = word else { return false };
        let (active, frames) = (self.lru.active_len(), self.limit_frames());
        let activates = self.workingset.refault_activates(shadow, active, frames as u64);
        if activates {
            self.stats.count(Event::workingset_activate);
            self.workingset.activated();
        }
        activates
    }

    /// Notes that a page is about to have no frame any more.
    pub(crate) fn went_out(&self, page: PageNo) {
        if let Some(out) = self.distances.evicted(page) {
            let used = self.limit_frames().saturating_sub(self.frames.free_count());
            self.stats.are_in_use(used as u64 + out);
        }
    }

    /// Notes that a page has a frame again.
    pub(crate) fn came_back(&self, page: PageNo) {
        if let Some(Refault { distance_pages, weight }) = self.distances.came_back(page) {
            self.stats.refault_distance(distance_pages, weight);
        }
    }

    /// Leaves an unmapped page on `entry` only, and frees its frame.
    pub(crate) fn stay_on(&self, locked: LockedPage, entry: SwapEntry) {
        let resident = Pte::Resident(locked.frame());
        self.unmark_copy(entry);
        let shadow = self.workingset.evicted();
        self.table.replace(locked.page(), resident, Pte::Swapped { entry, shadow });
        self.drop_cached(locked);
    }

    /// Makes an unmapped page Empty, and frees its frame.
    pub(crate) fn forget(&self, locked: LockedPage) {
        self.table.replace(locked.page(), Pte::Resident(locked.frame()), Pte::Empty);
        self.drop_cached(locked);
    }

    /// Moves a page's word to the slot it is written to, and gives up any other slot it had.
    /// `shadow` says when it was evicted.
    pub(crate) fn start_writeback(&self, locked: &LockedPage, entry: SwapEntry, shadow: u32) {
        let (frame, page) = (locked.frame(), locked.page());
        if self.frames.entry(frame) == Some(entry) {
            self.unmark_copy(entry);
        } else {
            self.uncache(locked);
            self.cache.insert_new(entry, locked, &self.frames);
            self.note_page(entry, page);
        }
        self.frames.set(frame, flag::WRITEBACK);
        self.writes_in_flight.fetch_add(1, Relaxed);
        self.table.replace(page, Pte::Resident(frame), Pte::Swapped { entry, shadow });
    }

    /// Ends the writeback of the page cached under `entry`; any thread may hold its lock.
    pub(crate) fn end_writeback(&self, entry: SwapEntry, failed: bool) {
        let is_written = |frame| self.frames.has(frame, flag::WRITEBACK);
        let frame = self.cache.lookup_where(entry, is_written);
        let frame = frame.expect("a page under writeback stays cached");
        if failed {
            self.frames.set(frame, flag::DIRTY);
        }
        let rotates = self.frames.end_writeback(frame, 0).unwrap_or_else(|| {
            // Mapped again while it was written: releasing the staging page was left to the
            // completion. WRITEBACK keeps the page from being evicted, so it stays mapped until
            // then.
            self.frames.clear(frame, flag::DIRTY);
            self.release_staged(frame);
            let ended = self.frames.end_writeback(frame, flag::MAPPED);
            ended.expect("a page is not unmapped under writeback")
        });
        self.writes_in_flight.fetch_sub(1, Relaxed);
        if rotates {
            self.lru.rotate(frame, &self.frames, &self.stats);
        }
    }

    /// Drops what is left in the swap cache of an untouched page, which was on `entry`: before it
    /// gets there again, by another page's frame or hold. Sleeps for the frame's I/O.
    pub(crate) fn drop_left_behind(&self, entry: SwapEntry, page: PageNo) {
        // Of a slot with one page there is nothing: that page is another.
        while self.has_shared.load(Relaxed)
            && let Some(frame) = self.frame_on(page, entry)
        {
            let Some(locked) = self.frames.lock(frame) else { continue };
            if locked.page() == page && self.frames.entry(frame) == Some(entry) {
                self.frames.wait_writeback(frame);
                self.frames.clear(frame, flag::DIRTY);
                self.drop_cached(locked);
            } else {
                self.unlock(locked);
            }
        }
    }

    /// Records for readahead by slot that `entry` belongs to `page` now.
    pub(crate) fn note_page(&self, entry: SwapEntry, page: PageNo) {
        if let Some(by_slot) = &self.swaps.get(entry.area()).by_slot {
            by_slot.note(entry.slot(), page);
        }
    }
}
