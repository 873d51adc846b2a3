//! The cost model: what everything costs, in nanoseconds of virtual time, with the source of each
//! figure.
//!
//! Owns: every constant.
//! Invariants: one set for all experiments; none is changed for one of them. One constant is
//! calibrated, on one published figure: [`Costs::evict_page_ns`]. All others are measured, counted
//! in the sources or taken from literature; `docs/simulator.md` says which were corrected after the
//! first results were known, and why.
//! Not here: which work is done. The engine and the areas charge it where they do it.
//!
//! Sources:
//! * (M) measured on one CPU by `overspill-lab sim calibrate`; see `docs/simulator.md` for the run.
//! * (I) Intel Memory Latency Checker on two-socket Skylake servers (Xeon Gold, 2 × 20 to 24
//!   cores), as published by reviewers of the machines: line modified in another core's cache 48 to
//!   53 ns in the same socket, 107 to 116 ns in the other; memory 80 to 90 ns in the same, 138 to
//!   145 ns in the other.
//! * (H) Molka and others, "Cache Coherence Protocol and Memory Performance of the Intel Haswell-EP
//!   Architecture" (ICPP 2015): 53 and 113 ns for the same on Haswell.
//! * (K) Linux's own figures in the patches' mails and commit messages: `zram` swap-in and swap-out
//!   of 4 GiB of zeros by one thread, 1.92 s and 3.35 s: 1.83 µs and 3.2 µs a page without a copy.
//! * (A) Amit and others, "Don't shoot down TLB shootdowns!" (EuroSys 2020): shooting down one page
//!   on the other CPUs takes the initiator 1.2 to 3 µs, more in the other socket, a responder about
//!   1 µs.

/// Lines protected by a lock that a hold touches. Counted in the sources: fields of the structure
/// that a hold reads or changes, in lines of 64 bytes, and what they point to. Lines whose number
/// grows with the length of the hold are charged as work instead.
#[derive(Clone, Copy, Debug)]
pub struct ProtectedLines {
    /// An area that is scanned: bounds and base, the heads of two lists, the CPU's place, the
    /// cluster's count, free slots and random numbers.
    pub area: u64,
    /// A trunk of the swap cache: its length, the head of a chain.
    pub trunk: u64,
    /// The LRU lists: both ends of each, their lengths.
    pub lru: u64,
    /// The list of free frames: its length, its end.
    pub free_frames: u64,
    /// The order of areas: its length, its first areas.
    pub area_order: u64,
    /// Cluster lists: heads and links of two lists.
    pub cluster_lists: u64,
    /// Readahead: the table of streams.
    pub readahead: u64,
    /// Any other: one besides the lock's own.
    pub other: u64,
}

/// See [`ProtectedLines`].
pub const PROTECTED_LINES: ProtectedLines = ProtectedLines {
    area: 6,
    trunk: 2,
    lru: 2,
    free_frames: 2,
    area_order: 2,
    cluster_lists: 4,
    readahead: 4,
    other: 1,
};

/// Nanoseconds, unless the name says otherwise.
#[derive(Clone, Debug)]
pub struct Costs {
    /// A load or store of a line in the CPU's cache. (M)
    pub load_ns: u64,
    /// A read-modify-write of a line the CPU owns exclusively. (M)
    pub update_ns: u64,
    /// A line last written by another CPU of the socket. (I, H)
    pub transfer_ns: u64,
    /// A line last written by a CPU of another socket. (I, H)
    pub transfer_far_ns: u64,
    /// A line in no cache. (I)
    pub memory_ns: u64,
    /// True on machines whose locks have no queue: the first CPU that sees a free lock gets it
    /// (Linux before 2.6.25).
    pub unfair_locks: bool,

    /// Waking a sleeper, for the waker. (M: futex wake)
    pub wake_ns: u64,
    /// Time until the sleeper then runs on an idle CPU. (M: pipe round trip, halved)
    pub wake_latency_ns: u64,
    /// Switching a CPU from one task to another. (M)
    pub switch_ns: u64,

    /// Reading a slot's word in a scan of the map: an eighth of a line that is in no near cache.
    pub scan_slot_ns: u64,
    /// Linking or unlinking a frame in an LRU list: its own link and a neighbour's, half of them
    /// not in this CPU's cache.
    pub list_move_ns: u64,
    /// Finding an entry in a trunk of the swap cache, without the lines of the chain. (M)
    pub cache_find_ns: u64,
    /// Changing a trunk of the swap cache, without the lines of the chain and of the trunk. (M)
    pub cache_change_ns: u64,

    /// Entering and leaving the kernel for a fault, finding the mapping and its entry. (K, minus
    /// what the engine does itself)
    pub fault_ns: u64,
    /// Putting a page into a page table. (K)
    pub map_ns: u64,
    /// Calibrated: what Linux does to an evicted page beyond what the engine does: reverse map,
    /// accessed bits, memory-cgroup charges, counters, and the cache misses of all that. Calibrated
    /// on: swap-in 2.96 GB/s before the scan base per CPU (v2), to within 5 %; see
    /// `docs/simulator.md`.
    pub evict_page_ns: u64,
    /// TLB shootdown, once per batch: the initiator's part. (A)
    pub shootdown_ns: u64,
    /// Additional cost for each CPU interrupted. (A)
    pub shootdown_each_ns: u64,
    /// Cost for each CPU that is interrupted. (A)
    pub interrupt_ns: u64,

    /// Copying a page from memory to memory of the same socket. (M)
    pub copy_page_ns: u64,
    /// Submitting a request in the block layer. (K)
    pub submit_ns: u64,
    /// Completing it, interrupt included. (K)
    pub complete_ns: u64,
    /// One access of the workload that finds its page: arithmetic, a TLB miss, a cache miss, and
    /// pmbench's reading of the clock. (M)
    pub access_ns: u64,
}

impl Costs {
    /// The model of all experiments.
    pub const DEFAULT: Self = Self {
        load_ns: 1,
        update_ns: 6,
        transfer_ns: 50,
        transfer_far_ns: 110,
        memory_ns: 90,
        unfair_locks: false,
        wake_ns: 1_000,
        wake_latency_ns: 3_000,
        switch_ns: 1_000,
        scan_slot_ns: 10,
        list_move_ns: 80,
        cache_find_ns: 20,
        cache_change_ns: 40,
        fault_ns: 1_000,
        map_ns: 300,
        evict_page_ns: 9_000,
        shootdown_ns: 1_500,
        shootdown_each_ns: 150,
        interrupt_ns: 1_000,
        copy_page_ns: 1_000,
        submit_ns: 300,
        complete_ns: 500,
        access_ns: 250,
    };
}
