//! Construction of an engine.
//!
//! Owns: its parts, and their sizes.

use crate::demotion::Demotion;
use crate::distances::Distances;
use crate::engine::Engine;
use crate::event_count::EventCount;
use crate::frames::Frames;
use crate::lru::Lru;
use crate::memory::PageMemory;
use crate::page_outs::PageOuts;
use crate::page_table::PageTable;
use crate::readahead::queue::ReadaheadQueue;
use crate::readahead::stream_locks::StreamLocks;
use crate::space::Space;
use crate::staging::Staging;
use crate::store::{Moving, Store};
use crate::swap_cache::SwapCache;
use crate::swaps::{Swap, Swaps};
use crate::tuning::Tuning;
use crate::workingset::Workingset;
use overspill_area::{AreaConfig, AreaNo, SwapAreas};
use overspill_base::PAGE_SIZE;
use overspill_base::clock::Cpus;
use overspill_base::report::Reports;
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, LockClass, Mutex};

/// The parts of an engine.
pub struct EngineParts {
    /// Pages that may ever be in memory at a time: the highest limit.
    pub frames: usize,
    /// A word for every page of the managed address space.
    pub table: PageTable,
    /// The owner of the pages.
    pub space: Space,
    /// Bytes of a page, a frame and a slot: a power of two, at least 4096. Windows and batches of
    /// `tuning` keep their bytes.
    pub page_bytes: usize,
    /// Swap areas, numbered in this order.
    pub swaps: Vec<Swap>,
    /// With a moving space staging memory, of [`Engine::staging_pages`]; with a pool a place for
    /// each frame.
    pub arena: PageArena,
    /// Where events are counted.
    pub stats: Stats,
    /// Receives each line for the user about an error.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
    /// Sizes, windows and switches.
    pub tuning: Tuning,
    /// The CPUs that its threads run on.
    pub cpus: Cpus,
}

impl Engine {
    /// Makes an engine of `parts`, with no page in memory, and all frames within the limit.
    ///
    /// # Panics
    /// Without frames, with batches larger than a staging chunk, or without a place for every page
    /// of a pool.
    pub fn new(parts: EngineParts) -> Self {
        let page_bytes = parts.page_bytes;
        let memory = Arc::new(PageMemory::new(parts.arena, page_bytes));
        let space = parts.space.common();
        let (store, tuning, chunk) = match parts.space {
            Space::Moving(space) => {
                let staging = Staging::new(memory.clone());
                let chunk = staging.chunk;
                let tuning = parts.tuning.in_pages_of(page_bytes);
                (Store::Moving(Moving { staging, space }), tuning, chunk)
            }
            Space::Pool(pool) => {
                let places = memory.places();
                assert!(places >= parts.frames, "{places} places are too few");
                (Store::Pool(pool), parts.tuning, Tuning::CHUNK_PAGES)
            }
        };
        let batch = tuning.reclaim_batch_pages.max(tuning.readahead_max_pages);
        assert!(parts.frames > 0 && tuning.readahead_max_pages > 0);
        assert!(batch <= chunk, "a batch of {batch} pages fits no chunk");
        let has_staging = matches!(store, Store::Moving(_));
        let areas = SwapAreas::new(AreaConfig {
            tuning: tuning.area,
            cpus: parts.cpus.count,
            ..AreaConfig::native()
        });
        let engine = Self {
            tuning,
            cpus: parts.cpus,
            table: parts.table,
            frames: Frames::with_own_lists(parts.frames, tuning.frame_batch_pages, parts.cpus),
            cache: SwapCache::new(parts.frames, &[], tuning.swap_cache_trunk_shift),
            lru: Lru::new(parts.frames, &tuning, parts.cpus),
            workingset: Workingset::new(parts.frames),
            distances: Distances::new(tuning.counts_distances()),
            ahead: ReadaheadQueue::new(parts.frames, &tuning, chunk, has_staging),
            memory,
            store,
            areas,
            space,
            stats: parts.stats,
            swaps: Swaps::new(),
            adding: Mutex::new(LockClass::Swapon, ()),
            streams: StreamLocks::new(parts.cpus.count),
            page_outs: PageOuts::new(),
            demotion: Demotion::default(),
            low: EventCount::new(),
            freed: EventCount::new(),
            starving: AtomicUsize::new(0),
            fruitless_rounds: AtomicU64::new(0),
            writes_in_flight: AtomicUsize::new(0),
            grow_failed: Mutex::new(LockClass::Control, vec![None; AreaNo::MAX]),
            reports: Arc::new(Reports::new(parts.report)),
            has_shared: AtomicBool::new(false),
        };
        engine.space.report_to(&engine.stats, &engine.reports);
        engine.swapon_first(parts.swaps);
        engine
    }

    fn swapon_first(&self, swaps: Vec<Swap>) {
        for swap in swaps {
            let added = self.swapon(|_| swap);
            added.expect("at most AreaNo::MAX areas, and no worker yet that could lack a queue");
        }
    }

    /// Returns the staging pages for `frames` frames: a quarter of them, within 8 to 256 chunks.
    pub fn staging_pages(frames: usize) -> usize {
        Self::staging_pages_of(frames, PAGE_SIZE)
    }

    /// As [`staging_pages`](Self::staging_pages), still in 4 KiB pages, for frames of `page_bytes`:
    /// the same bytes, but at least two chunks.
    pub fn staging_pages_of(frames: usize, page_bytes: usize) -> usize {
        let chunk = Tuning::chunk_pages(page_bytes);
        let chunk_pages = chunk * (page_bytes / PAGE_SIZE);
        let as_many = |chunks: usize| chunks * Tuning::CHUNK_PAGES / chunk_pages;
        (frames / 4 / chunk).clamp(as_many(8).max(2), as_many(256)) * chunk_pages
    }
}
