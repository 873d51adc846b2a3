//! The terms: entry, slot, cluster, area, and how their counters relate.
//!
//! ```text
//! slot     word = 0                      free
//!          count in 1..=HOLDERS_MAX      that many pages are on it, or it is in one slot cache
//!          count = RESERVED              header, bad, past the end, or being discarded
//! area     used + reserved + free == capacity, at quiescence
//!          used_most >= used
//! ```
//! Cluster lists:
//! ```text
//! cluster  used = its slots whose word is not 0, once it was listed
//!          used == 0             <=>  Free, or Discard, or some CPU's current cluster
//!          used == cluster size  <=>  Full, or some CPU's current cluster
//!          otherwise                  Nonfull, Frag, or some CPU's current cluster
//! ```
//! Scan:
//! ```text
//! cluster  used == 0  <=>  Free, or Discard, or some CPU's current cluster
//! bounds   lowest <= every free slot <= highest; no slot is free  =>  highest == 0
//! ```

use crate::slot_map::{SlotMap, WordLocks};
use crate::tuning::AreaTuning;
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::AtomicU64;
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

    /// Returns how many of a device's slots an area uses: clusters are whole, and the slot after
    /// the last has a number, too.
    pub fn slots_used(&self, slots: u32) -> u32 {
        let cluster_slots = self.tuning.cluster_slots;
        slots.min(u32::MAX / cluster_slots * cluster_slots)
    }
}

/// The memory of an area: a word for every slot, see [`SlotMap`].
#[derive(Debug)]
pub struct SlotTable {
    pub(crate) words: Table<AtomicU64>,
    /// Number of slots the area can grow to.
    pub(crate) slots_max: u32,
    /// Slots that are never handed out.
    pub(crate) reserved: u32,
}

impl SlotTable {
    /// Returns how many words it takes for `slots_max` slots: clusters are whole.
    pub fn words(slots_max: u32, config: AreaConfig) -> usize {
        let cluster_slots = config.tuning.cluster_slots;
        slots_max.div_ceil(cluster_slots) as usize * cluster_slots as usize
    }

    /// Makes a table of as many [`words`](Self::words), all of them 0. The slots in `reserved` and
    /// those past `slots_max` are never handed out.
    pub fn new(words: Table<AtomicU64>, slots_max: u32, reserved: &[Slot]) -> Self {
        let map = SlotMap::new(words.clone(), WordLocks::Atomic);
        let past_end = (slots_max..words.len() as u32).map(Slot);
        let mut count = 0;
        for slot in reserved.iter().copied().chain(past_end) {
            count += u32::from(!map.in_use(slot));
            map.reserve(slot);
        }
        Self { words, slots_max, reserved: count }
    }

    /// As [`new`](Self::new), on the heap (tests, models).
    pub fn on_heap(slots_max: u32, config: AreaConfig, reserved: &[Slot]) -> Self {
        let words = Table::on_heap(Self::words(slots_max, config), || AtomicU64::new(0));
        Self::new(words, slots_max, reserved)
    }
}

/// What an allocation asks of the areas' user when slots run short. Called without any lock of this
/// crate.
pub trait SlotReclaim {
    /// Grows `area`. True if it is worth asking the area again.
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
    /// Called with locks of the area held. Must not block.
    fn slot_free(&self, slot: Slot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Preset;

    /// Past the last cluster of 2^32 slots there would be none that has a number.
    #[test]
    fn the_slot_after_the_last_has_a_number() {
        let all = [Preset::Modern, Preset::Linux4_11].map(AreaTuning::of);
        for tuning in all {
            let config = AreaConfig { tuning, cpus: 1, rotational: false, discard: false };
            let cluster_slots = tuning.cluster_slots;
            for slots in (0..3 * cluster_slots).map(|less| u32::MAX - less) {
                let used = config.slots_used(slots);
                assert!(used <= slots && slots - used < cluster_slots, "{slots} {used}");
                assert!(used.div_ceil(cluster_slots).checked_mul(cluster_slots).is_some());
                assert!(SlotTable::words(used, config) <= u32::MAX as usize);
            }
            assert_eq!(config.slots_used(cluster_slots + 1), cluster_slots + 1);
        }
    }
}
