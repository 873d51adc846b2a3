//! The counter equations of [`crate::types`], checked.

use crate::area::{SlotAllocator, SwapArea};
use crate::clusters::ListAllocator;
use crate::lists::{ClusterLists, ListKind};
use crate::past::scan::{Scan, ScanAllocator};
use crate::shared::Shared;
use overspill_base::Slot;
use overspill_base::sync::Ordering::Relaxed;

impl SwapArea {
    /// Verifies the counters of this process's state. Call at quiescence.
    ///
    /// # Errors
    /// The first equation that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        match &self.allocator {
            SlotAllocator::Lists(lists) => lists.check(&self.shared)?,
            SlotAllocator::Scan(scan) => scan.check(&self.shared)?,
        }
        if self.shared.is_shared() { Ok(()) } else { self.check_used() }
    }

    /// Killed processes may leave the total too high, so it is exact only in areas of one process.
    fn check_used(&self) -> Result<(), String> {
        let map = &self.shared.slots;
        let held = (0..map.len() as u32).filter(|&n| map.holders(Slot(n)).is_some_and(|h| h > 0));
        let (held, used) = (held.count() as u32, self.used_slots());
        ensure(held == used, || format!("counts {used} slots used, has {held}"))
    }

    /// Counts the slots in use below the capacity one by one: held, cached or reserved.
    pub fn count_used_slots(&self) -> usize {
        let end = self.capacity_slots();
        (0..end).filter(|&slot| self.shared.slots.in_use(Slot(slot))).count()
    }
}

impl ListAllocator {
    fn check(&self, area: &Shared) -> Result<(), String> {
        let ours = |cluster: &u32| {
            area.owners[*cluster as usize].load(Relaxed) == area.member().owner_word()
        };
        for cluster in (0..area.owners.len() as u32).filter(ours) {
            self.check_cluster(area, cluster)?;
        }
        // A copy, because a cluster's lock is not taken under that of the lists.
        let lists = self.lists.lock().clone();
        check_lists(&lists, |cluster| self.cluster(cluster).lock().list)
    }

    fn check_cluster(&self, area: &Shared, cluster: u32) -> Result<(), String> {
        let state = self.cluster(cluster).lock();
        let used = area.count_used(cluster);
        let unseen = area.returned[cluster as usize].load(Relaxed);
        ensure(state.used == used || unseen > 0, || {
            format!("cluster {cluster}: counts {} used, has {used}", state.used)
        })?;
        let size = area.tuning().cluster_slots;
        let fits = match state.list {
            ListKind::Current => true,
            ListKind::Free | ListKind::Discard => state.used == 0,
            ListKind::Nonfull(order) | ListKind::Frag(order) => {
                state.used > 0 && state.used < size && order == state.order
            }
            ListKind::Full => state.used == size,
            ListKind::None => false,
        };
        ensure(fits, || format!("cluster {cluster}: {state:?} is on the wrong list"))
    }
}

impl ScanAllocator {
    fn check(&self, area: &Shared) -> Result<(), String> {
        let scan = self.lock();
        let free = |slot: &u32| !area.slots.in_use(Slot(*slot));
        let mut free_slots = 0;
        for slot in (0..area.capacity_slots()).filter(free) {
            free_slots += 1;
            ensure((scan.lowest..=scan.highest).contains(&slot), || {
                format!("slot {slot} is free outside {}..={}", scan.lowest, scan.highest)
            })?;
        }
        ensure(free_slots == scan.free, || format!("counts {} free, has {free_slots}", scan.free))?;
        ensure(scan.free > 0 || scan.highest == 0, || "full, but not bounded so".into())?;
        for cluster in 0..scan.clusters.len() as u32 {
            scan.check_cluster(area, cluster)?;
        }
        check_lists(&scan.lists, |cluster| scan.clusters[cluster as usize].list)
    }
}

impl Scan {
    fn check_cluster(&self, area: &Shared, cluster: u32) -> Result<(), String> {
        let state = self.clusters[cluster as usize];
        let used = area.count_used(cluster);
        let fits = match state.list {
            ListKind::Discard => state.used == 0 && used == area.tuning().cluster_slots,
            ListKind::Free => state.used == 0 && used == 0,
            ListKind::None => state.used == used && (used > 0 || area.config.rotational),
            _ => state.used == used,
        };
        ensure(fits, || format!("cluster {cluster}: {state:?}, but {used} slots are used"))
    }
}

/// Checks that every listed cluster's state names its list.
fn check_lists(lists: &ClusterLists, says: impl Fn(u32) -> ListKind) -> Result<(), String> {
    for kind in ListKind::listed() {
        let members: Vec<u32> = lists.iter(kind).collect();
        ensure(members.len() == lists.len(kind), || format!("{kind:?} list: wrong length"))?;
        for cluster in members {
            let says = says(cluster);
            ensure(says == kind, || format!("cluster {cluster}: on {kind:?}, says {says:?}"))?;
        }
    }
    Ok(())
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
