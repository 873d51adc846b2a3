//! The engine's state.
//!
//! Owns: all state of one pager, and questions about it. Not here: putting it together (`build`),
//! anything that changes a page (`page` and whatever is above it).

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
use overspill_base::history::History;
use overspill_base::report::{Cause, Reports};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex};
use overspill_base::{FrameNo, PageNo};
use overspill_device::DeviceError;

/// How full everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// The limit, in pages.
    pub frames: usize,
    /// Pages more that may come into memory before others must go.
    pub free_frames: usize,
    /// Pages on the active list.
    pub active: usize,
    /// Pages on the inactive list.
    pub inactive: usize,
    /// Pages in the swap cache.
    pub cached: usize,
}

/// Where growing a device failed last, and why.
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
    pub(crate) memory: Arc<PageMemory>,
    pub(crate) store: Store,
    pub(crate) areas: SwapAreas,
    pub(crate) space: Arc<dyn AddressSpace>,
    pub(crate) stats: Stats,
    pub(crate) swaps: Swaps,
    /// Held while an area gets its number.
    pub(crate) adding: Mutex<()>,
    pub(crate) streams: StreamLocks,
    pub(crate) ahead: ReadaheadQueue,
    pub(crate) page_outs: PageOuts,
    /// Notified when free frames run low.
    pub(crate) low: EventCount,
    /// Notified when frames became free and somebody waits for one.
    pub(crate) freed: EventCount,
    pub(crate) starving: AtomicUsize,
    /// Rounds of background reclaim that brought nothing.
    pub(crate) fruitless_rounds: AtomicU64,
    pub(crate) writes_in_flight: AtomicUsize,
    /// Per device: the capacity at which growing failed last.
    pub(crate) grow_failed: Mutex<Vec<Option<GrowFailure>>>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) salvage: Box<dyn Fn(&SwapAreas) -> bool + Send + Sync>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Events so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// How full everything is.
    pub fn status(&self) -> EngineStatus {
        let (active, inactive) = self.lru.lens();
        EngineStatus {
            frames: self.frames.count(),
            free_frames: self.frames.free_count(),
            active,
            inactive,
            cached: self.cache.len(),
        }
    }

    /// The last thing that went wrong, in words.
    pub fn last_error(&self) -> Option<String> {
        self.reports.last()
    }

    /// Pages the program has locked in memory.
    pub fn unevictable(&self) -> usize {
        self.frames.unevictable_count()
    }

    /// Lengths of the active and the inactive list, for which it takes the LRU lock.
    pub fn list_lens(&self) -> (usize, usize) {
        self.lru.lens()
    }

    /// True if `page` is mapped. A hint, unless all workers are parked.
    pub fn is_resident(&self, page: PageNo) -> bool {
        matches!(self.table.load(page), Pte::Resident(_))
    }

    /// Frames there are.
    pub fn frames(&self) -> usize {
        self.frames.count()
    }

    /// Pages that have a frame. A hint, unless all workers are parked.
    pub fn pages_in_memory(&self) -> impl Iterator<Item = PageNo> {
        self.frames.all().filter_map(|frame| self.frames.page(frame))
    }

    /// Where the place of a pool's `frame` begins. Its bytes are the caller's to use between
    /// [`publish`](crate::BufferPool::publish) and [`unpublish`](crate::BufferPool::unpublish).
    #[inline]
    pub fn place(&self, frame: FrameNo) -> *mut u8 {
        debug_assert!(matches!(self.store, Store::Pool(_)));
        self.memory.address(frame.index())
    }

    /// Where changes of pages' states are noted, if they are.
    pub fn history(&self) -> Option<&History> {
        self.table.history()
    }

    /// The swap areas.
    pub fn areas(&self) -> &SwapAreas {
        &self.areas
    }

    /// Tells the user what happened to an area, or to anything else that has a number.
    pub(crate) fn report_error(&self, what: &'static str, whom: AreaNo, line: String) {
        self.reports.tell(Cause { what, whom: u32::from(whom.0) }, line);
    }

    /// Frees `entry`, with the next batch.
    pub(crate) fn free_entry(&self, entry: SwapEntry) {
        self.areas.free(self.cpus.current(), entry);
    }

    /// Notes whether a slot is only a copy of a mapped page.
    pub(crate) fn set_cache_only(&self, entry: SwapEntry, cache_only: bool) {
        self.areas.get(entry.area()).slot_map().set_cache_only(entry.slot(), cache_only);
    }
}
