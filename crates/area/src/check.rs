//! The counter equations of [`crate::types`], checked.

use crate::area::{SlotAllocator, SwapArea};
use crate::clusters::ListAllocator;
use crate::lists::{ClusterLists, ListKind};
use crate::past::scan::{Scan, ScanAllocator};
use crate::state::AreaState;
use overspill_base::Slot;

impl SwapArea {
    /// Verifies the counters. Call at quiescence.
    ///
    /// # Errors
    /// The first equation that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        match &self.allocator {
            SlotAllocator::Lists(lists) => lists.check(&self.state)?,
            SlotAllocator::Scan(scan) => scan.check(&self.state)?,
        }
        let map = &self.state.slots;
        let held = (0..map.len() as u32).filter(|&n| map.holders(Slot(n)).is_some_and(|h| h > 0));
        let (held, used) = (held.count() as u32, self.used_slots());
        ensure(held == used, || format!("counts {used} slots used, has {held}"))
    }

    /// Counts the slots in use below the capacity one by one: held, cached or reserved.
    pub fn count_used_slots(&self) -> usize {
        let end = self.capacity_slots();
        (0..end).filter(|&slot| self.state.slots.in_use(Slot(slot))).count()
    }
}

impl ListAllocator {
    fn check(&self, area: &AreaState) -> Result<(), String> {
        let clusters = area.capacity_slots() / area.tuning().cluster_slots;
        (0..clusters).try_for_each(|cluster| self.check_cluster(area, cluster))?;
        // A copy, because a cluster's lock is not taken under that of the lists.
        let lists = self.lists.lock().clone();
        check_lists(&lists, |cluster| self.cluster(cluster).lock().list)
    }

    fn check_cluster(&self, area: &AreaState, cluster: u32) -> Result<(), String> {
        let state = self.cluster(cluster).lock();
        let used = area.count_used(cluster);
        let is_fresh = state.list == ListKind::None;
        ensure(state.used == used || is_fresh, || {
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
            ListKind::None => state.used == 0,
        };
        ensure(fits, || format!("cluster {cluster}: {state:?} is on the wrong list"))
    }
}

impl ScanAllocator {
    fn check(&self, area: &AreaState) -> Result<(), String> {
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
    fn check_cluster(&self, area: &AreaState, cluster: u32) -> Result<(), String> {
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
