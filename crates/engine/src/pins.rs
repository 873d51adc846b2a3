//! Pages that must stay in memory: locked by the program, pinned, or held during a system call.
//!
//! Not here: reclaim, which leaves them alone (`reclaim`, `lru`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::holds::{self, Held, Holder};
use crate::types::{Pte, flag};
use overspill_base::PageNo;
use overspill_base::sync::Ordering::Relaxed;
use std::ops::Range;

impl Engine {
    /// Forbids or allows a page's eviction. False if it is not in memory now: touch it and retry.
    pub fn set_unevictable(&self, page: PageNo, unevictable: bool) -> bool {
        self.if_resident(page, |locked| self.frames.set_unevictable(locked, unevictable))
            .unwrap_or(!unevictable)
    }

    /// Pins a page in memory until it is unpinned as often as it was pinned. False if it is not in
    /// memory now: touch it and retry. Do not mix pins and
    /// [`set_unevictable`](Self::set_unevictable) on a page: the last call decides.
    pub fn pin(&self, page: PageNo) -> bool {
        self.if_resident(page, |locked| self.frames.pin(locked, true)).unwrap_or(false)
    }

    /// Removes one pin of a page.
    pub fn unpin(&self, page: PageNo) {
        while self.if_resident(page, |locked| self.frames.pin(locked, false)) == Some(false) {}
    }

    /// Calls `act` on a page in memory. `None` if it is not, `Some(false)` if it has just changed.
    fn if_resident(&self, page: PageNo, act: impl FnOnce(&LockedPage)) -> Option<bool> {
        let frame = self.resident_frame(page)?;
        let Some(locked) = self.lock_resident(page, frame) else { return Some(false) };
        act(&locked);
        self.unlock(locked);
        Some(true)
    }

    /// Makes the calling thread a holder; `None` if there are too many.
    pub fn become_holder(&self) -> Option<Holder> {
        self.holds.take()
    }

    /// Ends what [`become_holder`](Self::become_holder) began.
    pub fn end_holder(&self, holder: Holder) {
        self.holds.give_back(holder);
    }

    /// Holds ranges instead of what `holder` held before; false if there are too many. Touch what
    /// [`is_missing`](Self::is_missing) in them, until nothing is. Does not wait.
    pub fn hold(&self, holder: Holder, ranges: &[Range<PageNo>]) -> bool {
        holds::pack(ranges).is_some_and(|held| {
            self.holds.publish(holder, &held);
            true
        })
    }

    /// Returns what a thread holds, for [`hold_again`](Self::hold_again).
    pub fn held(&self, holder: Holder) -> Held {
        let mut held = Held::default();
        let words = self.holds.words_of(holder).iter();
        held.iter_mut().zip(words).for_each(|(held, word)| *held = word.load(Relaxed));
        held
    }

    /// Holds what was held before, as [`hold`](Self::hold) does; returns the ranges.
    pub fn hold_again(&self, holder: Holder, held: &Held) -> impl Iterator<Item = Range<PageNo>> {
        self.holds.publish(holder, held);
        holds::ranges_of(*held)
    }

    /// Ends a hold.
    pub fn let_go(&self, holder: Holder) {
        self.holds.let_go(holder);
    }

    /// True if a page is not in memory, or about to leave it. A touch of one that is in memory does
    /// nothing, and another look may find it settled. One that is lost is not missed.
    pub fn is_missing(&self, page: PageNo) -> bool {
        !self.is_settled(page) && self.table.load(page) != Pte::Poisoned
    }

    /// True if the page is mapped and nobody is about to evict it.
    fn is_settled(&self, page: PageNo) -> bool {
        let Pte::Resident(frame) = self.table.load(page) else { return false };
        self.frames.has(frame, flag::MAPPED)
            && !self.frames.has(frame, flag::LOCKED)
            && self.table.load(page) == Pte::Resident(frame)
    }
}
