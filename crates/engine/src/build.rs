//! An engine put together.
//!
//! Owns: what it is made of, and the sizes of its parts.

use crate::engine::Engine;
use crate::event_count::EventCount;
use crate::frames::Frames;
use crate::lru::Lru;
use crate::page_outs::PageOuts;
use crate::page_table::PageTable;
use crate::readahead::queue::ReadaheadQueue;
use crate::readahead::trunks::Trunks;
use crate::space::AddressSpace;
use crate::staging::Staging;
use crate::swap_cache::SwapCache;
use crate::swaps::Swaps;
use crate::tuning::Tuning;
use crate::workingset::Workingset;
use overspill_area::{AreaConfig, AreaNo, SwapArea, SwapAreas};
use overspill_base::PAGE_SIZE;
use overspill_base::clock::Cpus;
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, AtomicU64, AtomicUsize, LockClass, Mutex};
use overspill_base::trouble::Troubles;
use overspill_device::SwapDevice;

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
            cache: SwapCache::new(parts.frames, &[], tuning.swap_cache_trunk_shift),
            lru: Lru::new(parts.frames, &tuning, parts.cpus),
            workingset: Workingset::new(parts.frames),
            ahead: ReadaheadQueue::new(parts.frames, &tuning, staging.chunk),
            staging,
            areas,
            space: parts.space,
            stats: parts.stats,
            swaps: Swaps::new(),
            adding: Mutex::new(LockClass::Swapon, ()),
            streams: Trunks::new(parts.cpus.count),
            page_outs: PageOuts::new(),
            low: EventCount::new(),
            freed: EventCount::new(),
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
}
