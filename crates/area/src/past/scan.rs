//! The scanning allocator: free clusters while there are any, then a walk along the slot map.
//!
//! Owns: the bounds of the free slots, the scan bases, each CPU's cluster, the free and discard
//! lists.
//! Invariants: every free slot lies within `lowest..=highest`; slots are taken and freed only under
//! the area's lock, so a slot seen free under it can be taken; at most
//! [`scan_limit_slots`](crate::AreaTuning::scan_limit_slots) slots are examined under one hold of
//! it. Without the lock, words are hints.
//! Not here: one call's walk through the area ([`super::visit`]); folios of several pages, which
//! cluster lists support.
//! Source: Linux 4.8 to 6.11. `scan_more` and `scan_base` are the two patches of 5.8.

use crate::lists::{ClusterLists, FreshOrder, ListKind};
use crate::slot_map::{AreaLock, WordLocks};
use crate::state::AreaState;
use crate::tuning::ScanBase;
use crate::types::AreaConfig;
use overspill_base::Slot;
use overspill_base::sync::{Arc, LockClass, Mutex, MutexGuard};

/// The scanning allocator of one area.
#[derive(Debug)]
pub(crate) struct ScanAllocator {
    state: Arc<Mutex<Scan>>,
}

/// What the area's lock protects.
#[derive(Debug)]
pub(crate) struct Scan {
    /// No slot below is free.
    pub(crate) lowest: u32,
    /// No slot above is free; 0 if none is free at all.
    pub(crate) highest: u32,
    /// Where the next walk starts, for all CPUs.
    pub(super) base: u32,
    /// Slots left in the current run, on a rotational device.
    pub(super) run_left: u32,
    pub(super) cpus: Vec<CpuScan>,
    pub(crate) clusters: Vec<ScanCluster>,
    pub(crate) lists: ClusterLists,
    /// Free slots below the capacity.
    pub(crate) free: u32,
    random: fastrand::Rng,
}

/// A CPU's scan base and current cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuScan {
    base: u32,
    /// The cluster it allocates from, and the next offset to try in it.
    pub(super) current: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanCluster {
    pub(crate) used: u32,
    pub(crate) list: ListKind,
}

impl ScanAllocator {
    pub(crate) fn new(config: AreaConfig, seed: u64) -> Self {
        let state = Scan {
            lowest: u32::MAX,
            highest: 0,
            base: 0,
            run_left: 0,
            cpus: vec![CpuScan::default(); config.cpus],
            clusters: Vec::new(),
            lists: ClusterLists::default(),
            free: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        Self { state: Arc::new(Mutex::new(LockClass::Area, state)) }
    }

    /// Returns the locks that protect slot words in the release that the tuning models.
    pub(crate) fn word_locks(&self, config: &AreaConfig, clusters: usize) -> WordLocks {
        if config.tuning.cluster_locks && !config.rotational {
            WordLocks::clusters(clusters, config.tuning.cluster_slots)
        } else {
            WordLocks::Area(self.state.clone())
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Scan> {
        self.state.lock()
    }

    /// Makes the slots of `before..after` available, in whole clusters.
    pub(crate) fn grow(&self, area: &AreaState, before: u32, after: u32) {
        let mut scan = self.lock();
        let size = area.tuning().cluster_slots;
        let fresh = before / size..after / size;
        scan.clusters.resize(fresh.end as usize, ScanCluster::default());
        for cluster in FreshOrder::new(fresh, area.clusters_per_trunk()).iter() {
            let used = area.count_used(cluster);
            scan.clusters[cluster as usize].used = used;
            scan.free += size - used;
            if used == 0 && !area.config.rotational {
                scan.relink(cluster, ListKind::Free);
            }
        }
        if scan.free > 0 {
            (scan.lowest, scan.highest) = (scan.lowest.min(before), after - 1);
        }
        scan.scatter_bases(before == 0);
    }

    /// Drops holds of slots under one hold of the area's lock.
    pub(crate) fn free(&self, area: &AreaState, slots: &[Slot]) {
        let mut scan = self.lock();
        let freed = slots.iter().filter(|&&slot| area.drop_hold(slot)).inspect(|slot| {
            scan.freed(area, slot.0);
        });
        area.sub_used(freed.count());
    }

    /// Retires the current clusters of all CPUs.
    pub(crate) fn retire_all(&self, area: &AreaState) {
        let mut scan = self.lock();
        for cpu in 0..scan.cpus.len() {
            if let Some((cluster, _)) = scan.cpus[cpu].current.take() {
                scan.retire(area, cluster);
            }
        }
    }

    /// Takes a cluster off the discard list. Its slots stay reserved until
    /// [`discarded`](Self::discarded).
    pub(crate) fn take_discard(&self) -> Option<u32> {
        let mut scan = self.lock();
        let cluster = scan.lists.first(ListKind::Discard)?;
        scan.relink(cluster, ListKind::Current);
        Some(cluster)
    }

    /// Frees a cluster whose content the device has discarded.
    pub(crate) fn discarded(&self, area: &AreaState, cluster: u32) {
        let mut scan = self.lock();
        area.slots_of(cluster).for_each(|slot| area.slots.unreserve(slot));
        scan.free += area.tuning().cluster_slots;
        scan.widen(cluster * area.tuning().cluster_slots);
        scan.widen((cluster + 1) * area.tuning().cluster_slots - 1);
        scan.relink(cluster, ListKind::Free);
    }
}

impl AreaLock for Mutex<Scan> {
    fn under(&self, act: &mut dyn FnMut()) {
        let _held = self.lock();
        act();
    }
}

impl Scan {
    pub(super) fn relink(&mut self, cluster: u32, to: ListKind) {
        let state = &mut self.clusters[cluster as usize];
        let from = std::mem::replace(&mut state.list, to);
        self.lists.relink(cluster, from, to);
    }

    fn widen(&mut self, slot: u32) {
        self.lowest = self.lowest.min(slot);
        self.highest = self.highest.max(slot);
    }

    /// Subtracts slots from those that are free.
    pub(super) fn withdraw(&mut self, slots: u32) {
        self.free -= slots;
        if self.free == 0 {
            (self.lowest, self.highest) = (u32::MAX, 0);
        }
    }

    /// Accounts for a slot just freed.
    fn freed(&mut self, area: &AreaState, slot: u32) {
        self.free += 1;
        self.widen(slot);
        let cluster = area.cluster_of(Slot(slot));
        self.clusters[cluster as usize].used -= 1;
        self.relist(area, cluster);
    }

    /// Lists a cluster that became empty, unless a CPU allocates from it.
    fn relist(&mut self, area: &AreaState, cluster: u32) {
        let ScanCluster { used, list } = self.clusters[cluster as usize];
        if used > 0 || list != ListKind::None || area.config.rotational {
            return;
        }
        if !area.config.discard {
            self.relink(cluster, ListKind::Free);
            return;
        }
        area.slots_of(cluster).for_each(|slot| area.slots.reserve(slot));
        self.withdraw(area.tuning().cluster_slots);
        self.relink(cluster, ListKind::Discard);
    }

    pub(super) fn retire(&mut self, area: &AreaState, cluster: u32) {
        self.clusters[cluster as usize].list = ListKind::None;
        self.relist(area, cluster);
    }

    pub(super) fn base(&self, area: &AreaState, cpu: usize) -> u32 {
        match area.scan_base() {
            ScanBase::Shared => self.base,
            ScanBase::PerCpu => self.cpus[cpu].base,
        }
    }

    /// Gives each CPU a random scan base, so that they do not start close together.
    fn scatter_bases(&mut self, first_time: bool) {
        if first_time && self.highest > 0 {
            for cpu in 0..self.cpus.len() {
                self.cpus[cpu].base = self.random.u32(self.lowest..=self.highest);
            }
        }
    }

    /// Starts the next walk of `cpu` at `base`, or in a random trunk if `base` is in another trunk
    /// than the last walk's start.
    pub(super) fn set_base(&mut self, area: &AreaState, cpu: usize, base: u32) {
        if area.scan_base() == ScanBase::Shared {
            self.base = base;
            return;
        }
        let trunk_slots = area.tuning().trunk_slots;
        let leaves = base / trunk_slots != self.cpus[cpu].base / trunk_slots;
        self.cpus[cpu].base = match leaves && self.highest > self.lowest {
            true => self.random_trunk(trunk_slots),
            false => base,
        };
    }

    /// Returns the start of a random slot's trunk. Rounded down: the start of the next trunk may be
    /// above every free slot.
    fn random_trunk(&mut self, trunk_slots: u32) -> u32 {
        let slot = self.random.u32(self.lowest..=self.highest);
        let base = (slot & !(trunk_slots - 1)).max(self.lowest);
        debug_assert!((self.lowest..=self.highest).contains(&base), "base {base} out of bounds");
        base
    }
}
