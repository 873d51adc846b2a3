//! One word per slot: the number of its holders, whether only the swap cache has it, and a user's
//! tag. Holders are pages.
//!
//! Owns: the packing, and which lock an access takes. The tag is 51 opaque bits; the engine keeps
//! the page's checksum there. It is cleared when the slot becomes free, so that no page is checked
//! against its slot's previous user.
//!
//! ```text
//! bits 0..12   count        0 free · 1..=4094 holders · 4095 reserved
//! bit  12      CACHE_ONLY   its page is mapped: the slot is a copy that may be reclaimed
//! bits 13..64  tag          0 none
//!
//! free --claim--> 1 --hold--> n --drop_hold--> n-1 ... 1 --drop_hold--> free (all bits cleared)
//! free --reserve--> reserved --unreserve--> free
//! ```
//!
//! Orderings: `drop_hold` releases and `claim` acquires the word, so what the last holder did with
//! a slot happens-before its reuse. The other bits are written and read by holders only.
//!
//! A word is an atomic, so cluster lists need no lock for it. The scanning allocator takes the lock
//! that Linux took: the area's before 4.11, the cluster's after.

use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed};
use overspill_base::sync::{Arc, AtomicU64, LockClass, Mutex, peek};

const COUNT_MASK: u64 = (1 << 12) - 1;
const RESERVED: u64 = COUNT_MASK;
const CACHE_ONLY: u64 = 1 << 12;
const TAG_SHIFT: u32 = 13;
/// Bits of a tag.
pub const TAG_BITS: u32 = 64 - TAG_SHIFT;
/// Maximum number of holders of one slot.
pub(crate) const HOLDERS_MAX: u64 = RESERVED - 1;

/// Which lock protects a slot's word.
#[derive(Debug)]
pub(crate) enum WordLocks {
    /// None: the word is an atomic.
    Atomic,
    /// A lock per cluster of `1 << shift` slots.
    Clusters { locks: Vec<Mutex<()>>, shift: u32 },
    /// The area's own.
    Area(Arc<dyn AreaLock>),
}

/// The lock of an area that protects all its slots.
pub(crate) trait AreaLock: Send + Sync + std::fmt::Debug {
    /// Calls `act` with the lock held.
    fn under(&self, act: &mut dyn FnMut());
}

impl WordLocks {
    pub(crate) fn clusters(count: usize, cluster_slots: u32) -> Self {
        let locks = (0..count).map(|_| Mutex::new(LockClass::Cluster, ())).collect();
        Self::Clusters { locks, shift: cluster_slots.ilog2() }
    }
}

/// A slot has more holders than its word can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a swap slot is shared by more than {} pages", HOLDERS_MAX)]
pub struct TooManyHolders;

/// The words of one area's slots. Clones share them.
#[derive(Clone, Debug)]
pub struct SlotMap {
    words: Table<AtomicU64>,
    locks: Arc<WordLocks>,
}

impl SlotMap {
    pub(crate) fn new(words: Table<AtomicU64>, locks: WordLocks) -> Self {
        Self { words, locks: Arc::new(locks) }
    }

    /// Returns the number of slots, reserved ones included.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True for a map without slots.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Calls `act` under the lock of a slot's word.
    #[inline]
    fn locked<R>(&self, slot: Slot, act: impl Fn() -> R) -> R {
        let WordLocks::Area(area) = &*self.locks else { return self.within_area(slot, act) };
        let mut result = None;
        area.under(&mut || result = Some(act()));
        result.expect("`under` has called it")
    }

    /// As [`locked`](Self::locked), with the area's lock, if there is one, already held.
    #[inline]
    fn within_area<R>(&self, slot: Slot, act: impl FnOnce() -> R) -> R {
        match &*self.locks {
            WordLocks::Atomic | WordLocks::Area(_) => act(),
            WordLocks::Clusters { locks, shift } => {
                let _word = locks[slot.index() >> shift].lock();
                act()
            }
        }
    }

    /// Returns the number of holders of `slot`: 0 if it is free, `None` if it is reserved.
    pub fn holders(&self, slot: Slot) -> Option<u64> {
        match self.words[slot.index()].load(Acquire) & COUNT_MASK {
            RESERVED => None,
            count => Some(count),
        }
    }

    /// True unless the slot is free.
    #[inline]
    pub(crate) fn in_use(&self, slot: Slot) -> bool {
        peek(&self.words[slot.index()]) != 0
    }

    /// Takes a free slot. False if it is not free.
    #[inline]
    pub(crate) fn claim(&self, slot: Slot) -> bool {
        let word = &self.words[slot.index()];
        self.within_area(slot, || word.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
    }

    /// Adds a holder to a slot the caller holds. A mark as a copy stays: it counts again when there
    /// is one holder.
    pub(crate) fn hold(&self, slot: Slot) -> Result<(), TooManyHolders> {
        let word = &self.words[slot.index()];
        let full = |w: u64| (w & COUNT_MASK < HOLDERS_MAX).then_some(w + 1);
        word.fetch_update(AcqRel, Relaxed, full).map(drop).map_err(|_| TooManyHolders)
    }

    /// Drops one hold; true if it was the last and the slot is free now. Calls `last` before the
    /// slot becomes free, and again if its word changed meanwhile.
    ///
    /// # Panics
    /// If it has no holder: the slot would be freed twice.
    pub(crate) fn drop_hold(&self, slot: Slot, last: impl Fn(Slot)) -> bool {
        let word = &self.words[slot.index()];
        let fewer = |w: u64| match w & COUNT_MASK {
            0 | RESERVED => None,
            1 => {
                last(slot);
                Some(0)
            }
            _ => Some(w - 1),
        };
        // Acquire: the last holder sees what the other holders did with the slot.
        let before = self.within_area(slot, || word.fetch_update(AcqRel, Acquire, fewer));
        let before = before.unwrap_or_else(|w| panic!("slot {slot} freed, but its word is {w:#x}"));
        before & COUNT_MASK == 1
    }

    pub(crate) fn reserve(&self, slot: Slot) {
        self.words[slot.index()].store(RESERVED, Relaxed);
    }

    /// Frees a slot that was reserved while its cluster was discarded.
    pub(crate) fn unreserve(&self, slot: Slot) {
        self.words[slot.index()].store(0, Relaxed);
    }

    /// Marks a slot that the caller holds as only a copy of a mapped page, or not.
    pub fn set_cache_only(&self, slot: Slot, cache_only: bool) {
        let word = &self.words[slot.index()];
        self.locked(slot, || match cache_only {
            true => word.fetch_or(CACHE_ONLY, Relaxed),
            false => word.fetch_and(!CACHE_ONLY, Relaxed),
        });
    }

    /// True if reclaiming the copy would free the slot. A hint.
    #[inline]
    pub(crate) fn is_cache_only(&self, slot: Slot) -> bool {
        peek(&self.words[slot.index()]) & (CACHE_ONLY | COUNT_MASK) == CACHE_ONLY | 1
    }

    /// Returns the tag of a slot the caller holds; 0 if none was set since it was allocated.
    #[inline]
    pub fn tag(&self, slot: Slot) -> u64 {
        self.locked(slot, || self.words[slot.index()].load(Relaxed) >> TAG_SHIFT)
    }

    /// Sets the tag, of [`TAG_BITS`] bits, of a slot the caller holds.
    pub fn set_tag(&self, slot: Slot, tag: u64) {
        let word = &self.words[slot.index()];
        let tagged = |w: u64| Some((w & ((1 << TAG_SHIFT) - 1)) | tag << TAG_SHIFT);
        let set = self.locked(slot, || word.fetch_update(AcqRel, Relaxed, tagged));
        set.expect("the closure never refuses");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn map() -> SlotMap {
        SlotMap::new(Table::on_heap(4, || AtomicU64::new(0)), WordLocks::Atomic)
    }

    #[test]
    fn a_slot_is_free_again_after_its_last_holder() {
        let map = map();
        assert!(map.claim(Slot(1)) && !map.claim(Slot(1)));
        map.hold(Slot(1)).unwrap();
        map.set_tag(Slot(1), 0xabc);
        assert!(!map.drop_hold(Slot(1), |_| ()));
        assert_eq!((map.holders(Slot(1)), map.tag(Slot(1))), (Some(1), 0xabc));
        assert!(map.drop_hold(Slot(1), |_| ()));
        assert_eq!((map.holders(Slot(1)), map.tag(Slot(1))), (Some(0), 0));
    }

    #[test]
    fn a_copy_shared_with_another_page_cannot_be_given_up() {
        let map = map();
        map.claim(Slot(0));
        map.set_tag(Slot(0), (1 << TAG_BITS) - 1);
        map.set_cache_only(Slot(0), true);
        assert!(map.is_cache_only(Slot(0)));
        map.hold(Slot(0)).unwrap();
        assert!(!map.is_cache_only(Slot(0)));
        assert_eq!(map.tag(Slot(0)), (1 << TAG_BITS) - 1);
    }

    #[test]
    fn counts_stop_short_of_the_reserved_value_and_come_back() {
        let map = map();
        map.claim(Slot(0));
        for _ in 1..HOLDERS_MAX {
            map.hold(Slot(0)).unwrap();
        }
        assert_eq!(map.hold(Slot(0)), Err(TooManyHolders));
        assert_eq!(map.holders(Slot(0)), Some(HOLDERS_MAX));
        let last =
            (0..HOLDERS_MAX).map(|_| map.drop_hold(Slot(0), |_| ())).filter(|&last| last).count();
        assert_eq!(last, 1);
    }

    #[test]
    #[should_panic(expected = "freed")]
    fn freeing_twice_is_a_bug() {
        let map = map();
        map.claim(Slot(2));
        map.drop_hold(Slot(2), |_| ());
        map.drop_hold(Slot(2), |_| ());
    }
}
