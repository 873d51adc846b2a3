//! The engine's switches and sizes, as fields; what the preset alone decides, as methods.

use overspill_area::{AreaTuning, Preset};
use overspill_base::PAGE_SIZE;

/// Which pages are read together with a missing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readahead {
    /// Those around its slot: the aligned block of the device (all of Linux before 4.14). They wait
    /// in the swap cache until they are touched.
    Cluster,
    /// Those around its address, along its stream of faults (4.14). They are mapped.
    AddressSpace,
}

/// A preset, the switches that experiments vary one by one, and sizes that tests shrink to make
/// rare paths common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Decides where there is no switch, by the methods below; it does not govern `area`.
    pub preset: Preset,
    /// The switches of slot allocation.
    pub area: AreaTuning,
    /// Swap-cache slots under one lock, as a power of two: 14 is the 64 MiB trunk of 4.11,
    /// [`Tuning::WHOLE_DEVICE`] one tree per device.
    pub swap_cache_trunk_shift: u32,
    /// Pages collected per CPU at the end of writeback before they are rotated (2.6.24); 1 takes
    /// the LRU lock for every page.
    pub rotate_batch_pages: usize,
    /// Allocates no frame to read ahead a slot without a reference (4.11). Otherwise one is
    /// allocated and freed again. Only readahead by slot meets such slots.
    pub readahead_skip_unreferenced: bool,
    /// Frees a page whose write completes at submission in the same round of reclaim, as Linux does
    /// on RAM disks. Otherwise it is rotated like one on a disk and freed in the next round: the
    /// `linux-*` presets do so, because their mechanisms are measured on memory.
    pub frees_at_once: bool,
    /// Victims taken from the inactive list at a time; Linux's SWAP_CLUSTER_MAX is 32. They must
    /// fit a staging chunk, so at most [`Tuning::CHUNK_PAGES`].
    pub reclaim_batch_pages: usize,
    /// Pages collected per CPU before they go to the LRU lists. Linux's PAGEVEC_SIZE was 14, then
    /// 15.
    pub lru_batch_pages: usize,
    /// Most frames moved at a time between the common list of free ones and a CPU's own; 0 has no
    /// lists of CPUs. In Linux 31 of a large zone, 63 since 4.19 (`zone_batchsize`).
    pub frame_batch_pages: usize,
    /// Maximum ratio of the active list's length to the inactive list's: 1 in Linux with little
    /// memory. Linux prunes the active list by accessed bits; here a refault is the only sign of
    /// use. Of a zipf trace 80.6 % hit with 1, 81.1 with 2, 81.4 with 3, 81.6 with 5, of uniform
    /// ones 0.1 less than with 1 (`overspill-lab policy`).
    pub active_ratio: usize,
    /// Longest readahead window, at most [`Tuning::CHUNK_PAGES`]. Linux reads 8 (`page-cluster` 3);
    /// here longer ones pay, because a whole window is mapped with one call.
    pub readahead_max_pages: usize,
    /// Most pages requested at a time by asynchronous readahead for a long stream, if its device
    /// takes so long; 0 reads at faults only, as Linux does for swap.
    pub readahead_async_pages: usize,
    /// Untouched pages mapped together when a range is touched in order (fault-around).
    pub fault_around_pages: usize,
}

/// What no experiment varies: the preset alone decides.
impl Tuning {
    /// Returns which pages are read ahead.
    pub fn readahead(&self) -> Readahead {
        match self.preset {
            Preset::Linux2_6_23 | Preset::Linux4_8 | Preset::Linux4_11 => Readahead::Cluster,
            Preset::Linux5_7 | Preset::Linux5_8 | Preset::Modern => Readahead::AddressSpace,
        }
    }

    /// True if devices as fast as memory have readahead too. Linux dropped it (4.15), because their
    /// I/O takes almost no time; here a window saves faults, because it is mapped with one call.
    pub fn readahead_synchronous(&self) -> bool {
        !matches!(self.preset, Preset::Linux5_7 | Preset::Linux5_8)
    }

    /// Returns the largest run of evicted neighbours, as a power of two, that gets adjacent slots
    /// as one folio (6.12, with mTHP); 0 allocates single slots.
    pub fn folio_order_max(&self) -> u8 {
        if self.is_modern() { 6 } else { 0 }
    }

    /// True if pages that a long stream has passed are evicted first (drop-behind), so that a scan
    /// does not evict other pages, and a loop longer than memory keeps a part of itself. Otherwise
    /// they age as all pages do.
    pub fn drops_behind(&self) -> bool {
        self.is_modern()
    }

    /// True if a page read from an area more than half full frees its slot at once (all of Linux).
    /// Otherwise slots that are only copies are reclaimed when an allocation needs them: reading
    /// unchanged pages in order was a fifth faster on such an area, because they are not written
    /// again.
    pub fn reclaims_copies_early(&self) -> bool {
        !self.is_modern()
    }

    /// True if old pages of an area that is nearly full move on to areas of lower priority. In
    /// Linux a page stays where it was evicted to.
    pub fn demotes(&self) -> bool {
        self.is_modern()
    }

    /// True if the distances of refaults are counted, of a sample of pages. In Linux there is only
    /// that of each page, by a clock of evictions.
    pub(crate) fn counts_distances(&self) -> bool {
        self.is_modern()
    }

    fn is_modern(&self) -> bool {
        self.preset == Preset::Modern
    }
}

impl Tuning {
    /// Pages of 4 KiB in a chunk of staging memory.
    pub const CHUNK_PAGES: usize = 64;
    /// A trunk that holds every slot of a device.
    pub const WHOLE_DEVICE: u32 = 32;

    /// Pages of `page_bytes` in a chunk of staging memory: the same bytes as of 4 KiB, at least one
    /// page.
    pub const fn chunk_pages(page_bytes: usize) -> usize {
        let pages = Self::CHUNK_PAGES * PAGE_SIZE / page_bytes;
        if pages == 0 { 1 } else { pages }
    }

    /// Brings in the missing page alone at each fault, so that every first touch is one.
    #[must_use]
    pub fn page_by_page(self) -> Self {
        Self { readahead_max_pages: 1, readahead_async_pages: 0, fault_around_pages: 1, ..self }
    }

    /// Converts batches and windows to pages of `page_bytes`: the same bytes, at least one page.
    #[must_use]
    pub fn in_pages_of(self, page_bytes: usize) -> Self {
        let scaled = |pages: usize| (pages * PAGE_SIZE / page_bytes).max(1).min(pages);
        Self {
            reclaim_batch_pages: scaled(self.reclaim_batch_pages),
            readahead_max_pages: scaled(self.readahead_max_pages),
            readahead_async_pages: scaled(self.readahead_async_pages),
            fault_around_pages: scaled(self.fault_around_pages),
            ..self
        }
    }

    /// Returns the switches and sizes of `preset`.
    pub const fn of(preset: Preset) -> Self {
        let modern = Self {
            preset,
            area: AreaTuning::of(preset),
            swap_cache_trunk_shift: 14,
            rotate_batch_pages: 15,
            readahead_skip_unreferenced: true,
            frees_at_once: true,
            reclaim_batch_pages: Self::CHUNK_PAGES,
            lru_batch_pages: 15,
            frame_batch_pages: 31,
            active_ratio: 3,
            readahead_max_pages: 64,
            readahead_async_pages: 2048,
            fault_around_pages: 16,
        };
        let linux = Self {
            frees_at_once: false,
            reclaim_batch_pages: 32,
            active_ratio: 1,
            readahead_max_pages: 8,
            readahead_async_pages: 0,
            fault_around_pages: 1,
            ..modern
        };
        let v4_8 = Self {
            swap_cache_trunk_shift: Self::WHOLE_DEVICE,
            readahead_skip_unreferenced: false,
            ..linux
        };
        match preset {
            Preset::Linux2_6_23 => Self { rotate_batch_pages: 1, ..v4_8 },
            Preset::Linux4_8 => v4_8,
            Preset::Linux4_11 | Preset::Linux5_7 | Preset::Linux5_8 => linux,
            Preset::Modern => modern,
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::of(Preset::Modern)
    }
}
