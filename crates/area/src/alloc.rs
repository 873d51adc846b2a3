//! Allocation and freeing of slots in one area.
//!
//! Owns: the way of a slot: cluster → slot cache → page → freed batch → cluster.
//! Invariants: a slot in a cache counts one holder, so nobody else can take it; a freed slot keeps
//! its hold until its batch is flushed, so it is not handed out again before. One cluster lock
//! acquisition fills a whole cache.
//! Not here: several areas ([`crate::SwapAreas`]), other processes ([`crate::tree`]).
//! Rejected: the scanning allocator of Linux 2.6 to 6.11 as the default: on a fragmented area it
//! examines used slots under a lock, while the nonfull list leads to a free one at once.

use crate::lists::ListKind;
use crate::types::{Cluster, SlotCache, SwapArea};
use overspill_base::Slot;
use overspill_base::sync::MutexGuard;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

impl SwapArea {
    /// Appends up to `want` slots to `out` and returns how many, in ascending runs where the area
    /// is not fragmented. Fewer than `want` means that this process can get no more: grow the area
    /// or look elsewhere. Never blocks on I/O.
    pub fn alloc(&self, cpu: usize, want: usize, out: &mut Vec<Slot>) -> usize {
        if !self.is_writable() {
            return 0;
        }
        let got = self.alloc_from_cache(cpu, want, out);
        if got == want {
            return got;
        }
        self.drain();
        got + self.alloc_from_cache(cpu, want - got, out)
    }

    fn alloc_from_cache(&self, cpu: usize, want: usize, out: &mut Vec<Slot>) -> usize {
        let mut cache = self.cpus[cpu % self.cpus.len()].cache.lock();
        let start = out.len();
        while out.len() - start < want {
            match cache.ready.pop() {
                Some(slot) => out.push(slot),
                None if self.refill(&mut cache) => {}
                None => break,
            }
        }
        out.len() - start
    }

    /// Frees `slot`, which the caller got from [`alloc`](Self::alloc), with the next batch.
    ///
    /// # Panics
    /// At the flush, when the slot was not in use.
    pub fn free(&self, cpu: usize, slot: Slot) {
        let mut freed = self.cpus[cpu % self.cpus.len()].freed.lock();
        freed.push(slot);
        if freed.len() >= self.config.tuning.free_batch {
            self.flush(&mut freed);
        }
    }

    /// Returns every cached and freed slot of every CPU to its cluster. Needed before another
    /// process looks (fork), when a CPU goes away, and when an allocation finds nothing.
    pub fn drain(&self) {
        for cpu in &self.cpus {
            let mut cache = cpu.cache.lock();
            let mut unused = std::mem::take(&mut cache.ready);
            if let Some((cluster, _)) = cache.current.take() {
                self.retire(cluster);
            }
            self.flush(&mut unused);
            drop(cache);
            self.flush(&mut cpu.freed.lock());
        }
    }

    /// False after a write error or swapoff.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Relaxed)
    }

    /// Stops (or allows again) handing out slots. Slots in use stay valid.
    pub fn set_writable(&self, writable: bool) {
        self.writable.store(writable, Relaxed);
    }

    /// Slots the device has grown to.
    pub fn capacity_slots(&self) -> u32 {
        self.capacity[0].load(Acquire)
    }

    /// Tells that slots below `slots` may be used now. Never shrinks. A cluster becomes usable when
    /// all of it is; what the last one has past the end is reserved, so it counts as whole.
    pub fn set_capacity_slots(&self, slots: u32) {
        let whole = if slots >= self.slots_max { self.slots.len() as u32 } else { slots };
        self.capacity[0].fetch_max(whole, AcqRel);
    }

    /// Fills an empty cache from one cluster, under one acquisition of its lock.
    fn refill(&self, cache: &mut SlotCache) -> bool {
        loop {
            let Some((cluster, next)) = cache.current.or_else(|| self.next_cluster()) else {
                cache.current = None;
                return false;
            };
            let end = self.take_slots(cluster, next, &mut cache.ready);
            cache.current = (end < self.config.tuning.cluster_slots).then_some((cluster, end));
            if cache.current.is_none() {
                self.retire(cluster);
            }
            if !cache.ready.is_empty() {
                return true;
            }
        }
    }

    /// Claims up to a batch of free slots of `cluster` from `next` on; returns where it stopped.
    fn take_slots(&self, cluster: u32, next: u32, ready: &mut Vec<Slot>) -> u32 {
        let mut state = self.cluster(cluster).lock();
        let mut offset = next;
        while offset < self.config.tuning.cluster_slots
            && ready.len() < self.config.tuning.slot_batch
        {
            let slot = Slot(cluster * self.config.tuning.cluster_slots + offset);
            if self.slots.claim(slot) {
                self.note_hold(slot);
                state.used += 1;
                ready.push(slot);
            }
            offset += 1;
        }
        ready.reverse();
        if self.is_shared() {
            // A slot just claimed may be one that another member freed and we still counted.
            self.recount(cluster, &mut state);
        }
        offset
    }

    /// A cluster with room, taken off its list: free before nonfull, what others gave back before
    /// what nobody owns.
    fn next_cluster(&self) -> Option<(u32, u32)> {
        loop {
            for kind in [ListKind::Free, ListKind::Nonfull] {
                if let Some(cluster) = self.pick(kind) {
                    return Some((cluster, 0));
                }
            }
            if !self.any_listed() && !self.adopt() && !self.collect_returned() {
                return None;
            }
        }
    }

    /// True if a cluster changed lists while we looked at the other one.
    fn any_listed(&self) -> bool {
        let lists = self.lists.lock();
        lists.len(ListKind::Free) + lists.len(ListKind::Nonfull) > 0
    }

    fn pick(&self, kind: ListKind) -> Option<u32> {
        loop {
            let first = self.lists.lock().first(kind)?;
            let mut state = self.cluster(first).lock();
            if state.list == kind {
                self.relink(first, &mut state, ListKind::Current);
                return Some(first);
            }
        }
    }

    /// Puts a CPU's current cluster back where its count says.
    fn retire(&self, cluster: u32) {
        let mut state = self.cluster(cluster).lock();
        state.list = ListKind::None;
        self.settle(cluster, &mut state);
    }

    /// Returns freed slots, clusters in turn.
    pub(crate) fn flush(&self, freed: &mut Vec<Slot>) {
        freed.sort_unstable();
        for slot in freed.drain(..) {
            self.release(slot);
        }
    }

    fn release(&self, slot: Slot) {
        let cluster = slot.0 / self.config.tuning.cluster_slots;
        self.forget_hold(slot);
        if self.owners[cluster as usize].load(Acquire) != self.member().owner_word() {
            self.release_foreign(slot);
            return;
        }
        let mut state = self.cluster(cluster).lock();
        if self.slots.drop_hold(slot) {
            state.used -= 1;
            self.settle(cluster, &mut state);
        }
    }

    /// Puts a cluster on the list its count asks for, unless a CPU allocates from it.
    pub(crate) fn settle(&self, cluster: u32, state: &mut MutexGuard<'_, Cluster>) {
        if state.list == ListKind::Current {
            return;
        }
        let wanted = match state.used {
            0 => ListKind::Free,
            used if used >= self.config.tuning.cluster_slots => ListKind::None,
            _ => ListKind::Nonfull,
        };
        if wanted != state.list {
            self.relink(cluster, state, wanted);
        }
        if wanted == ListKind::Free && self.is_shared() {
            self.give_up_spare(cluster, state);
        }
    }

    pub(crate) fn relink(&self, cluster: u32, state: &mut MutexGuard<'_, Cluster>, to: ListKind) {
        self.lists.lock().relink(cluster, state.list, to);
        state.list = to;
    }

    /// Frees a slot of a cluster that some other member owns, or nobody.
    pub(crate) fn release_foreign(&self, slot: Slot) {
        if self.slots.drop_hold(slot) {
            let cluster = slot.index() / self.config.tuning.cluster_slots as usize;
            // Release: the owner that sees this count (Acquire in `collect_returned`) also sees the
            // slot's word at zero.
            self.returned[cluster].fetch_add(1, Release);
        }
    }
}
