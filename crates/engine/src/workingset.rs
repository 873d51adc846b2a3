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

/// The eviction clock of one engine.
#[derive(Debug)]
pub(crate) struct Workingset {
    clock: AtomicU64,
    shift: u32,
}

impl Workingset {
    /// For up to `frames` pages in memory.
    pub(crate) fn new(frames: usize) -> Self {
        let bits = (frames as u64).ilog2() + 3;
        let shift = bits.saturating_sub(SHADOW_BITS);
        Self { clock: AtomicU64::new(0), shift }
    }

    /// Advances the clock for an eviction and returns the page's shadow.
    pub(crate) fn evicted(&self) -> u32 {
        ((self.clock.fetch_add(1, Relaxed) >> self.shift) & MASK) as u32
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
        self.age(shadow) <= (active as u64).max(frames / 8)
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
