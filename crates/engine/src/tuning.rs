//! The engine's switches and sizes: one field per mechanism, and presets.

use overspill_area::{AreaTuning, Preset};
use overspill_base::PAGE_SIZE;

/// Which pages are read with the one that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readahead {
    /// Those around its slot: the aligned block of the device (all of Linux before 4.14). They wait
    /// in the swap cache until they are touched.
    Cluster,
    /// Those around its address, along the stream of faults it belongs to (4.14). They are mapped.
    AddressSpace,
}

/// A preset, the switches that experiments vary one by one, and sizes that tests shrink so that the
/// rare path is the common one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Whose rules hold where there is no switch: the methods below say which.
    pub preset: Preset,
    /// The switches of slot allocation.
    pub area: AreaTuning,
    /// Swap-cache slots under one lock, as a power of two: 14 is the 64 MiB trunk of 4.11,
    /// [`Tuning::WHOLE_DEVICE`] one tree per device.
    pub swap_cache_trunk_shift: u32,
    /// Pages collected per CPU before they are rotated at writeback end (2.6.24); 1 takes the LRU
    /// lock for every page.
    pub rotate_batch_pages: usize,
    /// No frame is allocated for a slot that nobody refers to (4.11). Without, it is allocated and
    /// thrown away. Only readahead by slot meets such slots.
    pub readahead_skip_unreferenced: bool,
    /// A page whose write is over by the time it is submitted is freed in the same round of
    /// reclaim, as Linux does on RAM disks. Without, it is rotated like one from a disk and freed
    /// in the next: the presets do so, because their mechanisms are measured on memory.
    pub frees_at_once: bool,
    /// Victims taken from the inactive list at a time; Linux's SWAP_CLUSTER_MAX is 32. Also the
    /// size of a staging chunk, so at most [`Tuning::CHUNK_PAGES`].
    pub reclaim_batch_pages: usize,
    /// Pages collected per CPU before they go to the LRU lists. Linux's PAGEVEC_SIZE was 14, then
    /// 15.
    pub lru_batch_pages: usize,
    /// How much longer than the inactive list the active one may be: 1 in Linux with little memory.
    /// Its accessed bits weed the active list; here a page that came back is all that is known to
    /// be good. Of a zipf trace 80.6 % hit with 1, 81.1 with 2, 81.4 with 3, 81.6 with 5, of
    /// uniform ones 0.1 less than with 1 (`overspill bench policy`).
    pub active_ratio: usize,
    /// Longest readahead window, at most [`Tuning::CHUNK_PAGES`]. Linux reads 8 (`page-cluster` 3);
    /// user space gains from more because a whole window is mapped with one call.
    pub readahead_max_pages: usize,
    /// Most pages asked for at a time ahead of a long stream, to be read before it faults; 0 reads
    /// at faults only, as Linux does for swap. Of devices as fast as memory, a chunk at most.
    pub readahead_async_pages: usize,
    /// Untouched pages mapped together when a range is touched in order.
    pub fault_around_pages: usize,
}

/// The rules that no experiment varies: the preset alone decides.
impl Tuning {
    /// Which pages are read ahead.
    pub fn readahead(&self) -> Readahead {
        match self.preset {
            Preset::Linux2_6_23 | Preset::Linux4_8 | Preset::Linux4_11 => Readahead::Cluster,
            Preset::Linux5_7 | Preset::Linux5_8 | Preset::Modern => Readahead::AddressSpace,
        }
    }

    /// Reads ahead on devices as fast as memory too. Linux stopped to (4.15), because their I/O is
    /// over in no time; here a window saves faults, as it is mapped with one call.
    pub fn readahead_synchronous(&self) -> bool {
        !matches!(self.preset, Preset::Linux5_7 | Preset::Linux5_8)
    }

    /// Largest run of evicted neighbours, as a power of two, that is given adjacent slots as one
    /// folio (6.12, with mTHP); 0 takes slots one by one.
    pub fn folio_order_max(&self) -> u8 {
        if self.is_modern() { 6 } else { 0 }
    }

    /// What a long stream has read and passed is evicted first, so a scan leaves the rest of memory
    /// alone, and a loop longer than memory keeps a part of itself. Without, it ages as all pages
    /// do.
    pub fn drops_behind(&self) -> bool {
        self.is_modern()
    }

    /// A page read from an area more than half full gives up its slot at once (all of Linux).
    /// Without, slots that are only copies are reclaimed when an allocation needs them: a reader in
    /// order of unchanged pages was a fifth faster on such an area, because they are not written
    /// again.
    pub fn reclaims_copies_early(&self) -> bool {
        !self.is_modern()
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

    /// Pages of `page_bytes` in a chunk of staging memory: as many bytes as of 4 KiB, one at least.
    pub const fn chunk_pages(page_bytes: usize) -> usize {
        let pages = Self::CHUNK_PAGES * PAGE_SIZE / page_bytes;
        if pages == 0 { 1 } else { pages }
    }

    /// The same number of bytes at a time in pages of `page_bytes`, one page at least.
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

    /// The switches and sizes of `preset`.
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
            active_ratio: 3,
            readahead_max_pages: 64,
            readahead_async_pages: 256,
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
