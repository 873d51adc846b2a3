//! The limit of a run, which can be changed while it goes on.
//!
//! Owns: how many frames the engine may have, and how many it has.
//! Invariant: it has more than it may only after the limit was lowered, until it has given back
//! what is too much.
//! Not here: reclaiming that (`engine`).

use overspill_area::MemberNo;
use overspill_base::sync::AtomicUsize;
use overspill_base::sync::Ordering::Relaxed;
use overspill_engine::{Asked, FrameBudget, RefaultCounts};

/// All counters are relaxed: a frame is a count, and no memory goes with it.
#[derive(Debug)]
pub(crate) struct Limit {
    frames: AtomicUsize,
    leased: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(frames: usize) -> Self {
        Self { frames: AtomicUsize::new(frames), leased: AtomicUsize::new(0) }
    }

    pub(crate) fn set(&self, frames: usize) {
        self.frames.store(frames, Relaxed);
    }

    /// Frames that the engine may have and has not.
    pub(crate) fn unleased(&self) -> usize {
        self.limit().saturating_sub(self.leased.load(Relaxed))
    }
}

/// Of one engine, which is asked by nobody but the limit.
impl FrameBudget for Limit {
    fn lease(&self, want: usize, most: usize) -> usize {
        // The engine leases and gives back under a lock of its own.
        let more = self.unleased().min(want).min(most);
        self.leased.fetch_add(more, Relaxed);
        more
    }

    fn limit(&self) -> usize {
        self.frames.load(Relaxed)
    }

    fn give_back(&self, most: usize) -> usize {
        self.leased.fetch_sub(most, Relaxed);
        most
    }

    fn asked(&self) -> usize {
        self.leased.load(Relaxed).saturating_sub(self.limit())
    }

    /// It is asked again: nobody else could give anything.
    fn decline(&self) {}

    fn ask(&self, _: usize, _: &RefaultCounts, _: bool) -> Asked {
        Asked::Nobody
    }

    /// The engine is never forked.
    fn become_member(&self, _: MemberNo, _: usize, _: usize) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_leased_is_within_the_limit_until_that_falls() {
        let limit = Limit::new(100);
        assert_eq!(limit.lease(64, 1000), 64);
        assert_eq!(limit.lease(64, 1000), 36);
        assert_eq!(limit.lease(64, 1000), 0);
        limit.set(30);
        assert_eq!((limit.limit(), limit.asked()), (30, 70));
        assert_eq!(limit.give_back(70), 70);
        assert_eq!((limit.asked(), limit.lease(1, 1)), (0, 0));
        limit.set(40);
        assert_eq!(limit.lease(64, 5), 5);
    }
}
