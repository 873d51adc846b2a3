//! One visit of the scanning allocator to its area: a walk along the slot map.
//!
//! Owns: where a visit looks next, and when it drops the area's lock.
//! Invariants: slots are taken only under the lock, in the same hold under which they were seen
//! free.
//! Not here: the area's state between visits ([`super::scan`]).
//! Source: `scan_swap_map_slots` of Linux 4.8 to 6.11.

use super::scan::{Scan, ScanAllocator};
use crate::lists::ListKind;
use crate::state::AreaState;
use crate::types::{AreaNo, SlotReclaim, SwapEntry};
use overspill_base::Slot;
use overspill_base::sync::MutexGuard;
use overspill_base::work::{self, Work};
use std::ops::Range;

impl ScanAllocator {
    /// Appends up to `want` slots to `out`: one visit of `get_swap_pages`. Fewer, or none, does not
    /// mean that there are no more.
    pub(crate) fn alloc(
        &self,
        area: &AreaState,
        number: AreaNo,
        cpu: usize,
        want: usize,
        reclaim: &dyn SlotReclaim,
        out: &mut Vec<Slot>,
    ) -> usize {
        let start = out.len();
        area.add_used(want);
        let mut visit = Visit {
            allocator: self,
            area,
            number,
            reclaim,
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
}

/// One call of the allocator, and its hold of the area's lock.
struct Visit<'a> {
    allocator: &'a ScanAllocator,
    area: &'a AreaState,
    number: AreaNo,
    reclaim: &'a dyn SlotReclaim,
    cpu: usize,
    /// `None` only while the lock is dropped.
    scan: Option<MutexGuard<'a, Scan>>,
    /// Slots that may still be examined under this hold.
    left: u32,
    /// A walk exceeded the limit without the lock: this visit does not scan on.
    interrupted: bool,
}

impl<'a> Visit<'a> {
    fn scan(&mut self) -> &mut Scan {
        self.scan.as_mut().expect("the lock is held outside `unlocked`")
    }

    /// Calls `f` without the area's lock.
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

    /// Finds the first slot.
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
        if self.is_free(base) && self.may_take(base) { Some(base) } else { self.walk(base) }
    }

    /// Finds a slot after `last`, without dropping the lock.
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

    /// Finds a slot after `last` in a fragmented area, within what is left of this hold's budget.
    fn scan_more(&mut self, last: u32) -> Option<u32> {
        let end = self.scan().highest;
        for slot in last + 1..=end {
            if self.left == 0 {
                return None;
            }
            self.left -= 1;
            work::charge(Work::SlotsScanned(1));
            if self.is_free(slot) && self.may_take(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Finds the next free slot of the CPU's cluster, or of a free one.
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

    /// Returns the CPU's cluster, or gives it a free one; discards waiting clusters if there is
    /// none.
    fn current_cluster(&mut self) -> Option<(u32, u32)> {
        let cpu = self.cpu;
        if let Some(current) = self.scan().cpus[cpu].current {
            return Some(current);
        }
        let free = self.scan().lists.first(ListKind::Free).or_else(|| {
            let waiting = self.scan().lists.first(ListKind::Discard).is_some();
            let (reclaim, number) = (self.reclaim, self.number);
            let discarded = waiting && self.unlocked(|_| reclaim.discard(number));
            if discarded { self.scan().lists.first(ListKind::Free) } else { None }
        });
        let cluster = free?;
        self.scan().relink(cluster, ListKind::Current);
        self.set_current(Some((cluster, 0)));
        Some((cluster, 0))
    }

    /// Searches for a free slot from `base` on, then from the start, without the lock.
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

    /// Returns the first free slot of a range, and how many it examined; if the area is more than
    /// half full, copies count as free.
    fn find_free(&self, range: Range<u32>) -> (Option<u32>, u32) {
        let half_full = self.area.is_half_full();
        let limit = self.area.tuning().scan_limit_slots;
        for (looked, slot) in (1..).zip(range.clone()) {
            work::charge(Work::SlotsScanned(1));
            let copy = || half_full && self.area.slots.is_cache_only(Slot(slot));
            let entry = || SwapEntry::new(self.number, Slot(slot));
            if self.is_free(slot) || copy() && self.reclaim.reclaim_slot(entry()) {
                return (Some(slot), looked);
            }
            if looked % limit == 0 {
                std::thread::yield_now();
            }
        }
        (None, range.len() as u32)
    }

    /// False in an empty cluster: those are taken whole from the free list. One may have become
    /// empty meanwhile, or lie behind what this hold's budget was enough for.
    fn may_take(&mut self, slot: u32) -> bool {
        let cluster = self.area.cluster_of(Slot(slot));
        self.scan().clusters[cluster as usize].list != ListKind::Free
    }

    /// Claims a slot seen free under the lock.
    fn take(&mut self, slot: u32) {
        let area = self.area;
        let claimed = area.slots.claim(Slot(slot));
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

    /// Moves the base of a rotational device to a free run of a cluster's length at the end of each
    /// run, as long as there are any.
    fn continue_run(&mut self) {
        let size = self.area.tuning().cluster_slots;
        if self.scan().run_left > 0 {
            self.scan().run_left -= 1;
            return;
        }
        self.scan().run_left = size - 1;
        if self.scan().free < size {
            return;
        }
        let (lowest, highest) = (self.scan().lowest, self.scan().highest);
        if let Some(start) = self.unlocked(|visit| visit.find_run(lowest, highest, size)) {
            self.scan().base = start;
        }
    }

    fn find_run(&self, lowest: u32, highest: u32, size: u32) -> Option<u32> {
        let mut run = 0;
        for slot in lowest..=highest {
            run = if self.is_free(slot) { run + 1 } else { 0 };
            if run == size {
                return Some(slot + 1 - size);
            }
        }
        None
    }
}
