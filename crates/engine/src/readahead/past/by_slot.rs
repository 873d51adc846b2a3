//! What an area keeps for readahead by slot.

use super::reverse_map::ReverseMap;
use super::window::ClusterWindow;
use overspill_base::sync::{LockClass, Mutex};
use overspill_base::{PageNo, Slot};
use std::ops::Range;

/// What an area keeps for readahead by slot.
#[derive(Debug)]
pub(crate) struct BySlot {
    window: Mutex<ClusterWindow>,
    pages: ReverseMap,
}

impl BySlot {
    /// For an area of `slots` slots that nobody has used yet.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            window: Mutex::new(LockClass::Readahead, ClusterWindow::default()),
            pages: ReverseMap::new(slots),
        }
    }

    /// Notes that `slot` is `page`'s now.
    pub(crate) fn note(&self, slot: Slot, page: PageNo) {
        self.pages.note(slot, page);
    }

    /// The page that `slot` may be in use for.
    pub(super) fn page(&self, slot: Slot) -> Option<PageNo> {
        self.pages.page(slot)
    }

    /// The slots to read for a fault at `slot`, of those below `end`, at most `max`.
    pub(super) fn block(&self, slot: Slot, end: u32, max: usize) -> Range<u32> {
        self.window.lock().block(slot, end, max)
    }

    /// A fault found a page that had been read ahead.
    pub(super) fn note_hit(&self) {
        self.window.lock().note_hit();
    }
}
