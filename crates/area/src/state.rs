//! The state of one area that its allocators have in common.
//!
//! Owns: the slots' words, the totals of the area, and whether slots are handed out.
//! Invariant: `used` is raised before slots are claimed, and lowered after they are free.
//! Not here: finding a slot.

use crate::slot_map::{SlotMap, WordLocks};
use crate::tuning::{AreaTuning, ScanBase};
use crate::types::{AreaConfig, SlotFreeNotify, SlotTable};
use overspill_base::Slot;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{AtomicBool, AtomicU32};

/// The state of one area that its allocators have in common.
#[derive(Debug)]
pub(crate) struct AreaState {
    pub(crate) config: AreaConfig,
    pub(crate) slots: SlotMap,
    slots_max: u32,
    /// Slots that are never handed out.
    reserved: u32,
    /// Number of slots the device has grown to.
    capacity: AtomicU32,
    /// Slots handed out, cached ones included.
    used: AtomicU32,
    /// The most that were ever handed out at a time.
    used_most: AtomicU32,
    /// Cleared after a write error and by swapoff: allocate elsewhere (WRITEOK in Linux).
    writable: AtomicBool,
    pub(crate) free_notify: Option<Box<dyn SlotFreeNotify>>,
}

impl AreaState {
    /// Wraps the words of `table`, which `locks` protect.
    pub(crate) fn new(table: SlotTable, config: AreaConfig, locks: WordLocks) -> Self {
        let [capacity, used, used_most] = [0, 0, 0].map(AtomicU32::new);
        Self {
            config,
            slots: SlotMap::new(table.words, locks),
            slots_max: table.slots_max,
            reserved: table.reserved,
            capacity,
            used,
            used_most,
            writable: AtomicBool::new(true),
            free_notify: None,
        }
    }

    pub(crate) fn tuning(&self) -> &AreaTuning {
        &self.config.tuning
    }

    pub(crate) fn cluster_of(&self, slot: Slot) -> u32 {
        slot.0 / self.config.tuning.cluster_slots
    }

    /// Clusters in a trunk; unlimited on a rotational device, where only order counts.
    pub(crate) fn clusters_per_trunk(&self) -> u32 {
        let AreaTuning { cluster_slots, trunk_slots, .. } = self.config.tuning;
        if self.config.rotational { u32::MAX } else { trunk_slots / cluster_slots }
    }

    pub(crate) fn scan_base(&self) -> ScanBase {
        if self.config.rotational { ScanBase::Shared } else { self.tuning().scan_base }
    }

    /// Iterates over the slots of a cluster.
    pub(crate) fn slots_of(&self, cluster: u32) -> impl DoubleEndedIterator<Item = Slot> + use<> {
        let size = self.config.tuning.cluster_slots;
        (cluster * size..(cluster + 1) * size).map(Slot)
    }

    /// Counts the slots of a cluster whose word is not 0.
    pub(crate) fn count_used(&self, cluster: u32) -> u32 {
        self.slots_of(cluster).filter(|&slot| self.slots.in_use(slot)).count() as u32
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable.load(Acquire)
    }

    /// Release: an allocator that takes a cluster's lock after the clearing thread released it sees
    /// the area closed.
    pub(crate) fn set_writable(&self, writable: bool) {
        self.writable.store(writable, Release);
    }

    pub(crate) fn capacity_slots(&self) -> u32 {
        self.capacity.load(Acquire)
    }

    /// Raises the capacity to `slots`. A cluster becomes usable as a whole; the slots of the last
    /// one past the end are reserved, so it counts as whole. Returns the capacity before and after.
    pub(crate) fn raise_capacity(&self, slots: u32) -> (u32, u32) {
        let whole = if slots >= self.slots_max { self.slots.len() as u32 } else { slots };
        let before = self.capacity.fetch_max(whole, AcqRel);
        (before, before.max(whole))
    }

    pub(crate) fn used_slots(&self) -> u32 {
        self.used.load(Relaxed)
    }

    pub(crate) fn used_most_slots(&self) -> u32 {
        self.used_most.load(Relaxed)
    }

    pub(crate) fn is_half_full(&self) -> bool {
        u64::from(self.used_slots()) * 2 > u64::from(self.usable_slots())
    }

    pub(crate) fn usable_slots(&self) -> u32 {
        self.slots.len() as u32 - self.reserved
    }

    /// Counts slots as used, before they are claimed: others see rather too many than too few.
    pub(crate) fn add_used(&self, slots: usize) {
        let slots = slots as u32;
        let used = self.used.fetch_add(slots, Relaxed) + slots;
        if used > self.used_most_slots() {
            self.used_most.fetch_max(used, Relaxed);
        }
    }

    pub(crate) fn sub_used(&self, slots: usize) {
        if slots > 0 {
            self.used.fetch_sub(slots as u32, Relaxed);
        }
    }

    /// Drops one hold of a slot, notifying the device of the last; true if the slot is free now.
    pub(crate) fn drop_hold(&self, slot: Slot) -> bool {
        let notify = |slot| self.free_notify.iter().for_each(|device| device.slot_free(slot));
        self.slots.drop_hold(slot, notify)
    }
}
