//! The state of one area that its allocators and other processes share.
//!
//! Owns: the totals of the area, the members' hold bits, and whether slots are handed out.
//! Invariants: a slot's count is raised before its holder's bit is set, and the bit is cleared
//! before the count is dropped, so a member killed in between leaves at most one slot held, and
//! none freed too early. `used` is raised before slots are claimed.
//! Not here: finding a slot; releasing a dead member's holds ([`crate::members`]).

use crate::slot_map::{SlotMap, WordLocks};
use crate::tuning::{AreaTuning, ScanBase};
use crate::types::{AreaConfig, AreaTables, MemberNo, SlotFreeNotify};
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{AtomicBool, AtomicU32, AtomicU64};

/// The state of one area that its allocators and other processes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: AreaConfig,
    pub(crate) slots: SlotMap,
    pub(crate) owners: Table<AtomicU32>,
    pub(crate) returned: Table<AtomicU32>,
    counters: Table<AtomicU32>,
    slots_max: u32,
    pub(crate) holds: Vec<Table<AtomicU64>>,
    /// This process; changes once, in a forked child.
    pub(crate) member: AtomicU32,
    /// Cleared after a write error and by swapoff: allocate elsewhere (WRITEOK in Linux).
    writable: AtomicBool,
    pub(crate) free_notify: Option<Box<dyn SlotFreeNotify>>,
}

impl Shared {
    /// Wraps the state in `tables` for `member`; `locks` protect its words.
    pub(crate) fn new(
        tables: AreaTables,
        config: AreaConfig,
        member: MemberNo,
        locks: WordLocks,
    ) -> Self {
        Self {
            config,
            slots: SlotMap::new(tables.slots, locks),
            owners: tables.owners,
            returned: tables.returned,
            counters: tables.counters,
            slots_max: tables.slots_max,
            holds: tables.holds,
            member: AtomicU32::new(member.0),
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
        self.counters[AreaTables::CAPACITY].load(Acquire)
    }

    /// Raises the capacity to `slots`. A cluster becomes usable as a whole; the slots of the last
    /// one past the end are reserved, so it counts as whole. Returns the capacity before and after.
    pub(crate) fn raise_capacity(&self, slots: u32) -> (u32, u32) {
        let whole = if slots >= self.slots_max { self.slots.len() as u32 } else { slots };
        let before = self.counters[AreaTables::CAPACITY].fetch_max(whole, AcqRel);
        (before, before.max(whole))
    }

    pub(crate) fn used_slots(&self) -> u32 {
        self.counters[AreaTables::USED].load(Relaxed)
    }

    pub(crate) fn is_half_full(&self) -> bool {
        u64::from(self.used_slots()) * 2 > u64::from(self.usable_slots())
    }

    pub(crate) fn usable_slots(&self) -> u32 {
        (self.slots.len() as u32).saturating_sub(self.counters[AreaTables::RESERVED].load(Relaxed))
    }

    /// Counts slots as used. Called before they are claimed, so that a process killed in between
    /// leaves the total too high and does not make it wrap around.
    pub(crate) fn add_used(&self, slots: usize) {
        let slots = slots as u32;
        let used = self.counters[AreaTables::USED].fetch_add(slots, Relaxed) + slots;
        let most = &self.counters[AreaTables::USED_MOST];
        if used > most.load(Relaxed) {
            most.fetch_max(used, Relaxed);
        }
    }

    pub(crate) fn sub_used(&self, slots: usize) {
        if slots > 0 {
            self.counters[AreaTables::USED].fetch_sub(slots as u32, Relaxed);
        }
    }

    /// Claims a free slot for this process. False if it is not free.
    pub(crate) fn claim(&self, slot: Slot) -> bool {
        let claimed = self.slots.claim(slot);
        if claimed {
            self.note_hold(slot);
        }
        claimed
    }

    /// Drops this process's hold; true if the slot is free now.
    pub(crate) fn drop_hold(&self, slot: Slot) -> bool {
        self.forget_hold(slot);
        self.drop_count(slot)
    }

    /// Decrements a slot's count, notifying the device of the last hold; true if the slot is free
    /// now.
    pub(crate) fn drop_count(&self, slot: Slot) -> bool {
        let notify = |slot| self.free_notify.iter().for_each(|device| device.slot_free(slot));
        self.slots.drop_hold(slot, notify)
    }

    pub(crate) fn is_shared(&self) -> bool {
        !self.holds.is_empty()
    }

    pub(crate) fn member(&self) -> MemberNo {
        MemberNo(self.member.load(Relaxed))
    }

    pub(crate) fn note_hold(&self, slot: Slot) {
        if self.is_shared() {
            self.holds[self.member().0 as usize][slot.index() / 64]
                .fetch_or(1 << (slot.0 % 64), Relaxed);
        }
    }

    pub(crate) fn forget_hold(&self, slot: Slot) {
        if self.is_shared() {
            self.holds[self.member().0 as usize][slot.index() / 64]
                .fetch_and(!(1 << (slot.0 % 64)), Relaxed);
        }
    }

    /// Drops this process's hold of a slot in a cluster that it does not own; true if the slot is
    /// free now.
    pub(crate) fn free_foreign(&self, slot: Slot) -> bool {
        self.forget_hold(slot);
        self.return_foreign(slot)
    }

    pub(crate) fn return_foreign(&self, slot: Slot) -> bool {
        let freed = self.drop_count(slot);
        if freed {
            // Release: the owner that sees this count (Acquire in `recount`) also sees the slot's
            // word at 0.
            self.returned[self.cluster_of(slot) as usize].fetch_add(1, Release);
        }
        freed
    }

    pub(crate) fn hold_words(&self) -> usize {
        (self.capacity_slots() as usize).div_ceil(64)
    }
}
