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
    /// Makes the state of a new area of `slots` slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            window: Mutex::new(LockClass::Readahead, ClusterWindow::default()),
            pages: ReverseMap::new(slots),
        }
    }

    /// Records that `slot` belongs to `page` now.
    pub(crate) fn note(&self, slot: Slot, page: PageNo) {
        self.pages.note(slot, page);
    }

    /// Returns the page that `slot` may belong to.
    pub(super) fn page(&self, slot: Slot) -> Option<PageNo> {
        self.pages.page(slot)
    }

    /// Returns the slots to read for a fault at `slot`: below `end`, at most `max`.
    pub(super) fn block(&self, slot: Slot, end: u32, max: usize) -> Range<u32> {
        self.window.lock().block(slot, end, max)
    }

    /// Counts a fault that found a page read ahead.
    pub(super) fn note_hit(&self) {
        self.window.lock().note_hit();
    }
}
