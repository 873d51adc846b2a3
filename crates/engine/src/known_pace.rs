//! What the workers have found out of a device's pace, and how much is asked of it for that.
//!
//! Owns: the latency and the two rates of one area's device, hints that all workers share.
//! Invariants: until a device has been measured it is taken for a near one.
//! Orderings: relaxed; hints. They are rarely written, as every CPU reads them.
//! Not here: measuring ([`Pace`]); who keeps to it (`readahead`, the queues to devices).

use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use overspill_device::IoOp;
use overspill_device::pace::{Pace, window_pages};

/// Pages read ahead at a time at least, so that the thread that does it is not woken too often: 64
/// are a tenth slower on a file.
const AHEAD_PAGES: usize = 256;
/// Latency from which more is under way than queues have memory for as a rule, which lies beside
/// the limit: on a nearer device it would bring little.
const FAR_NS: u64 = 1_000_000;

/// What is known of one device; 0 where nothing is.
#[derive(Debug, Default)]
pub(crate) struct KnownPace {
    /// How long a page takes.
    latency_ns: AtomicU64,
    /// How many come in a second at most, and how many go.
    read_per_s: AtomicU64,
    written_per_s: AtomicU64,
}

impl KnownPace {
    /// Takes over the latency that a worker has found.
    pub(crate) fn note_latency(&self, found: &Pace) {
        found.latency_ns().into_iter().for_each(|latency_ns| note(&self.latency_ns, latency_ns));
    }

    /// Takes over the rate that a worker has found which asks for all that the device can do.
    pub(crate) fn note_rate(&self, op: IoOp, found: &Pace) {
        let known = match op {
            IoOp::Read => &self.read_per_s,
            IoOp::Write => &self.written_per_s,
        };
        note(known, found.pages_per_s());
    }

    /// Returns the pages that should be under way, so that a device far away is never idle; 0 for a
    /// nearer one.
    pub(crate) fn far_pages(&self) -> usize {
        let pages_per_s = self.read_per_s.load(Relaxed).max(self.written_per_s.load(Relaxed));
        match self.latency_ns.load(Relaxed) {
            ..FAR_NS => 0,
            latency_ns => window_pages(latency_ns, pages_per_s),
        }
    }

    /// Returns the pages that should be read ahead at a time of a device that does not complete
    /// requests when they are submitted.
    pub(crate) fn ahead_pages(&self) -> usize {
        self.far_pages().max(AHEAD_PAGES)
    }
}

/// Stores a figure that has changed by an eighth.
fn note(known: &AtomicU64, found: u64) {
    let before = known.load(Relaxed);
    if before.abs_diff(found) > before / 8 {
        known.store(found, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use overspill_base::Slot;

    /// The pace of a device as one worker finds it: requests of 64 pages, `latency_ns` each, so
    /// many under way.
    fn found(latency_ns: u64, under_way: u32) -> Pace {
        let mut pace = Pace::unknown(64);
        for round in 0..16u64 {
            let now_ns = round * 2 * latency_ns;
            pace.begin(Slot(0), now_ns);
            pace.end(Slot(0), 64, now_ns + latency_ns);
        }
        let now_ns = 1 << 40;
        (0..under_way).for_each(|slot| pace.begin(Slot(slot), now_ns));
        (0..under_way).for_each(|slot| pace.end(Slot(slot), 64, now_ns + latency_ns));
        pace
    }

    fn known(latency_ns: u64, under_way: u32) -> KnownPace {
        let (known, found) = (KnownPace::default(), found(latency_ns, under_way));
        known.note_latency(&found);
        known.note_rate(IoOp::Read, &found);
        known
    }

    #[test]
    fn what_is_asked_of_a_device_far_away_keeps_it_busy() {
        let far = known(5_000_000, 20);
        assert_eq!((far.far_pages(), far.ahead_pages()), (2 * 20 * 64, 2 * 20 * 64));
    }

    #[test]
    fn a_near_or_unknown_device_is_asked_for_as_much_as_ever() {
        for known in [known(900_000, 60), KnownPace::default()] {
            assert_eq!((known.far_pages(), known.ahead_pages()), (0, AHEAD_PAGES));
        }
    }

    #[test]
    fn what_has_hardly_changed_is_not_written() {
        let known = known(5_000_000, 20);
        let before = known.latency_ns.load(Relaxed);
        known.note_latency(&found(5_500_000, 1));
        assert_eq!(known.latency_ns.load(Relaxed), before);
        known.note_latency(&found(6_000_000, 1));
        assert!(known.latency_ns.load(Relaxed) > before);
    }
}
