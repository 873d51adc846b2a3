//! The terms: entry, slot, cluster, area, and how their counters relate.
//!
//! ```text
//! slot     word = 0                      free
//!          count in 1..=HOLDERS_MAX      held by that many processes, or parked in one slot cache
//!          count = RESERVED              header, bad, past the end, or being discarded
//! area     used + reserved + free == capacity, at quiescence; a killed process
//!          may leave `used` too high by one batch, never too low
//!          used_most >= used
//! ```
//! Cluster lists (per process, for the clusters it owns):
//! ```text
//! cluster  used = its slots whose word is not 0, once `returned` has been collected
//!          used == 0             <=>  Free, or Discard, or some CPU's current cluster
//!          used == cluster size  <=>  Full, or some CPU's current cluster
//!          otherwise                  Nonfull, Frag, or some CPU's current cluster
//! ```
//! Scan (one process):
//! ```text
//! cluster  used == 0  <=>  Free, or Discard, or some CPU's current cluster
//! bounds   lowest <= every free slot <= highest; no slot is free  =>  highest == 0
//! ```
//!
//! A *member* is a process that uses the area. A cluster has at most one owner among the members;
//! only the owner allocates from it, every member may free. So no lock is shared between processes,
//! and a member killed at any point leaves nothing locked: at worst one slot stays held.

use crate::slot_map::{SlotMap, WordLocks};
use crate::tuning::AreaTuning;
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicU32, AtomicU64};
use std::fmt::Debug;

/// Number of a swap area, below [`AreaNo::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AreaNo(pub u8);

impl AreaNo {
    /// Number of areas an entry can name.
    pub const MAX: usize = 32;
}

/// Where a page is swapped to: area and slot in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapEntry(u64);

impl SwapEntry {
    /// Bits of a packed entry: 5 of area above 32 of slot.
    pub const BITS: u32 = 37;

    /// Returns the entry for `slot` of `area`.
    #[inline]
    pub fn new(area: AreaNo, slot: Slot) -> Self {
        Self(u64::from(area.0) << 32 | u64::from(slot.0))
    }

    /// The area.
    #[inline]
    pub fn area(self) -> AreaNo {
        AreaNo((self.0 >> 32) as u8)
    }

    /// The slot.
    #[inline]
    pub fn slot(self) -> Slot {
        Slot(self.0 as u32)
    }

    /// Packs the entry into the low [`BITS`](Self::BITS) bits.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Unpacks what [`to_bits`](Self::to_bits) returned.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// True if `next` is the next slot of the same area.
    #[inline]
    pub fn precedes(self, next: SwapEntry) -> bool {
        self.0 + 1 == next.0 && self.area() == next.area()
    }
}

impl std::fmt::Debug for SwapEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.area().0, self.slot())
    }
}

/// What the layout of an area's state depends on.
#[derive(Clone, Copy, Debug)]
pub struct AreaConfig {
    /// Mechanisms and sizes.
    pub tuning: AreaTuning,
    /// Number of CPUs with their own state.
    pub cpus: usize,
    /// Seeks are expensive: all CPUs share one allocation point, and slots are handed out in order.
    pub rotational: bool,
    /// Empty clusters are discarded before they are used again.
    pub discard: bool,
}

impl AreaConfig {
    /// Returns the default tuning for this machine's CPUs and a solid-state device without discard.
    pub fn native() -> Self {
        Self {
            tuning: AreaTuning::default(),
            cpus: overspill_base::clock::cpu_count(),
            rotational: false,
            discard: false,
        }
    }
}

/// Number of processes that can share an area: as many as a slot's word can count.
pub const MEMBERS_MAX: usize = crate::slot_map::HOLDERS_MAX as usize;

/// Number of a process among those that share an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberNo(pub u32);

impl MemberNo {
    pub(crate) fn owner_word(self) -> u32 {
        self.0 + 1
    }
}

/// The state of one area that its processes share.
#[derive(Clone, Debug)]
pub struct AreaTables {
    /// Number of slots the area can grow to.
    pub slots_max: u32,
    /// One word per slot, see [`SlotMap`].
    pub slots: Table<AtomicU64>,
    /// Per cluster: 0, or its owner's number plus one.
    pub owners: Table<AtomicU32>,
    /// Per cluster: slots freed by other members since its owner last collected them.
    pub returned: Table<AtomicU32>,
    /// Totals of the area, [`AreaTables::COUNTERS`] of them.
    pub counters: Table<AtomicU32>,
    /// Per member: one bit per slot, set where it holds the slot. Empty if there is only one
    /// member.
    pub holds: Vec<Table<AtomicU64>>,
}

impl AreaTables {
    /// Words of [`counters`](Self::counters).
    pub const COUNTERS: usize = 4;
    /// In [`counters`](Self::counters): number of slots the device has grown to.
    pub(crate) const CAPACITY: usize = 0;
    /// Slots handed out, cached ones included.
    pub(crate) const USED: usize = 1;
    /// Slots that are never handed out.
    pub(crate) const RESERVED: usize = 2;
    /// The most that were ever handed out at a time.
    pub(crate) const USED_MOST: usize = 3;

    /// Makes tables for a single process, on the heap (tests, models).
    pub fn on_heap(slots: u32, config: AreaConfig, members: usize) -> Self {
        let cluster_slots = config.tuning.cluster_slots;
        let clusters = slots.div_ceil(cluster_slots) as usize;
        let words = clusters * cluster_slots as usize;
        let bits = move || Table::on_heap(words.div_ceil(64), || AtomicU64::new(0));
        Self {
            slots_max: slots,
            slots: Table::on_heap(words, || AtomicU64::new(0)),
            owners: Table::on_heap(clusters, || AtomicU32::new(0)),
            returned: Table::on_heap(clusters, || AtomicU32::new(0)),
            counters: Table::on_heap(Self::COUNTERS, || AtomicU32::new(0)),
            holds: if members > 1 { (0..members).map(|_| bits()).collect() } else { Vec::new() },
        }
    }

    /// Returns the number of slots handed out, cached ones included.
    pub fn used(&self) -> u32 {
        self.counters[Self::USED].load(Relaxed)
    }

    /// Returns the most slots that were ever handed out at a time, cached ones included.
    pub fn used_most(&self) -> u32 {
        self.counters[Self::USED_MOST].load(Relaxed)
    }

    /// Reserves the slots in `reserved` and those past `slots_max` for good. Called once by the
    /// process that made the tables, before any member joins.
    pub fn format(&self, reserved: &[Slot]) {
        let map = SlotMap::new(self.slots.clone(), WordLocks::Atomic);
        let past_end = (self.slots_max..self.slots.len() as u32).map(Slot);
        for slot in reserved.iter().copied().chain(past_end) {
            let fresh = !map.in_use(slot);
            map.reserve(slot);
            self.counters[Self::RESERVED].fetch_add(u32::from(fresh), Relaxed);
        }
    }
}

/// What an allocation asks of the areas' user when slots run short. Called without any lock of this
/// crate.
pub trait SlotReclaim {
    /// Grows `area`, or frees slots that dead processes held in it. True if it is worth asking the
    /// area again.
    fn grow(&self, area: AreaNo) -> bool;

    /// Frees `entry`, the swap-cache copy of a mapped page, with
    /// [`free_now`](crate::SwapAreas::free_now). False if it is in use again.
    fn reclaim_slot(&self, entry: SwapEntry) -> bool;

    /// Discards the clusters of an area that wait for it. True if there were any.
    fn discard(&self, area: AreaNo) -> bool;
}

/// Reclaims nothing: an allocation gets only free slots.
impl SlotReclaim for () {
    fn grow(&self, _: AreaNo) -> bool {
        false
    }

    fn reclaim_slot(&self, _: SwapEntry) -> bool {
        false
    }

    fn discard(&self, _: AreaNo) -> bool {
        false
    }
}

/// Receives every slot that becomes free, at once (`swap_slot_free_notify` in Linux).
pub trait SlotFreeNotify: Send + Sync + Debug {
    /// Reports that `slot` is about to become free; it cannot be claimed before this returns.
    /// Called with locks of the area held, by the process that drops the last hold, also on behalf
    /// of a dead process. Must not block.
    fn slot_free(&self, slot: Slot);
}
