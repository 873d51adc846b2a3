//! The engine put together.
//!
//! Owns: all state of one pager, and growing its areas. Not here: any algorithm.

use crate::advice::PageOuts;
use crate::frames::{Doorbell, Frames, Watermarks};
use crate::lru::Lru;
use crate::page_table::PageTable;
use crate::readahead::ahead::Ahead;
use crate::readahead::trunks::Trunks;
use crate::reverse_map::ReverseMap;
use crate::space::AddressSpace;
use crate::staging::Staging;
use crate::swap_cache::SwapCache;
use crate::swaps::{SwapState, Swaps};
use crate::tuning::{Readahead, Tuning};
use crate::types::{Pte, flag};
use crate::workingset::Workingset;
use overspill_area::{AreaConfig, AreaNo, Supply, SwapArea, SwapAreas, SwapEntry};
use overspill_base::clock::Cpus;
use overspill_base::history::History;
use overspill_base::shared::PageArena;
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicU64, AtomicUsize, LockClass, Mutex};
use overspill_base::trouble::{Cause, Troubles};
use overspill_base::{Bytes, FrameNo, PAGE_SIZE, PageNo, Slot};
use overspill_device::{DeviceError, SwapDevice};

/// A device with the area that says which of its slots are free.
#[derive(Debug)]
pub struct Swap {
    /// Where the pages go.
    pub device: Arc<dyn SwapDevice>,
    /// Its slots.
    pub area: SwapArea,
    /// Higher is used first; equals take turns.
    pub priority: i16,
}

/// What an engine is made of.
pub struct EngineParts {
    /// Pages that may be in memory at a time.
    pub frames: usize,
    /// A word for every page of the managed address space.
    pub table: PageTable,
    /// Where pages are mapped.
    pub space: Arc<dyn AddressSpace>,
    /// Swap areas, numbered in this order.
    pub swaps: Vec<Swap>,
    /// Memory for pages under writeback; from [`Engine::staging_pages`].
    pub staging: PageArena,
    /// Where events are counted.
    pub stats: Stats,
    /// Tries to free slots that other processes left behind, before an area counts as full; true if
    /// it found some.
    pub salvage: Box<dyn Fn(&SwapAreas) -> bool + Send + Sync>,
    /// Takes one line for the user about something that went wrong.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
    /// Sizes, windows and switches.
    pub tuning: Tuning,
    /// The CPUs its threads run on.
    pub cpus: Cpus,
}

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
struct GrowFailure {
    capacity: u32,
    error: DeviceError,
}

/// Decides which pages are in memory. All methods may be called from any thread.
pub struct Engine {
    pub(crate) tuning: Tuning,
    pub(crate) cpus: Cpus,
    pub(crate) table: PageTable,
    pub(crate) frames: Frames,
    pub(crate) watermarks: Watermarks,
    pub(crate) cache: SwapCache,
    pub(crate) lru: Lru,
    pub(crate) workingset: Workingset,
    pub(crate) staging: Staging,
    pub(crate) areas: SwapAreas,
    pub(crate) space: Arc<dyn AddressSpace>,
    pub(crate) stats: Stats,
    pub(crate) swaps: Swaps,
    /// Held while an area gets its number.
    pub(crate) adding: Mutex<()>,
    pub(crate) streams: Trunks,
    pub(crate) ahead: Ahead,
    pub(crate) page_outs: PageOuts,
    /// Rung when free frames run low.
    pub(crate) low: Doorbell,
    /// Rung when frames became free and somebody waits for one.
    pub(crate) freed: Doorbell,
    pub(crate) starving: AtomicUsize,
    /// Rounds of background reclaim that brought nothing.
    pub(crate) fruitless_rounds: AtomicU64,
    pub(crate) writes_in_flight: AtomicUsize,
    /// Per device: the capacity at which growing failed last.
    grow_failed: Mutex<Vec<Option<GrowFailure>>>,
    pub(crate) troubles: Arc<Troubles>,
    salvage: Box<dyn Fn(&SwapAreas) -> bool + Send + Sync>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// What an area grows by when it is full: one trunk of pages of 4 KiB.
const GROW_BYTES: usize = 64 << 20;

impl Engine {
    /// An engine over `parts`, with nothing in memory.
    ///
    /// # Panics
    /// Without frames or with batches larger than a staging chunk.
    pub fn new(parts: EngineParts) -> Self {
        Self::with_pages_of(parts, PAGE_SIZE)
    }

    /// As [`new`](Self::new), over a space whose pages have `page_bytes`, a power of two: so have the
    /// frames, and the slots of its devices. Windows and batches of `parts.tuning` keep their bytes.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_pages_of(mut parts: EngineParts, page_bytes: usize) -> Self {
        parts.tuning = parts.tuning.in_pages_of(page_bytes);
        let batch = parts.tuning.reclaim_batch_pages.max(parts.tuning.readahead_max_pages);
        assert!(batch <= Tuning::chunk_pages(page_bytes), "a batch of {batch} pages fits no chunk");
        Self::over(parts, |arena| Staging::new(arena, page_bytes))
    }

    /// As [`new`](Self::new), with pages of `page_bytes` that never move: that of frame f stays at the
    /// f-th place of the arena in `parts` for as long as it has f (see [`crate::homes`]).
    ///
    /// # Panics
    /// When the arena has no place for every frame, and as [`new`](Self::new).
    pub fn with_homes(parts: EngineParts, page_bytes: usize) -> Self {
        let room = parts.staging.pages() * PAGE_SIZE;
        assert!(room >= parts.frames * page_bytes, "{room} bytes of homes are too few");
        Self::over(parts, |arena| Staging::homes(arena, page_bytes))
    }

    fn over(parts: EngineParts, staging: impl FnOnce(PageArena) -> Staging) -> Self {
        let (tuning, staging) = (parts.tuning, staging(parts.staging));
        assert!(parts.frames > 0 && tuning.reclaim_batch_pages <= Tuning::CHUNK_PAGES);
        assert!((1..=Tuning::CHUNK_PAGES).contains(&tuning.readahead_max_pages));
        let areas = SwapAreas::new(AreaConfig {
            tuning: tuning.area,
            cpus: parts.cpus.count,
            ..AreaConfig::native()
        });
        let engine = Self {
            tuning,
            cpus: parts.cpus,
            table: parts.table,
            frames: Frames::new(parts.frames),
            watermarks: Watermarks::of(parts.frames),
            cache: SwapCache::new(parts.frames, &[], tuning.swap_cache_trunk_shift),
            lru: Lru::new(parts.frames, &tuning, parts.cpus),
            workingset: Workingset::new(parts.frames),
            ahead: Ahead::new(parts.frames, &tuning, staging.chunk),
            staging,
            areas,
            space: parts.space,
            stats: parts.stats,
            swaps: Swaps::new(),
            adding: Mutex::new(LockClass::Swapon, ()),
            streams: Trunks::new(parts.cpus.count),
            page_outs: PageOuts::new(),
            low: Doorbell::new(),
            freed: Doorbell::new(),
            starving: AtomicUsize::new(0),
            fruitless_rounds: AtomicU64::new(0),
            writes_in_flight: AtomicUsize::new(0),
            grow_failed: Mutex::new(LockClass::Control, vec![None; AreaNo::MAX]),
            troubles: Arc::new(Troubles::new(parts.report)),
            salvage: parts.salvage,
        };
        engine.space.report_to(&engine.stats, &engine.troubles);
        for swap in parts.swaps {
            let added = engine.swapon(|_| swap);
            added.expect("at most AreaNo::MAX areas, and no worker yet that could lack a queue");
        }
        engine
    }

    pub(crate) fn new_state(&self, swap: &Swap) -> SwapState {
        let synchronous = swap.device.info().synchronous;
        let reads_ahead = self.tuning.readahead_synchronous || !synchronous;
        let by_slot = self.tuning.readahead == Readahead::Cluster;
        let reverse_map = by_slot.then(|| ReverseMap::new(swap.area.slot_map().len()));
        SwapState::new(swap.priority, reads_ahead, synchronous, reverse_map)
    }

    /// Puts everything that sits in a per-CPU cache or batch where another process can see it. Call
    /// before a fork, with all workers parked.
    pub fn drain(&self) {
        self.lru.drain(&self.frames, &self.stats);
        self.staging.drain(&*self.space);
        self.areas.drain();
    }

    /// Pages of staging memory that suit `frames` frames: an eighth of them, within 8 to 128 chunks.
    pub fn staging_pages(frames: usize) -> usize {
        Self::staging_pages_of(frames, PAGE_SIZE)
    }

    /// As [`staging_pages`](Self::staging_pages), still in 4 KiB, for frames of `page_bytes`: the same
    /// bytes, but two chunks at least.
    pub fn staging_pages_of(frames: usize, page_bytes: usize) -> usize {
        let chunk = Tuning::chunk_pages(page_bytes);
        let chunk_pages = chunk * (page_bytes / PAGE_SIZE);
        let as_many = |chunks: usize| chunks * Tuning::CHUNK_PAGES / chunk_pages;
        (frames / 8 / chunk).clamp(as_many(8).max(2), as_many(128)) * chunk_pages
    }

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
    pub fn last_trouble(&self) -> Option<String> {
        self.troubles.last()
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

    /// Where changes of pages' states are noted, if they are.
    pub fn history(&self) -> Option<&History> {
        self.table.history()
    }

    /// The swap areas.
    pub fn areas(&self) -> &SwapAreas {
        &self.areas
    }

    /// Tells the user what happened to an area, or to anything else that has a number.
    pub(crate) fn trouble(&self, what: &'static str, whom: AreaNo, line: String) {
        self.troubles.tell(Cause { what, whom: u32::from(whom.0) }, line);
    }

    /// Appends up to `want` fresh entries to `out` and returns how many: growing areas as needed, and
    /// in the end at the expense of pages that are in memory and on a slot.
    pub(crate) fn alloc_entries(&self, want: usize, out: &mut Vec<SwapEntry>) -> usize {
        let got = self.areas.alloc(self.cpus.current(), want, self, out);
        if got < want {
            self.stats.count(Event::swap_full);
            let failure = self.grow_failed.lock().iter().flatten().last().cloned();
            if let Some(failure) = failure {
                self.troubles.note(failure.error.to_string());
            }
        }
        got
    }

    /// Frees `entry`, with the next batch.
    pub(crate) fn free_entry(&self, entry: SwapEntry) {
        self.areas.free(self.cpus.current(), entry);
    }

    /// Notes whether a slot is only a copy of a mapped page.
    pub(crate) fn set_cache_only(&self, entry: SwapEntry, cache_only: bool) {
        self.areas.get(entry.area()).slot_map().set_cache_only(entry.slot(), cache_only);
    }

    fn has_spare_copy(&self, frame: FrameNo, entry: SwapEntry) -> bool {
        let has = |bit| self.frames.has(frame, bit);
        self.frames.entry(frame) == Some(entry) && has(flag::MAPPED) && !has(flag::WRITEBACK)
    }

    /// Lets the device forget what it may; true if that was anything.
    pub(crate) fn run_discards(&self, number: AreaNo) -> bool {
        let area = self.areas.get(number);
        let waiting = std::iter::from_fn(|| area.take_discard());
        waiting.inspect(|&(first, slots)| self.discard_slots(area, first, slots)).count() > 0
    }

    fn discard_slots(&self, area: &SwapArea, first: Slot, slots: u32) {
        let Some(device) = self.swaps.device(area.number()) else { return };
        if let Err(error) = device.discard(first, slots) {
            self.trouble("discard", area.number(), error.to_string());
        }
        area.discarded(first);
    }

    fn grow_device(&self, device: &dyn SwapDevice, capacity: u32) -> Result<u32, DeviceError> {
        let info = device.info();
        if capacity >= info.slots_max {
            let pages = self.staging.page_bytes / PAGE_SIZE;
            let size = Bytes(info.capacity().0 * pages as u64);
            return Err(DeviceError::Full { name: info.name.clone(), size });
        }
        let more = (GROW_BYTES / self.staging.page_bytes) as u32;
        device.grow(capacity.saturating_add(more).min(info.slots_max))
    }

    /// Lets go of a page lock, and wakes threads of the program that found the page locked.
    pub(crate) fn unlock_page(&self, frame: FrameNo, page: PageNo) {
        self.frames.unlock(frame);
        if self.table.take_faulted(page) {
            self.space.wake(page);
        }
    }

    /// As [`unlock_page`](Self::unlock_page), for a frame that was locked to find out whose it is.
    pub(crate) fn unlock_frame(&self, frame: FrameNo) {
        match self.frames.page(frame) {
            Some(page) => self.unlock_page(frame, page),
            None => self.frames.unlock(frame),
        }
    }

    /// Frees a locked frame whose page is not in memory any more.
    pub(crate) fn free_page(&self, frame: FrameNo, page: PageNo) {
        self.lru.remove(frame, &self.frames);
        self.frames.free(frame);
        if self.table.take_faulted(page) {
            self.space.wake(page);
        }
        if self.starving.load(Relaxed) > 0 {
            self.freed.ring();
        }
    }

    /// Releases the staging page of a locked frame, if it has one.
    pub(crate) fn release_staged(&self, frame: FrameNo) {
        if let Some(staged) = self.frames.staged(frame) {
            self.frames.set_staged(frame, None);
            self.staging.release(staged..staged + 1, &*self.space);
        }
    }
}

/// What the areas ask for when slots run short.
impl Supply for Engine {
    fn grow(&self, area: &SwapArea) -> bool {
        let number = area.number().0 as usize;
        let capacity = area.capacity_slots();
        let failed_at = self.grow_failed.lock()[number].as_ref().map(|failure| failure.capacity);
        if failed_at == Some(capacity) {
            return (self.salvage)(&self.areas);
        }
        let Some(device) = self.swaps.device(area.number()) else { return false };
        match self.grow_device(&*device, capacity) {
            Ok(slots) => {
                area.set_capacity_slots(slots);
                true
            }
            Err(_) if (self.salvage)(&self.areas) => true,
            Err(error) => {
                // No trouble yet: what there is may do, and copies can be given up.
                self.grow_failed.lock()[number] = Some(GrowFailure { capacity, error });
                false
            }
        }
    }

    /// The page has to be written again when it is evicted.
    fn give_up(&self, entry: SwapEntry) -> bool {
        let Some(frame) = self.cache.lookup(entry) else { return false };
        if !self.has_spare_copy(frame, entry) || !self.frames.try_lock(frame) {
            return false;
        }
        let Some(page) = self.frames.page(frame) else {
            self.frames.unlock(frame);
            return false;
        };
        let freed = match self.has_spare_copy(frame, entry) {
            true => self.cache.remove(frame, &self.frames, &self.table, page),
            false => None,
        };
        freed.into_iter().for_each(|entry| self.areas.free_now(entry));
        self.unlock_page(frame, page);
        freed.is_some()
    }

    fn discard(&self, area: AreaNo) -> bool {
        self.run_discards(area)
    }
}
