//! The engine's numbers, one field each.

/// Sizes and windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Victims taken from the inactive list at a time; Linux's SWAP_CLUSTER_MAX is 32. Also the size
    /// of a staging chunk, so at most [`Tuning::CHUNK_PAGES`].
    pub reclaim_batch_pages: usize,
    /// Pages collected per CPU before they go to the LRU lists, and before they are rotated at
    /// writeback end. Linux's PAGEVEC_SIZE was 14, then 15. 1 switches batching off.
    pub lru_batch_pages: usize,
    /// Longest readahead window. Linux reads 8 (`page-cluster` 3); user space gains from more because
    /// a whole window is mapped with one call.
    pub readahead_max_pages: usize,
    /// Untouched pages mapped together when a range is touched in order.
    pub zero_around_pages: usize,
    /// Swap-cache slots under one lock, as a power of two: 14 is Linux's 64 MiB trunk.
    pub swap_cache_trunk_shift: u32,
}

impl Tuning {
    /// Pages in a chunk of staging memory.
    pub const CHUNK_PAGES: usize = 64;
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            reclaim_batch_pages: Self::CHUNK_PAGES,
            lru_batch_pages: 15,
            readahead_max_pages: 64,
            zero_around_pages: 16,
            swap_cache_trunk_shift: 14,
        }
    }
}
