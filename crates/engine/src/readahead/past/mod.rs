//! Readahead by slot, as all of Linux did before 4.14.
//!
//! Owns: an area's state for it, and turning a block of slots into frames in the swap cache, where
//! the pages wait for their touch.
//! Not here: the window rule (`readahead`).

pub(crate) mod by_slot;
mod reverse_map;
mod window;

use crate::engine::Engine;
use crate::store::Moving;
use crate::transfer::{PageRead, ToRead};
use crate::types::flag;
use crate::worker::Worker;
use by_slot::BySlot;
use overspill_area::SwapEntry;
use overspill_base::stats::Event;
use overspill_base::{FrameNo, PageNo, Slot};

impl Engine {
    /// Returns the reads of the aligned block around the slot, in the order of slots.
    pub(crate) fn reads_in_block(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        page: PageNo,
        asked: ToRead,
    ) -> Vec<PageRead> {
        let entry = asked.entry;
        let area = self.areas.get(entry.area());
        let Some(by_slot) = &self.swaps.get(entry.area()).by_slot else {
            return self.read_and_map(worker, &[asked]);
        };
        let (end, max) = (area.capacity_slots(), self.tuning.readahead_max_pages);
        let block = by_slot.block(entry.slot(), end, max);
        let slots = area.slot_map();
        let mut reads = Vec::with_capacity(block.len());
        for slot in block.map(Slot) {
            if slot == entry.slot() {
                reads.extend(self.read_and_map(worker, &[asked]));
            } else if slots.holders(slot) == Some(0) {
                self.waste_frame(page);
            } else {
                reads.extend(self.read_slot_ahead(
                    moving,
                    by_slot,
                    SwapEntry::new(entry.area(), slot),
                ));
            }
        }
        reads
    }

    /// Allocates and frees a frame for a slot without a reference, as readahead did before 4.11.
    fn waste_frame(&self, page: PageNo) {
        if self.tuning.readahead_skip_unreferenced {
            return;
        }
        if let Some(locked) = self.frames.alloc_to_spare(page) {
            self.frames.free(locked);
            self.stats.count(Event::swap_ra_wasted);
        }
    }

    /// Returns a read into staging memory, where the page waits for its touch. `None` for a slot
    /// that is reserved, in a slot cache or another process's, or whose page is cached already.
    fn read_slot_ahead(
        &self,
        moving: &Moving,
        by_slot: &BySlot,
        entry: SwapEntry,
    ) -> Option<PageRead> {
        let page = by_slot.page(entry.slot())?;
        if !self.table.is_on(page, entry) || self.frame_on(page, entry).is_some() {
            return None;
        }
        let locked = self.frames.alloc_to_spare(page)?;
        let Some(staged) = moving.staging.take_single() else {
            self.free(locked);
            return None;
        };
        let Some(ToRead { frame, .. }) = self.cache_ahead(locked, entry) else {
            moving.release(staged..staged + 1);
            return None;
        };
        self.frames.set_staged(frame, Some(staged));
        Some(PageRead { entry, into: self.memory.buffer(staged) })
    }

    /// Counts the touch of a page that waited in the swap cache, if it was read ahead; true if so.
    pub(crate) fn take_readahead_hit(&self, frame: FrameNo, entry: SwapEntry) -> bool {
        let ahead = self.frames.clear(frame, flag::READAHEAD) & flag::READAHEAD != 0;
        if ahead {
            self.stats.count(Event::swap_ra_hit);
            let by_slot = &self.swaps.get(entry.area()).by_slot;
            by_slot.iter().for_each(BySlot::note_hit);
        }
        ahead
    }
}
