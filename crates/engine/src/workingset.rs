//! Refault detection.
//!
//! When a page is evicted, its page-table word keeps the eviction clock as its *shadow*. At its
//! refault the clock's advance since then, the *refault distance*, is the number of evictions and
//! activations in between: how much more memory would have kept the page. If the active list is at
//! least that long, the page is activated, at the expense of pages that were not touched again.
//! (Linux, `mm/workingset.c`.)
//!
//! Owns: the clock.
//! Invariant: distances are taken modulo the shadow's width, after a shift that makes the window at
//! least four times the number of frames.

use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;

/// Bits of a shadow.
pub(crate) const SHADOW_BITS: u32 = 20;
const MASK: u64 = (1 << SHADOW_BITS) - 1;

/// What shows how an engine suffers from lack of frames: sums that only grow. See `lease`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefaultCounts {
    /// Pages evicted.
    pub evictions: u64,
    /// Refaults that more frames would have saved: an eighth of all, a sixteenth, and so on.
    pub within: [u64; RefaultCounts::NEARS],
}

impl RefaultCounts {
    /// Distances that are told apart.
    pub const NEARS: usize = 4;

    /// Returns what was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let within = std::array::from_fn(|n| self.within[n].saturating_sub(before.within[n]));
        Self { evictions: self.evictions.saturating_sub(before.evictions), within }
    }
}

/// The eviction clock of one engine.
#[derive(Debug)]
pub(crate) struct Workingset {
    clock: AtomicU64,
    evictions: AtomicU64,
    /// By the distance, as in [`RefaultCounts`], but each refault only in the nearest.
    refaults: [AtomicU64; RefaultCounts::NEARS],
    shift: u32,
}

impl Workingset {
    /// For up to `frames` pages in memory.
    pub(crate) fn new(frames: usize) -> Self {
        let bits = (frames as u64).ilog2() + 3;
        let shift = bits.saturating_sub(SHADOW_BITS);
        Self {
            clock: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            refaults: std::array::from_fn(|_| AtomicU64::new(0)),
            shift,
        }
    }

    /// Advances the clock for an eviction and returns the page's shadow.
    pub(crate) fn evicted(&self) -> u32 {
        self.evictions.fetch_add(1, Relaxed);
        ((self.clock.fetch_add(1, Relaxed) >> self.shift) & MASK) as u32
    }

    /// Returns the sums so far.
    pub(crate) fn refaults(&self) -> RefaultCounts {
        let mut within = std::array::from_fn(|n| self.refaults[n].load(Relaxed));
        for n in (0..RefaultCounts::NEARS - 1).rev() {
            within[n] += within[n + 1];
        }
        RefaultCounts { evictions: self.evictions.load(Relaxed), within }
    }

    fn count_refault(&self, distance: u64, frames: u64) {
        let within = |&n: &usize| distance <= (frames / 8) >> n;
        if let Some(nearest) = (0..RefaultCounts::NEARS).rev().find(within) {
            self.refaults[nearest].fetch_add(1, Relaxed);
        }
    }

    /// Returns the clock.
    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Returns the advance of the clock since an eviction, if it has not come round.
    pub(crate) fn age(&self, shadow: u32) -> u64 {
        let now = self.clock() >> self.shift;
        (now.wrapping_sub(u64::from(shadow)) & MASK) << self.shift
    }

    /// Advances the clock for an activation.
    pub(crate) fn activated(&self) {
        self.clock.fetch_add(1, Relaxed);
    }

    /// True if a page evicted at `shadow` should be active, with `active` of `frames` pages on that
    /// list. At least an eighth of all frames counts as active, or an empty list could never grow.
    pub(crate) fn refault_activates(&self, shadow: u32, active: usize, frames: u64) -> bool {
        let distance = self.age(shadow);
        self.count_refault(distance, frames);
        distance <= (active as u64).max(frames / 8)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_evictions_and_survives_the_clock_wrapping() {
        let set = Workingset::new(64);
        // The clock has wrapped, and is about to wrap again.
        set.clock.store(3 << SHADOW_BITS | MASK, Relaxed);
        let shadow = set.evicted();
        assert_eq!(u64::from(shadow), MASK);
        for _ in 0..9 {
            set.evicted();
        }
        assert!(set.refault_activates(shadow, 10, 64));
        assert!(!set.refault_activates(shadow, 9, 64));
    }
}
