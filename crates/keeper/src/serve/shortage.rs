//! Whether memory has run out.
//!
//! Owns: since when no page can leave.
//! Invariant: it has run out only when for a while no guest got a page. What cannot leave now may
//! soon: its guest is about to be attached to, or is in the middle of something.
//! Not here: what follows from it (`serve`).

use overspill_base::clock;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use std::time::Duration;

/// How long that may last without anything being done about it.
const MOMENT: Duration = Duration::from_millis(50);
/// How long that may last; longer while there are forked children that are not attached to, and
/// where one thread plays all that could do something about it.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });
const PATIENCE_WITH_CHILDREN: Duration = PATIENCE.saturating_mul(10);

/// A time, 0 if there is none. Relaxed: no memory goes with it.
#[derive(Debug, Default)]
pub(crate) struct Shortage(AtomicU64);

impl Shortage {
    /// True if none could be had for a moment.
    pub(crate) fn is_on(&self) -> bool {
        match self.0.load(Relaxed) {
            0 => false,
            since_ns => clock::now_ns().saturating_sub(since_ns) > MOMENT.as_nanos() as u64,
        }
    }

    /// A page was had.
    pub(crate) fn is_over(&self) {
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    /// None could be had; true if that is for good.
    pub(crate) fn lasts(&self, has_children: bool) -> bool {
        let patience = if has_children { PATIENCE_WITH_CHILDREN } else { PATIENCE };
        let now_ns = clock::now_ns();
        match self.0.compare_exchange(0, now_ns, Relaxed, Relaxed) {
            Ok(_) => false,
            Err(since_ns) => now_ns.saturating_sub(since_ns) > patience.as_nanos() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_only_while_nobody_gets_a_page() {
        let shortage = Shortage::default();
        assert!(!shortage.lasts(false) && !shortage.lasts(false));
        let long_ns = 2 * PATIENCE.as_nanos() as u64;
        shortage.0.store(clock::now_ns().saturating_sub(long_ns).max(1), Relaxed);
        assert!(shortage.lasts(false) && !shortage.lasts(true));
        shortage.is_over();
        assert!(!shortage.lasts(false));
    }
}
