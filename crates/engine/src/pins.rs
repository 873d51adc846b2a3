//! Pages that must stay in memory: locked by the program, or pinned.
//!
//! Not here: reclaim, which leaves them alone (`reclaim`, `lru`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use overspill_base::PageNo;

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
}
