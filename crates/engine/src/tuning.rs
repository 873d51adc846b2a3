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

/// Sizes, windows and switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// The switches of slot allocation.
    pub area: AreaTuning,
    /// Victims taken from the inactive list at a time; Linux's SWAP_CLUSTER_MAX is 32. Also the size
    /// of a staging chunk, so at most [`Tuning::CHUNK_PAGES`].
    pub reclaim_batch_pages: usize,
    /// A page whose write is over by the time it is submitted is freed in the same round of reclaim, as
    /// Linux does on RAM disks. Without, it is rotated like one from a disk and freed in the next: the
    /// presets do so, because their mechanisms are measured on memory.
    pub frees_at_once: bool,
    /// Pages collected per CPU before they go to the LRU lists. Linux's PAGEVEC_SIZE was 14, then 15.
    pub lru_batch_pages: usize,
    /// Pages collected per CPU before they are rotated at writeback end (2.6.24); 1 takes the LRU
    /// lock for every page.
    pub rotate_batch_pages: usize,
    /// Swap-cache slots under one lock, as a power of two: 14 is the 64 MiB trunk of 4.11,
    /// [`Tuning::WHOLE_DEVICE`] one tree per device.
    pub swap_cache_trunk_shift: u32,
    /// Which pages are read ahead.
    pub readahead: Readahead,
    /// Longest readahead window, at most [`Tuning::CHUNK_PAGES`]. Linux reads 8 (`page-cluster` 3); user space gains from more because
    /// a whole window is mapped with one call.
    pub readahead_max_pages: usize,
    /// Most pages asked for at a time ahead of a long stream, to be read before it faults; 0 reads at
    /// faults only, as Linux does for swap. Of devices as fast as memory, a chunk at most.
    pub readahead_ahead_pages: usize,
    /// No frame is allocated for a slot that nobody refers to (4.11). Without, it is allocated and
    /// thrown away. Only readahead by slot meets such slots.
    pub readahead_skip_unreferenced: bool,
    /// Largest run of evicted neighbours, as a power of two, that is given adjacent slots as one folio
    /// (6.12, with mTHP); 0 takes slots one by one.
    pub folio_order_max: u8,
    /// What a long stream has read and passed is evicted first, so a scan leaves the rest of memory
    /// alone, and a loop longer than memory keeps a part of itself. Without, it ages as all pages do.
    pub leave_behind: bool,
    /// How much longer than the inactive list the active one may be: 1 in Linux with little memory. Its
    /// accessed bits weed the active list; here a page that came back is all that is known to be good. Of
    /// a zipf trace 80.6 % hit with 1, 81.1 with 2, 81.4 with 3, 81.6 with 5, of uniform ones 0.1 less
    /// than with 1 (`overspill bench policy`).
    pub active_ratio: usize,
    /// Reads ahead on devices as fast as memory too. Linux stopped to (4.15), because their I/O is
    /// over in no time; here a window saves faults, as it is mapped with one call.
    pub readahead_synchronous: bool,
    /// A page read from an area more than half full gives up its slot at once (all of Linux). Without,
    /// slots that are only copies are given up when an allocation needs them: a reader in order of
    /// unchanged pages was a fifth faster on such an area, because they are not written again.
    pub give_up_copies_early: bool,
    /// Untouched pages mapped together when a range is touched in order.
    pub zero_around_pages: usize,
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
            readahead_ahead_pages: scaled(self.readahead_ahead_pages),
            zero_around_pages: scaled(self.zero_around_pages),
            ..self
        }
    }

    /// The switches of `preset`.
    pub const fn of(preset: Preset) -> Self {
        let modern = Self {
            area: AreaTuning::of(preset),
            reclaim_batch_pages: Self::CHUNK_PAGES,
            frees_at_once: true,
            lru_batch_pages: 15,
            rotate_batch_pages: 15,
            swap_cache_trunk_shift: 14,
            readahead: Readahead::AddressSpace,
            readahead_max_pages: 64,
            readahead_ahead_pages: 256,
            readahead_skip_unreferenced: true,
            folio_order_max: 6,
            leave_behind: true,
            active_ratio: 3,
            readahead_synchronous: true,
            give_up_copies_early: false,
            zero_around_pages: 16,
        };
        let v5 = Self {
            reclaim_batch_pages: 32,
            frees_at_once: false,
            readahead_max_pages: 8,
            readahead_ahead_pages: 0,
            folio_order_max: 0,
            leave_behind: false,
            active_ratio: 1,
            readahead_synchronous: false,
            give_up_copies_early: true,
            zero_around_pages: 1,
            ..modern
        };
        let v4_11 = Self { readahead: Readahead::Cluster, readahead_synchronous: true, ..v5 };
        let v4_8 = Self {
            swap_cache_trunk_shift: Self::WHOLE_DEVICE,
            readahead_skip_unreferenced: false,
            ..v4_11
        };
        match preset {
            Preset::Linux2_6_23 => Self { rotate_batch_pages: 1, ..v4_8 },
            Preset::Linux4_8 => v4_8,
            Preset::Linux4_11 => v4_11,
            Preset::Linux5_7 | Preset::Linux5_8 => v5,
            Preset::Modern => modern,
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::of(Preset::Modern)
    }
}
