//! Per-CPU slot caches: slots allocated in advance, and freed slots not yet returned.
//!
//! Owns: both arrays of every CPU, and whether they are in use.
//! Invariants: a slot in either array counts one holder, so it cannot be claimed. A freed slot is
//! not handed out again before its batch is flushed, so that clusters can become empty. Caching is
//! switched on above five batches of free slots per CPU, and off and drained below two, so that
//! other CPUs' caches hide nothing from an allocation. No lock is held while an area is asked for
//! slots.
//! Not here: where slots come from ([`crate::SwapAreas`]).
//! Source: Linux 4.11 (`mm/swap_slots.c`); removed in 6.14 and 6.15, when cluster lists had made it
//! unnecessary. `modern` keeps it; docs/mechanisms.md says why.

use crate::types::SwapEntry;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicBool, LockClass, Mutex};
use std::collections::VecDeque;

/// Free slots per CPU, in batches, above which caching is switched on (THRESHOLD_ACTIVATE).
const ON_ABOVE: usize = 5;
/// And below which it is switched off: the most that one CPU can hold (THRESHOLD_DEACTIVATE).
const OFF_BELOW: usize = 2;

/// The caches of all CPUs.
#[derive(Debug)]
pub(crate) struct SlotCaches {
    cpus: Vec<CpuCache>,
    active: AtomicBool,
    /// Maximum length of `ready`.
    batch: usize,
}

#[derive(Debug)]
struct CpuCache {
    /// To hand out, oldest first.
    ready: Mutex<VecDeque<SwapEntry>>,
    freed: Mutex<Vec<SwapEntry>>,
}

impl SlotCaches {
    pub(crate) fn new(cpus: usize, batch: usize) -> Self {
        let cpu = || CpuCache {
            ready: Mutex::new(LockClass::SlotCache, VecDeque::new()),
            freed: Mutex::new(LockClass::SlotCache, Vec::with_capacity(batch)),
        };
        Self {
            cpus: std::iter::repeat_with(cpu).take(cpus).collect(),
            active: AtomicBool::new(false),
            batch,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// Switches caching on or off by the number of free slots; true if it was just switched off and
    /// must be drained.
    pub(crate) fn adapt(&self, free_slots: u64) -> bool {
        let per_cpu = free_slots as usize / (self.cpus.len() * self.batch);
        if self.is_active() && per_cpu < OFF_BELOW {
            return self.active.swap(false, Relaxed);
        }
        if !self.is_active() && per_cpu > ON_ABOVE {
            self.active.store(true, Relaxed);
        }
        false
    }

    /// Appends up to `want` cached entries to `out`.
    pub(crate) fn pop(&self, cpu: usize, want: usize, out: &mut Vec<SwapEntry>) -> usize {
        let mut ready = self.cpus[cpu % self.cpus.len()].ready.lock();
        let got = want.min(ready.len());
        out.extend(ready.drain(..got));
        got
    }

    /// Caches entries; those without room, because another thread of this CPU cached some too, stay
    /// in `entries`.
    pub(crate) fn push(&self, cpu: usize, entries: &mut Vec<SwapEntry>) {
        let mut ready = self.cpus[cpu % self.cpus.len()].ready.lock();
        let room = if self.is_active() { self.batch - ready.len().min(self.batch) } else { 0 };
        ready.extend(entries.drain(..room.min(entries.len())));
    }

    /// Adds a freed entry to the CPU's batch; passes a full batch to `flush`, sorted by area and
    /// slot.
    pub(crate) fn free(
        &self,
        cpu: usize,
        entry: SwapEntry,
        batch: usize,
        flush: impl FnOnce(&[SwapEntry]),
    ) {
        let mut freed = self.cpus[cpu % self.cpus.len()].freed.lock();
        freed.push(entry);
        if freed.len() >= batch {
            freed.sort_unstable();
            flush(&freed);
            freed.clear();
        }
    }

    /// Empties one CPU's arrays and returns their entries, sorted.
    pub(crate) fn drain_cpu(&self, cpu: usize) -> Vec<SwapEntry> {
        let cpu = &self.cpus[cpu];
        let mut entries: Vec<_> = cpu.ready.lock().drain(..).collect();
        entries.append(&mut cpu.freed.lock());
        entries.sort_unstable();
        entries
    }

    /// Returns the number of CPUs with arrays.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn caching_does_not_flap_between_its_thresholds() {
        let caches = SlotCaches::new(2, 64);
        assert!(!caches.adapt(640) && !caches.is_active());
        assert!(!caches.adapt(768) && caches.is_active());
        for free in [700, 300, 256] {
            assert!(!caches.adapt(free) && caches.is_active(), "{free}");
        }
        assert!(caches.adapt(255) && !caches.is_active());
        for free in [256, 500, 640] {
            assert!(!caches.adapt(free) && !caches.is_active(), "{free}");
        }
    }
}
