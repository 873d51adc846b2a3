//! Refault distances: by how many pages the limit was too small for each page that came back.
//!
//! Owns: which pages are out, without a frame, and in which order they were evicted. The distance
//! of a page is the most pages that were out at a time and were evicted after it: with so much more
//! memory, and one, a cache that evicts in this order would have kept it (Mattson et al., 1970). A
//! distribution of them says how often pages would come back with any larger limit.
//! Invariants: a page counts if its hash is below a bar, each for as many as the bar leaves out
//! (SHARDS, FAST '15). The bar falls to half whenever too many pages that count are out. Memory is
//! allocated at the beginning only: pages are evicted where none may be.
//! Not here: what is done about them. The working set's own distance (`workingset`) decides that;
//! it costs no lock, and counts a page that goes out often as many.
//! Rejected: the working set's clock for this: a small hot set overstates all distances. Forgetting
//! pages behind one that have been given up since: what made it leave has been there.

use crate::highest_since::HighestSince;
use overspill_base::PageNo;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicU64, LockClass, Mutex};
use std::collections::HashMap;

/// Most pages that count and are out.
const SAMPLES: usize = 2048;
/// Evictions between times when positions are given anew.
const POSITIONS: usize = 4 * SAMPLES;
const HASH_BITS: u32 = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Distances {
    is_on: bool,
    /// Pages whose hash is below it count.
    bar: AtomicU64,
    out: Mutex<Out>,
}

/// Pages that count and are out.
#[derive(Debug)]
struct Out {
    /// For how many pages each counts, as a power of two.
    weight_shift: u32,
    positions: HashMap<PageNo, u32>,
    /// By position.
    pages: Box<[Option<PageNo>]>,
    /// At each position, how many pages are out that were evicted later.
    later: HighestSince,
    next: usize,
}

/// A page that has come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refault {
    /// So many more frames would not have kept it, and one more would have.
    pub(crate) distance_pages: u64,
    /// For how many pages it counts.
    pub(crate) weight: u64,
}

impl Distances {
    /// With `is_on` false nothing is noted.
    pub(crate) fn new(is_on: bool) -> Self {
        let out = Out {
            weight_shift: 0,
            positions: HashMap::with_capacity(2 * SAMPLES),
            pages: vec![None; POSITIONS].into(),
            later: HighestSince::new(POSITIONS),
            next: 0,
        };
        Self { is_on, bar: AtomicU64::new(bar(0)), out: Mutex::new(LockClass::Distances, out) }
    }

    #[inline]
    pub(crate) fn counts(&self, page: PageNo) -> bool {
        self.is_on && hash(page) < self.bar.load(Relaxed)
    }

    /// Notes that a page leaves memory; returns how many are out, if it counted until now.
    pub(crate) fn evicted(&self, page: PageNo) -> Option<u64> {
        if !self.counts(page) {
            return None;
        }
        let mut out = self.out.lock();
        out.remove(page);
        while out.next == POSITIONS || out.positions.len() >= SAMPLES {
            out.close_ranks();
            self.bar.store(bar(out.weight_shift), Relaxed);
        }
        // The bar may have fallen, here or while another thread had the lock.
        if self.counts(page) {
            out.insert(page);
        }
        Some((out.positions.len() as u64) << out.weight_shift)
    }

    /// Notes that a page comes back; returns from where, if it counts.
    pub(crate) fn came_back(&self, page: PageNo) -> Option<Refault> {
        if !self.counts(page) {
            return None;
        }
        let mut out = self.out.lock();
        let distance = out.remove(page)? as u64;
        let weight = 1 << out.weight_shift;
        Some(Refault { distance_pages: distance * weight, weight })
    }

    /// Notes that a page is not out any more, or is not wanted.
    pub(crate) fn forget(&self, page: PageNo) {
        if self.counts(page) {
            self.out.lock().remove(page);
        }
    }
}

impl Out {
    fn insert(&mut self, page: PageNo) {
        let position = self.next;
        self.next += 1;
        self.later.change_before(position, true);
        self.positions.insert(page, position as u32);
        self.pages[position] = Some(page);
    }

    /// Returns the most that were evicted later and out at a time.
    fn remove(&mut self, page: PageNo) -> Option<usize> {
        let position = self.positions.remove(&page)? as usize;
        self.pages[position] = None;
        let most = self.later.highest(position);
        self.later.change_before(position, false);
        Some(most)
    }

    /// Gives those that are out the first positions. If they are too many, half of them do not
    /// count any more.
    fn close_ranks(&mut self) {
        let is_half = self.positions.len() >= SAMPLES;
        self.weight_shift += u32::from(is_half);
        let (bar, positions) = (bar(self.weight_shift), &mut self.positions);
        let pages = &mut self.pages;
        self.next = self.later.keep(is_half, |from, to| {
            let Some(page) = pages[from].take() else { return false };
            if hash(page) >= bar {
                positions.remove(&page);
                return false;
            }
            pages[to] = Some(page);
            positions.insert(page, to as u32);
            true
        });
    }
}

fn bar(weight_shift: u32) -> u64 {
    1 << (HASH_BITS - weight_shift.min(HASH_BITS))
}

/// Spreads neighbours and strides alike (the finalizer of MurmurHash3).
fn hash(page: PageNo) -> u64 {
    let mut h = page.0;
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    u64::from(h ^ (h >> 16))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_as_far_as_what_was_evicted_later() {
        let set = Distances::new(true);
        let counts: Vec<_> = (0..4).map(|page| set.evicted(PageNo(page))).collect();
        assert_eq!(counts, [1, 2, 3, 4].map(Some));
        let back = |page| set.came_back(PageNo(page)).map(|refault| refault.distance_pages);
        assert_eq!(back(3), Some(0));
        // What has come back or was given up since was there nevertheless.
        set.forget(PageNo(1));
        assert_eq!((back(2), back(0)), (Some(1), Some(3)));
        assert_eq!((back(1), back(7)), (None, None));
        assert_eq!(set.evicted(PageNo(9)), Some(1));
    }

    /// A loop over more pages than there are frames: each refault is the same distance away.
    #[test]
    fn samples_stand_for_all() {
        const PAGES: u32 = 300_000;
        const FRAMES: u32 = 100_000;
        let set = Distances::new(true);
        let (mut weights, mut most_out) = (0, 0);
        for touched in 0..3 * PAGES {
            let back = set.came_back(PageNo(touched % PAGES));
            if let Some(Refault { distance_pages, weight }) = back {
                let expected = f64::from(PAGES - FRAMES);
                let error = distance_pages as f64 / expected - 1.0;
                assert!(error.abs() < 0.1, "{distance_pages} of {expected}");
                weights += weight;
            }
            if touched >= FRAMES {
                let out = set.evicted(PageNo((touched - FRAMES) % PAGES));
                most_out = most_out.max(out.unwrap_or(0));
            }
        }
        let refaults = weights as f64 / f64::from(2 * PAGES);
        assert!((0.9..1.1).contains(&refaults), "{refaults} of all refaults");
        let out = most_out as f64 / f64::from(PAGES - FRAMES);
        assert!((0.9..1.15).contains(&out), "{out} of what was out");
    }
}
