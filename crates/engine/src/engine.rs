//! The engine's state.
//!
//! Owns: all state of one pager, and queries of it.
//! Not here: its construction (`build`), changes of pages (`page` and what is above it).

use crate::demotion::Demotion;
use crate::distances::Distances;
use crate::event_count::EventCount;
use crate::frames::Frames;
use crate::lru::Lru;
use crate::memory::PageMemory;
use crate::page_outs::PageOuts;
use crate::page_table::PageTable;
use crate::readahead::queue::ReadaheadQueue;
use crate::readahead::stream_locks::StreamLocks;
use crate::space::AddressSpace;
use crate::store::Store;
use crate::swap_cache::SwapCache;
use crate::swaps::Swaps;
use crate::tuning::Tuning;
use crate::types::Pte;
use crate::workingset::Workingset;
use overspill_area::{AreaNo, SwapAreas, SwapEntry};
use overspill_base::clock::Cpus;
use overspill_base::report::{Cause, Reports};
use overspill_base::stats::Stats;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex};
use overspill_base::{FrameNo, PageNo};
use overspill_device::DeviceError;

/// How full memory, the lists and the swap cache are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EngineStatus {
    /// The limit, in pages.
    pub frames: usize,
    /// Free frames: pages that fit in memory before others must be evicted.
    pub free_frames: usize,
    /// Pages on the active list.
    pub active: usize,
    /// Pages on the inactive list.
    pub inactive: usize,
    /// Pages in the swap cache.
    pub cached: usize,
}

/// The capacity at which growing a device last failed, and why.
#[derive(Debug, Clone)]
pub(crate) struct GrowFailure {
    pub(crate) capacity: u32,
    pub(crate) error: DeviceError,
}

/// Decides which pages are in memory. All methods may be called from any thread.
pub struct Engine {
    pub(crate) tuning: Tuning,
    pub(crate) cpus: Cpus,
    pub(crate) table: PageTable,
    pub(crate) frames: Frames,
    pub(crate) cache: SwapCache,
    pub(crate) lru: Lru,
    pub(crate) workingset: Workingset,
    pub(crate) distances: Distances,
    pub(crate) memory: Arc<PageMemory>,
    pub(crate) store: Store,
    pub(crate) areas: SwapAreas,
    pub(crate) space: Arc<dyn AddressSpace>,
    pub(crate) stats: Stats,
    pub(crate) swaps: Swaps,
    /// Held while an area is added, from taking its number on.
    pub(crate) adding: Mutex<()>,
    pub(crate) streams: StreamLocks,
    pub(crate) ahead: ReadaheadQueue,
    pub(crate) page_outs: PageOuts,
    pub(crate) demotion: Demotion,
    /// Notified when free frames run low.
    pub(crate) low: EventCount,
    /// Notified when a frame became free while threads wait for one.
    pub(crate) freed: EventCount,
    pub(crate) starving: AtomicUsize,
    /// Rounds of background reclaim without progress.
    pub(crate) fruitless_rounds: AtomicU64,
    pub(crate) writes_in_flight: AtomicUsize,
    /// Per area: the last failure to grow its device.
    pub(crate) grow_failed: Mutex<Vec<Option<GrowFailure>>>,
    pub(crate) reports: Arc<Reports>,
    /// Whether a slot ever had several pages of this engine.
    pub(crate) has_shared: AtomicBool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns the event counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns how full memory, the lists and the swap cache are.
    pub fn status(&self) -> EngineStatus {
        let (active, inactive) = self.lru.lens();
        EngineStatus {
            frames: self.frames.limit(),
            free_frames: self.free_frames(),
            active,
            inactive,
            cached: self.cache.len(),
        }
    }

    /// Returns the number of all free frames. Waits for nobody.
    pub fn free_frames(&self) -> usize {
        self.frames.all_free_count()
    }

    /// Returns the last error that was reported.
    pub fn last_error(&self) -> Option<String> {
        self.reports.last()
    }

    /// Returns the number of pages locked or pinned in memory.
    pub fn unevictable(&self) -> usize {
        self.frames.unevictable_count()
    }

    /// Returns the lengths of the active and the inactive list. Takes the LRU lock.
    pub fn list_lens(&self) -> (usize, usize) {
        self.lru.lens()
    }

    /// True if `page` is mapped. A hint, unless all workers are parked.
    pub fn is_resident(&self, page: PageNo) -> bool {
        matches!(self.table.load(page), Pte::Resident(_))
    }

    /// True if `page` was never touched, or discarded since. A hint, if it is touched now.
    pub fn is_untouched(&self, page: PageNo) -> bool {
        self.table.load(page) == Pte::Empty
    }

    /// True if `page` is on a slot. A hint, if it is touched now.
    pub fn is_out(&self, page: PageNo) -> bool {
        matches!(self.table.load(page), Pte::Swapped { .. })
    }

    /// Returns the number of frames: the highest limit.
    pub fn frames(&self) -> usize {
        self.frames.count()
    }

    /// Returns the number of frames that may be in use now.
    pub fn limit_frames(&self) -> usize {
        self.frames.limit()
    }

    /// Changes the limit, at most to the number of frames. What is beyond it is reclaimed in the
    /// background. Does not block.
    pub fn set_limit(&self, frames: usize) {
        self.frames.set_limit(frames.clamp(1, self.frames.count()));
        self.low.notify();
        self.freed.notify();
    }

    /// Returns the number of frames with a page. A hint.
    pub fn used_frames(&self) -> usize {
        self.frames.used_count()
    }

    /// Iterates over the pages that have a frame. A hint, unless all workers are parked.
    pub fn pages_in_memory(&self) -> impl Iterator<Item = PageNo> {
        self.frames.all().filter_map(|frame| self.frames.page(frame))
    }

    /// Returns the address of the place of a pool's `frame`. The caller may use its bytes from
    /// [`publish`](crate::BufferPool::publish) to [`unpublish`](crate::BufferPool::unpublish).
    #[inline]
    pub fn place(&self, frame: FrameNo) -> *mut u8 {
        debug_assert!(matches!(self.store, Store::Pool(_)));
        self.memory.address(frame.index())
    }

    /// Returns the swap areas.
    pub fn areas(&self) -> &SwapAreas {
        &self.areas
    }

    /// Reports an error of an area to the user.
    pub(crate) fn report_error(&self, what: &'static str, whom: AreaNo, line: String) {
        self.reports.tell(Cause { what, whom: u32::from(whom.0) }, line);
    }

    /// Gives up a hold of `entry` with the CPU's next batch.
    pub(crate) fn free_entry(&self, entry: SwapEntry) {
        self.areas.free(self.cpus.current(), entry);
    }

    /// True if a slot that a page of the caller's is on has several.
    pub(crate) fn has_other_pages(&self, entry: SwapEntry) -> bool {
        self.has_shared.load(Relaxed)
            && self.areas.get(entry.area()).slot_map().holders(entry.slot()) != Some(1)
    }

    /// Marks a slot as only a copy of a mapped page.
    pub(crate) fn mark_copy(&self, entry: SwapEntry) {
        self.areas.get(entry.area()).slot_map().set_cache_only(entry.slot(), true);
    }

    /// Ends the mark as a copy, unless other pages are on the slot: theirs may be mapped.
    pub(crate) fn unmark_copy(&self, entry: SwapEntry) {
        if !self.has_other_pages(entry) {
            self.areas.get(entry.area()).slot_map().set_cache_only(entry.slot(), false);
        }
    }
}
