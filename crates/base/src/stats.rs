//! Event counters with the names of `/proc/vmstat`, and histograms, as plain atomics in memory that
//! a supervisor can map.
//!
//! Invariants: counters only grow, but for those of stalls and of what is unevictable, which are
//! levels. Readers may see one counter newer than another; equations between them hold only when
//! quiescent.
//! Not here: printing.

use crate::shared::Table;
use histogram::{Config, Histogram};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Countable events. Names are those of `/proc/vmstat` where the kernel counts the same.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the names of /proc/vmstat")]
        #[repr(usize)]
        pub enum Event { $($(#[$doc])* $field,)* }

        impl Event {
            /// Every event with its name.
            pub const ALL: &[(Event, &str)] = &[$((Event::$field, stringify!($field)),)*];
        }
    };
}

counters! {
    /// Faults served, first touches included.
    pgfault,
    /// Faults that had to read from a device.
    pgmajfault,
    /// First touches answered with zeros.
    pgzero,
    /// Pages read from devices, readahead included.
    pswpin,
    /// Pages written to devices.
    pswpout,
    /// Runs of evicted neighbours that were given adjacent slots as one folio.
    thp_swpout,
    /// Runs for which no area had adjacent slots at hand; they took single slots.
    thp_swpout_fallback,
    /// Pages found all zero at eviction: dropped without a write.
    swpout_zero,
    /// Pages found unchanged since they were read: dropped without a write.
    swpout_clean,
    /// Faults that found their page in the swap cache.
    swap_cache_hit,
    /// Pages moved to an area of lower priority.
    pgdemote,
    /// Pages found in a program's memory and taken into the lists.
    pgadopt,
    /// Pages of forked children put on their parents' slots.
    pgshare,
    /// Pages read ahead.
    swap_ra,
    /// Pages read ahead and then touched.
    swap_ra_hit,
    /// Frames taken for readahead of slots without a holder, and freed unused.
    swap_ra_wasted,
    /// Acquisitions of the LRU lock made for rotation.
    lru_rotate_locks,
    /// Pages moved to the tail of the inactive list when their writeback ended.
    pgrotated,
    /// Pages moved to the active list.
    pgactivate,
    /// Pages moved from the active to the inactive list.
    pgdeactivate,
    /// Pages examined by the reclaim thread.
    pgscan_background,
    /// Pages examined by a fault that found no free frame.
    pgscan_direct,
    /// Frames freed by the reclaim thread.
    pgsteal_background,
    /// Frames freed by faults themselves.
    pgsteal_direct,
    /// Pages faulted in again after eviction.
    workingset_refault,
    /// Refaults near enough to activate the page at once.
    workingset_activate,
    /// Evictions refused because a device or a system call had the page pinned.
    evict_pinned,
    /// Evictions that the kernel refused for another reason: lack of memory, or an unexpected
    /// error.
    evict_refused,
    /// Pages that had moved although the kernel reported that they had not.
    move_misreported,
    /// Errors of the kernel that are not in the table.
    kernel_unexpected,
    /// Writes that failed; their pages stayed in memory.
    write_errors,
    /// Pages lost to a failed read, or because its slot did not hold what was written.
    pages_poisoned,
    /// Pages whose content was lost for any reason; touching one raises SIGBUS.
    pages_lost,
    /// Times an allocation of slots found every area full.
    swap_full,
    /// Memory discarded with madvise or munmap, in pages.
    pgdiscard,
    /// Processes that joined the run, forked ones included.
    processes,
}

/// Sub-buckets per power of two, as a power: values are kept to within 1/16.
const GROUPING_POWER: u8 = 4;
/// Latencies up to 2^36 ns, a minute.
const MAX_VALUE_POWER: u8 = 36;

fn histogram_config() -> Config {
    Config::new(GROUPING_POWER, MAX_VALUE_POWER).expect("constants are in range")
}

/// The bucket of `value` in the layout of the `histogram` crate, which does not export it: exact
/// below 2^(g+1), then 2^g buckets for every power of two.
fn bucket_of(value: u64) -> usize {
    let g = u32::from(GROUPING_POWER);
    let Some(power) = value.checked_ilog2().filter(|&power| power > g) else {
        return value as usize;
    };
    let within = (value - (1 << power)) >> (power - g);
    (1 << (g + 1)) + ((power - g - 1) << g) as usize + within as usize
}

// Cells: one for each event, then these, then the buckets of both histograms.
const LATENCY_MAX: usize = Event::ALL.len();
const LATENCY_SUM: usize = LATENCY_MAX + 1;
const STALLS: usize = LATENCY_SUM + 1;
const IN_USE_MOST: usize = STALLS + 1;
const UNEVICTABLE: usize = IN_USE_MOST + 1;
const BUCKETS: usize = UNEVICTABLE + 1;

/// Number of atomics that a [`Stats`] needs.
pub fn stats_len() -> usize {
    BUCKETS + 2 * histogram_config().total_buckets()
}

/// Counters of one engine, and histograms of its fault latencies and refault distances.
#[derive(Debug, Clone)]
pub struct Stats {
    cells: Table<AtomicU64>,
    config: Config,
}

impl Stats {
    /// Makes counters in `cells`, of which it needs [`stats_len`].
    ///
    /// # Panics
    /// If there are fewer.
    pub fn new(cells: Table<AtomicU64>) -> Self {
        assert!(cells.len() >= stats_len(), "stats need {} cells", stats_len());
        Self { cells, config: histogram_config() }
    }

    /// Makes counters on the heap.
    pub fn on_heap() -> Self {
        Self::new(Table::on_heap(stats_len(), || AtomicU64::new(0)))
    }

    /// Counts one `event`.
    #[inline]
    pub fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts `n` of `event`.
    #[inline]
    pub fn add(&self, event: Event, n: u64) {
        self.cells[event as usize].fetch_add(n, Relaxed);
    }

    /// The number of `event` so far.
    pub fn get(&self, event: Event) -> u64 {
        self.cells[event as usize].load(Relaxed)
    }

    /// Records that a fault took `ns` from its message to its answer.
    pub fn fault_latency(&self, ns: u64) {
        self.record(BUCKETS, ns, 1);
        self.cells[LATENCY_SUM].fetch_add(ns, Relaxed);
        self.cells[LATENCY_MAX].fetch_max(ns, Relaxed);
    }

    /// Begins a stall: a thread of the pager starts to serve faults.
    pub fn stall_begins(&self) {
        self.cells[STALLS].fetch_add(1, Relaxed);
    }

    /// Ends one.
    pub fn stall_ends(&self) {
        self.cells[STALLS].fetch_sub(1, Relaxed);
    }

    /// The number of stalls now. After a kill in the middle of some they stay.
    pub fn stalls(&self) -> u64 {
        self.cells[STALLS].load(Relaxed)
    }

    /// The longest fault so far, in nanoseconds.
    pub fn fault_latency_max_ns(&self) -> u64 {
        self.cells[LATENCY_MAX].load(Relaxed)
    }

    /// The time of all faults together, in nanoseconds.
    pub fn fault_latency_sum_ns(&self) -> u64 {
        self.cells[LATENCY_SUM].load(Relaxed)
    }

    /// Records `weight` pages that came back though they could have stayed with more than
    /// `distance_pages` more memory.
    pub fn refault_distance(&self, distance_pages: u64, weight: u64) {
        self.record(self.distances(), distance_pages, weight);
    }

    /// The first cell of the refault distances.
    fn distances(&self) -> usize {
        BUCKETS + self.config.total_buckets()
    }

    /// Counts a value in the histogram that begins at cell `first`.
    fn record(&self, first: usize, value: u64, weight: u64) {
        let bucket = bucket_of(value.min((1 << MAX_VALUE_POWER) - 1));
        self.cells[first + bucket].fetch_add(weight, Relaxed);
    }

    /// Records that `pages` are in use, in memory or not, beside what is unevictable.
    pub fn are_in_use(&self, pages: u64) {
        self.cells[IN_USE_MOST].fetch_max(pages + self.unevictable_pages(), Relaxed);
    }

    /// The most of them at a time, of times at which some were not in memory.
    pub fn in_use_pages_max(&self) -> u64 {
        self.cells[IN_USE_MOST].load(Relaxed)
    }

    /// Records that programs have so many pages which count and cannot be moved out.
    pub fn are_unevictable(&self, pages: u64) {
        self.cells[UNEVICTABLE].store(pages, Relaxed);
    }

    /// How many there are now.
    pub fn unevictable_pages(&self) -> u64 {
        self.cells[UNEVICTABLE].load(Relaxed)
    }

    /// A copy of the fault latencies, in nanoseconds.
    pub fn fault_latencies(&self) -> Histogram {
        self.histogram(BUCKETS)
    }

    /// A copy of the refault distances, in pages.
    pub fn refault_distances(&self) -> Histogram {
        self.histogram(self.distances())
    }

    fn histogram(&self, first: usize) -> Histogram {
        let buckets = self.cells[first..]
            .iter()
            .take(self.config.total_buckets())
            .map(|cell| cell.load(Relaxed))
            .collect();
        Histogram::from_buckets(GROUPING_POWER, MAX_VALUE_POWER, buckets)
            .expect("the bucket count comes from the same configuration")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_back_within_a_sixteenth() {
        let stats = Stats::on_heap();
        for ns in [1_000, 10_000, 100_000] {
            stats.fault_latency(ns);
        }
        assert_eq!(stats.fault_latency_max_ns(), 100_000);
        assert_eq!(stats.fault_latency_sum_ns(), 111_000);
        let buckets = stats.fault_latencies();
        let seen: u64 = buckets.iter().map(|b| b.count()).sum();
        assert_eq!(seen, 3);
        let tallest = buckets.iter().filter(|b| b.count() > 0).last().unwrap();
        assert!(tallest.start() <= 100_000 && 100_000 <= tallest.end());
        assert!(tallest.end() - tallest.start() <= 100_000 / 16);
    }

    #[test]
    fn buckets_are_those_of_the_histogram_crate() {
        for value in (0..100).chain([1 << 20, (1 << 20) + 12345, (1 << MAX_VALUE_POWER) - 1]) {
            let mut one = Histogram::new(GROUPING_POWER, MAX_VALUE_POWER).unwrap();
            one.increment(value).unwrap();
            assert_eq!(one.as_slice()[bucket_of(value)], 1, "value {value}");
        }
    }

    #[test]
    fn an_endless_fault_lands_in_the_last_bucket() {
        let stats = Stats::on_heap();
        stats.fault_latency(u64::MAX);
        assert_eq!(stats.fault_latencies().iter().map(|b| b.count()).sum::<u64>(), 1);
    }
}
