//! Per-CPU slot caches: slots allocated ahead of need, and freed ones on their way back.
//!
//! Owns: both arrays of every CPU, and when they are in use at all.
//! Invariants: a slot in either array counts one holder, so nobody else can take it. A freed slot
//! is not handed out again before its batch is flushed, so that clusters can become empty. Caching
//! goes on above five batches of free slots per CPU and off, drained, below two: what other CPUs
//! can hide from an allocation is then nothing. No lock is held while an area is asked.
//! Not here: where slots come from ([`crate::SwapAreas`]).
//! Source: Linux 4.11 (`mm/swap_slots.c`), taken out again in 6.14 and 6.15 when cluster lists had
//! made it unnecessary.

use crate::types::SwapEntry;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicBool, LockClass, Mutex};
use std::collections::VecDeque;

/// Free slots per CPU, in batches, above which caching goes on (THRESHOLD_ACTIVATE).
const ON_ABOVE: usize = 5;
/// And below which it goes off: the most that one CPU can hide (THRESHOLD_DEACTIVATE).
const OFF_BELOW: usize = 2;

/// The caches of all CPUs.
#[derive(Debug)]
pub(crate) struct SlotCaches {
    cpus: Vec<CpuCache>,
    active: AtomicBool,
    /// Entries of one array.
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

    /// Switches caching on or off by what is free; true if it has just gone off and is to be
    /// drained.
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

    /// Keeps entries for later; what there is no room for, because another thread of this CPU
    /// was here too, stays in `entries`.
    pub(crate) fn push(&self, cpu: usize, entries: &mut Vec<SwapEntry>) {
        let mut ready = self.cpus[cpu % self.cpus.len()].ready.lock();
        let room = if self.is_active() { self.batch - ready.len().min(self.batch) } else { 0 };
        ready.extend(entries.drain(..room.min(entries.len())));
    }

    /// Collects a freed entry; gives `flush` a batch of them, sorted by area and slot.
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

    /// Takes everything out of one CPU's arrays, sorted.
    pub(crate) fn drain_cpu(&self, cpu: usize) -> Vec<SwapEntry> {
        let cpu = &self.cpus[cpu];
        let mut entries: Vec<_> = cpu.ready.lock().drain(..).collect();
        entries.append(&mut cpu.freed.lock());
        entries.sort_unstable();
        entries
    }

    /// CPUs there are arrays for.
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
