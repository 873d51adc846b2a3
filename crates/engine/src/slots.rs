//! Slots for pages, and what frees some when they run short.
//!
//! Owns: growing devices, discards, reclaiming slots that are only copies of mapped pages, and
//! noticing that an area is nearly full.
//! Not here: allocation of slots (`area`).

use crate::engine::{Engine, GrowFailure};
use crate::store::Store;
use crate::types::flag;
use overspill_area::{AreaNo, SlotReclaim, SwapArea, SwapEntry};
use overspill_base::stats::Event;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{Bytes, FrameNo, PAGE_SIZE, Slot};
use overspill_device::{DeviceError, SwapDevice};

/// Growth of a full area: one trunk of 4 KiB pages.
const GROW_BYTES: usize = 64 << 20;
/// An area is nearly full when less than this part of its slots is free,
const CROWDED: u32 = 16;
/// and demotion frees slots until this part is.
const ROOMY: u32 = 8;

impl Engine {
    /// Empties all per-CPU caches and batches.
    pub fn drain(&self) {
        self.lru.drain(&self.frames, &self.stats);
        self.frames.gather_free();
        if let Store::Moving(moving) = &self.store {
            moving.staging.drain(&*moving.space);
        }
        self.areas.drain();
    }

    /// Appends up to `want` fresh entries to `out` and returns their number. Grows areas as needed;
    /// as a last resort reclaims slots that are copies of mapped pages.
    pub(crate) fn alloc_entries(&self, want: usize, out: &mut Vec<SwapEntry>) -> usize {
        let cpu = self.cpus.current();
        let mut got = self.areas.alloc(cpu, want, self, out);
        if got < want && self.give_up_shared_copies() {
            got += self.areas.alloc(cpu, want - got, self, out);
        }
        // Otherwise another thread has the cluster with free slots for a moment.
        if got < want && self.areas.iter().all(SwapArea::is_full) {
            self.stats.count(Event::swap_full);
            let failure = self.grow_failed.lock().iter().flatten().last().cloned();
            if let Some(failure) = failure {
                self.reports.note(failure.error.to_string());
            }
        }
        got
    }

    /// After slots were allocated: wakes the reclaim thread if pages should be demoted.
    pub(crate) fn note_slots_taken(&self) {
        let may_demote =
            self.tuning.demotes() && self.demotion.may_fall_due(self.workingset.clock());
        if may_demote && self.areas.iter().any(|area| self.is_crowded(area)) {
            self.demotion.fall_due();
            self.low.notify();
        }
    }

    /// True if an area is nearly full, and pages may leave it.
    fn is_crowded(&self, area: &SwapArea) -> bool {
        area.free_slots() < part_of(area, CROWDED) && self.can_demote_from(area)
    }

    /// True if one below an area has a free slot.
    pub(crate) fn can_demote_from(&self, area: &SwapArea) -> bool {
        let priority = |area: &SwapArea| self.swaps.get(area.number()).priority;
        let is_below = |other: &SwapArea| {
            other.is_writable() && priority(other) < priority(area) && other.free_slots() > 0
        };
        !self.swaps.get(area.number()).is_leaving() && self.areas.iter().any(is_below)
    }

    /// Returns how many more slots of an area should be free.
    pub(crate) fn lacks_slots(&self, area: &SwapArea) -> usize {
        (part_of(area, ROOMY).saturating_sub(area.free_slots())) as usize
    }

    /// Gives up the copies of mapped pages on slots with several pages; true if there were any.
    /// Areas look only for slots with one: to give up one of several frees nothing.
    fn give_up_shared_copies(&self) -> bool {
        let frames = if self.has_shared.load(Relaxed) { self.frames.count() } else { 0 };
        self.frames.all().take(frames).filter(|&frame| self.give_up_shared_copy(frame)).count() > 0
    }

    fn give_up_shared_copy(&self, frame: FrameNo) -> bool {
        let is_one = |entry| self.has_spare_copy(frame, entry) && self.has_other_pages(entry);
        let may_be = self.frames.entry(frame).is_some_and(is_one);
        let Some(locked) = may_be.then(|| self.frames.try_lock(frame).ok()).flatten() else {
            return false;
        };
        let is_still = self.frames.entry(frame).is_some_and(is_one);
        if is_still {
            self.uncache(&locked);
        }
        self.unlock(locked);
        is_still
    }

    fn has_spare_copy(&self, frame: FrameNo, entry: SwapEntry) -> bool {
        let has = |bit| self.frames.has(frame, bit);
        self.frames.entry(frame) == Some(entry) && has(flag::MAPPED) && !has(flag::WRITEBACK)
    }

    /// Discards all clusters of an area that wait for it; true if there were any.
    pub(crate) fn run_discards(&self, number: AreaNo) -> bool {
        let area = self.areas.get(number);
        let waiting = std::iter::from_fn(|| area.take_discard());
        waiting.inspect(|&(first, slots)| self.discard_slots(area, first, slots)).count() > 0
    }

    fn discard_slots(&self, area: &SwapArea, first: Slot, slots: u32) {
        // Of an area that was swapped off nothing is left to discard.
        if let Some(device) = self.swaps.device(area.number())
            && let Err(error) = device.discard(first, slots)
        {
            self.report_error("discard", area.number(), error.to_string());
        }
        area.discarded(first);
    }

    fn grow_device(&self, device: &dyn SwapDevice, capacity: u32) -> Result<u32, DeviceError> {
        let info = device.info();
        if capacity >= info.slots_max {
            let pages = self.memory.page_bytes / PAGE_SIZE;
            let size = Bytes(info.capacity().0 * pages as u64);
            return Err(DeviceError::Full { name: info.name.clone(), size });
        }
        let more = (GROW_BYTES / self.memory.page_bytes) as u32;
        device.grow(capacity.saturating_add(more).min(info.slots_max))
    }
}

/// Returns the `part`th part of an area's slots.
fn part_of(area: &SwapArea, part: u32) -> u32 {
    (area.used_slots() + area.free_slots()) / part
}

/// What areas call when slots run short.
impl SlotReclaim for Engine {
    fn grow(&self, number: AreaNo) -> bool {
        let area = self.areas.get(number);
        let capacity = area.capacity_slots();
        let failed_at =
            self.grow_failed.lock()[number.0 as usize].as_ref().map(|failure| failure.capacity);
        if failed_at == Some(capacity) {
            return false;
        }
        let Some(device) = self.swaps.device(number) else { return false };
        match self.grow_device(&*device, capacity) {
            Ok(slots) => {
                area.set_capacity_slots(slots);
                true
            }
            Err(error) => {
                // Not reported yet: other areas may have room, or copies to reclaim.
                self.grow_failed.lock()[number.0 as usize] = Some(GrowFailure { capacity, error });
                false
            }
        }
    }

    /// Frees the copy; the page has to be written again when it is evicted.
    fn reclaim_slot(&self, entry: SwapEntry) -> bool {
        let is_spare = |frame| self.has_spare_copy(frame, entry);
        let Some(frame) = self.cache.lookup_where(entry, is_spare) else { return false };
        let Ok(locked) = self.frames.try_lock(frame) else { return false };
        let freed = match self.has_spare_copy(frame, entry) {
            true => self.cache.remove(&locked, &self.frames, &self.table),
            false => None,
        };
        freed.into_iter().for_each(|entry| self.areas.free_now(entry));
        self.unlock(locked);
        freed.is_some()
    }

    fn discard(&self, area: AreaNo) -> bool {
        self.run_discards(area)
    }
}
