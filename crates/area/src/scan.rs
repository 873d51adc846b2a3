//! The scanning allocator: free clusters while there are any, then a walk along the slot map.
//!
//! Owns: the bounds of what is free, the scan bases, each CPU's cluster, the free and discard lists.
//! Invariants: every free slot lies within `lowest..=highest`; slots are taken and freed under the
//! area's lock only, so what is seen free under it can be taken; no more than
//! [`scan_limit_slots`](crate::AreaTuning::scan_limit_slots) slots are looked at under one hold of it.
//! Without the lock, words are hints.
//! Not here: sharing with other processes, folios of several pages: cluster lists have them.
//! Source: Linux 4.8 to 6.11. `scan_more` and `scan_base` are the two patches of 5.8.

mod runs;

use crate::lists::{ClusterLists, FreshOrder, ListKind};
use crate::set::Supply;
use crate::slot_map::WordLocks;
use crate::tuning::ScanBase;
use crate::types::{AreaConfig, AreaNo, Shared, SwapEntry};
use overspill_base::Slot;
use overspill_base::sync::{Arc, LockClass, Mutex, MutexGuard};
use overspill_base::work::{self, Work};
use std::ops::Range;

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
    /// No slot above is free; 0 when none is free at all.
    pub(crate) highest: u32,
    /// Where the next walk starts, for all CPUs.
    base: u32,
    /// Slots left of the run a rotational device is written in.
    run_left: u32,
    cpus: Vec<CpuScan>,
    pub(crate) clusters: Vec<ScanCluster>,
    pub(crate) lists: ClusterLists,
    /// Free slots below the capacity.
    pub(crate) free: u32,
    random: fastrand::Rng,
}

/// A CPU's places in the area.
#[derive(Clone, Copy, Debug, Default)]
struct CpuScan {
    base: u32,
    /// The cluster it allocates from, and the offset in it to look at next.
    current: Option<(u32, u32)>,
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

    /// What protects a slot's word in the tuning's time.
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

    /// Makes the slots of `before..after`, whole clusters, available.
    pub(crate) fn grow(&self, area: &Shared, before: u32, after: u32) {
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

    /// Appends up to `want` slots to `out`: one visit of `get_swap_pages`. Fewer, even none, does not
    /// mean that there are no more.
    pub(crate) fn alloc(
        &self,
        area: &Shared,
        number: AreaNo,
        cpu: usize,
        want: usize,
        supply: &dyn Supply,
        out: &mut Vec<Slot>,
    ) -> usize {
        let start = out.len();
        area.add_used(want);
        let mut visit = Visit {
            allocator: self,
            area,
            number,
            supply,
            cpu: cpu % area.config.cpus,
            scan: Some(self.lock()),
            left: area.tuning().scan_limit_slots,
            interrupted: false,
        };
        let mut last = None;
        while out.len() - start < want && area.is_writable() {
            let next = match last {
                None => visit.first(),
                Some(last) => visit.next(last),
            };
            let Some(slot) = next else { break };
            visit.take(slot);
            out.push(Slot(slot));
            last = Some(slot);
        }
        visit.finish(last);
        let got = out.len() - start;
        area.sub_used(want - got);
        got
    }

    /// Frees slots under one hold of the area's lock.
    pub(crate) fn free(&self, area: &Shared, slots: &[Slot]) {
        let mut scan = self.lock();
        let freed = slots.iter().filter(|&&slot| area.drop_hold(slot)).inspect(|slot| {
            scan.freed(area, slot.0);
        });
        area.sub_used(freed.count());
    }

    /// Every CPU forgets its cluster.
    pub(crate) fn retire_all(&self, area: &Shared) {
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

    /// The device has dropped the cluster's content.
    pub(crate) fn discarded(&self, area: &Shared, cluster: u32) {
        let mut scan = self.lock();
        area.slots_of(cluster).for_each(|slot| area.slots.unreserve(slot));
        scan.free += area.tuning().cluster_slots;
        scan.widen(cluster * area.tuning().cluster_slots);
        scan.widen((cluster + 1) * area.tuning().cluster_slots - 1);
        scan.relink(cluster, ListKind::Free);
    }
}

impl Scan {
    fn relink(&mut self, cluster: u32, to: ListKind) {
        let state = &mut self.clusters[cluster as usize];
        let from = std::mem::replace(&mut state.list, to);
        self.lists.relink(cluster, from, to);
    }

    fn widen(&mut self, slot: u32) {
        self.lowest = self.lowest.min(slot);
        self.highest = self.highest.max(slot);
    }

    /// So many slots are free no more.
    fn withdraw(&mut self, slots: u32) {
        self.free -= slots;
        if self.free == 0 {
            (self.lowest, self.highest) = (u32::MAX, 0);
        }
    }

    /// Bookkeeping for a slot just freed.
    fn freed(&mut self, area: &Shared, slot: u32) {
        self.free += 1;
        self.widen(slot);
        let cluster = area.cluster_of(Slot(slot));
        self.clusters[cluster as usize].used -= 1;
        self.settle(area, cluster);
    }

    /// Lists a cluster that became empty, unless a CPU allocates from it.
    fn settle(&mut self, area: &Shared, cluster: u32) {
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

    fn retire(&mut self, area: &Shared, cluster: u32) {
        self.clusters[cluster as usize].list = ListKind::None;
        self.settle(area, cluster);
    }

    fn base(&self, area: &Shared, cpu: usize) -> u32 {
        match area.scan_base() {
            ScanBase::Shared => self.base,
            ScanBase::PerCpu => self.cpus[cpu].base,
        }
    }

    /// Bases start anywhere, so that CPUs do not begin as neighbours.
    fn scatter_bases(&mut self, first_time: bool) {
        if first_time && self.highest > 0 {
            for cpu in 0..self.cpus.len() {
                self.cpus[cpu].base = self.random.u32(self.lowest..=self.highest);
            }
        }
    }

    /// The next walk of `cpu` starts at `base`, or, when that is in another trunk than the last one
    /// did, at the start of a random trunk.
    fn set_base(&mut self, area: &Shared, cpu: usize, base: u32) {
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

    /// The start of the trunk a random slot is in. Rounded down: the start of the next one may lie
    /// above every free slot.
    fn random_trunk(&mut self, trunk_slots: u32) -> u32 {
        let slot = self.random.u32(self.lowest..=self.highest);
        let base = (slot & !(trunk_slots - 1)).max(self.lowest);
        debug_assert!((self.lowest..=self.highest).contains(&base), "base {base} out of bounds");
        base
    }
}

/// One call of the allocator, with the area's lock.
struct Visit<'a> {
    allocator: &'a ScanAllocator,
    area: &'a Shared,
    number: AreaNo,
    supply: &'a dyn Supply,
    cpu: usize,
    /// `None` only while the lock is dropped.
    scan: Option<MutexGuard<'a, Scan>>,
    /// Slots that may still be looked at under this hold.
    left: u32,
    /// The lock was dropped for others: this visit has looked enough.
    interrupted: bool,
}

impl<'a> Visit<'a> {
    fn scan(&mut self) -> &mut Scan {
        self.scan.as_mut().expect("the lock is held outside `unlocked`")
    }

    /// Does something without the area's lock.
    fn unlocked<R>(&mut self, f: impl FnOnce(&Self) -> R) -> R {
        self.scan = None;
        let result = f(self);
        self.scan = Some(self.allocator.lock());
        self.left = self.area.tuning().scan_limit_slots;
        result
    }

    fn is_free(&self, slot: u32) -> bool {
        !self.area.slots.in_use(Slot(slot))
    }

    /// A slot to begin with.
    fn first(&mut self) -> Option<u32> {
        if self.area.config.rotational {
            self.continue_run();
        } else if let Some(slot) = self.slot_in_cluster() {
            return Some(slot);
        }
        if self.scan().free == 0 {
            return None;
        }
        let cpu = self.cpu;
        let area = self.area;
        let base = self.scan().base(area, cpu);
        let (lowest, highest) = (self.scan().lowest, self.scan().highest);
        let base = if (lowest..=highest).contains(&base) { base } else { lowest };
        work::charge(Work::SlotSeen);
        if self.is_free(base) { Some(base) } else { self.walk(base) }
    }

    /// A slot after `last`, without giving up the lock.
    fn next(&mut self, last: u32) -> Option<u32> {
        if last >= self.scan().highest {
            return None;
        }
        if self.area.config.rotational {
            let scan = self.scan();
            let more = scan.run_left > 0;
            scan.run_left = scan.run_left.saturating_sub(1);
            if more && self.is_free(last + 1) {
                return Some(last + 1);
            }
        } else if let Some(slot) = self.slot_in_cluster() {
            return Some(slot);
        }
        if self.area.tuning().scan_more && !self.interrupted { self.scan_more(last) } else { None }
    }

    /// A few more slots of a fragmented area, with what is left of this hold's budget.
    fn scan_more(&mut self, last: u32) -> Option<u32> {
        let end = self.scan().highest;
        for slot in last + 1..=end {
            if self.left == 0 {
                return None;
            }
            self.left -= 1;
            work::charge(Work::SlotsScanned(1));
            if self.is_free(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// The next slot of the CPU's cluster, or of a free one.
    fn slot_in_cluster(&mut self) -> Option<u32> {
        let size = self.area.tuning().cluster_slots;
        loop {
            let (cluster, next) = self.current_cluster()?;
            for offset in next..size {
                if self.left == 0 {
                    self.set_current(Some((cluster, offset)));
                    return None;
                }
                self.left -= 1;
                work::charge(Work::SlotsScanned(1));
                let slot = cluster * size + offset;
                if self.is_free(slot) {
                    self.set_current(Some((cluster, offset + 1)));
                    return Some(slot);
                }
            }
            self.set_current(None);
            let area = self.area;
            self.scan().retire(area, cluster);
        }
    }

    fn set_current(&mut self, current: Option<(u32, u32)>) {
        let cpu = self.cpu;
        self.scan().cpus[cpu].current = current;
    }

    /// The CPU's cluster; a free one if it has none; discards what waits for that if there is none.
    fn current_cluster(&mut self) -> Option<(u32, u32)> {
        let cpu = self.cpu;
        if let Some(current) = self.scan().cpus[cpu].current {
            return Some(current);
        }
        let free = self.scan().lists.first(ListKind::Free).or_else(|| {
            let waiting = self.scan().lists.first(ListKind::Discard).is_some();
            let (supply, number) = (self.supply, self.number);
            let discarded = waiting && self.unlocked(|_| supply.discard(number));
            if discarded { self.scan().lists.first(ListKind::Free) } else { None }
        });
        let cluster = free?;
        self.scan().relink(cluster, ListKind::Current);
        self.set_current(Some((cluster, 0)));
        Some((cluster, 0))
    }

    /// Looks for a free slot from `base` on, then from the start, without the lock.
    fn walk(&mut self, base: u32) -> Option<u32> {
        let (lowest, highest) = (self.scan().lowest, self.scan().highest);
        for range in [base..highest + 1, lowest..base] {
            let mut at = range.start;
            while at < range.end {
                let (found, looked) = self.unlocked(|visit| visit.find_free(at..range.end));
                self.interrupted |= looked > self.area.tuning().scan_limit_slots;
                let Some(slot) = found else { break };
                work::charge(Work::SlotSeen);
                if self.is_free(slot) && self.may_take(slot) {
                    return Some(slot);
                }
                at = slot + 1;
            }
        }
        None
    }

    /// The first free slot of a range, and how many were looked at; above half use, copies count as
    /// free.
    fn find_free(&self, range: Range<u32>) -> (Option<u32>, u32) {
        let half_full = self.area.is_half_full();
        let limit = self.area.tuning().scan_limit_slots;
        for (looked, slot) in (1..).zip(range.clone()) {
            work::charge(Work::SlotsScanned(1));
            let copy = || half_full && self.area.slots.is_cache_only(Slot(slot));
            let entry = || SwapEntry::new(self.number, Slot(slot));
            if self.is_free(slot) || copy() && self.supply.give_up(entry()) {
                return (Some(slot), looked);
            }
            if looked % limit == 0 {
                std::thread::yield_now();
            }
        }
        (None, range.len() as u32)
    }

    /// False in a cluster that became empty meanwhile: those are taken whole, from the list.
    fn may_take(&mut self, slot: u32) -> bool {
        let cluster = self.area.cluster_of(Slot(slot));
        self.scan().clusters[cluster as usize].list != ListKind::Free
    }

    /// Claims a slot seen free under the lock.
    fn take(&mut self, slot: u32) {
        let area = self.area;
        let claimed = area.claim(Slot(slot));
        assert!(claimed, "slot {slot} was taken without the area's lock");
        let cluster = area.cluster_of(Slot(slot));
        let scan = self.scan();
        scan.clusters[cluster as usize].used += 1;
        if slot == scan.lowest {
            scan.lowest += 1;
        } else if slot == scan.highest {
            scan.highest -= 1;
        }
        scan.withdraw(1);
    }

    fn finish(mut self, last: Option<u32>) {
        let (area, cpu) = (self.area, self.cpu);
        if let Some(last) = last {
            self.scan().set_base(area, cpu, last + 1);
        }
    }
}
