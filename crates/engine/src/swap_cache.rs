//! The swap cache: which entry's page is in memory, in which frame.
//!
//! Owns: entry → frame, cut into trunks of 64 MiB with a lock each (Linux 4.11), and the rule that a
//! slot is freed when both the page table and the cache have let go of it.
//! Invariants: at most one frame per entry; `frame.entry` and the cache agree whenever the page lock
//! is free. The trunk lock makes "is the word still Swapped(entry)" and "is the entry cached" one
//! question, so of two parties letting go exactly one sees itself as the last.
//! Not here: reading the page (`swapin`).
//! Rejected: a lock-free array of words per cluster (Linux 6.18). It wins when many CPUs share a
//! trunk; a hash map per trunk costs memory per cached page instead of per slot.

use crate::frames::Frames;
use crate::page_table::PageTable;
use crate::types::{Pte, flag};
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::sync::{LockClass, Mutex, MutexGuard};
use overspill_base::{FrameNo, PageNo};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;

/// What became of an attempt to cache a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// The frame is the entry's now.
    Yes,
    /// Another frame was there first (EEXIST).
    Exists,
    /// The page is not on that entry any more.
    Changed,
}

/// Spreads slot numbers, which nobody outside chooses, with one multiplication.
#[derive(Default)]
struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(u32::from(byte)));
    }

    fn write_u32(&mut self, slot: u32) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Trunk = HashMap<u32, FrameNo, BuildHasherDefault<SlotHasher>>;
type Trunks = Box<[Mutex<Trunk>]>;

/// Entry → frame for one set of areas.
#[derive(Debug)]
pub struct SwapCache {
    /// Per area, per trunk.
    areas: Box<[OnceLock<Trunks>]>,
    trunk_shift: u32,
}

impl SwapCache {
    /// An empty cache over areas of these many slots, in trunks of `1 << trunk_shift` slots.
    pub fn new(slots: &[usize], trunk_shift: u32) -> Self {
        let areas = (0..AreaNo::MAX).map(|_| OnceLock::new()).collect();
        let cache = Self { areas, trunk_shift };
        slots.iter().enumerate().for_each(|(n, &slots)| cache.add_area(AreaNo(n as u8), slots));
        cache
    }

    /// Makes trunks for a new area of `slots` slots.
    pub fn add_area(&self, area: AreaNo, slots: usize) {
        let trunks = slots.div_ceil(1 << self.trunk_shift).max(1);
        let trunk = |_| Mutex::new(LockClass::SwapCache, Trunk::default());
        let fresh = self.areas[area.0 as usize].set((0..trunks).map(trunk).collect()).is_ok();
        assert!(fresh, "area {} has trunks already", area.0);
    }

    fn trunk(&self, entry: SwapEntry) -> MutexGuard<'_, Trunk> {
        let trunks = self.areas[entry.area().0 as usize].get();
        trunks.expect("entries name areas that were added")
            [entry.slot().index() >> self.trunk_shift]
            .lock()
    }

    /// The frame that holds the entry's page. Lock it and ask again before trusting it.
    pub fn lookup(&self, entry: SwapEntry) -> Option<FrameNo> {
        self.trunk(entry).get(&entry.slot().0).copied()
    }

    /// Caches `entry` in `frame`, which the caller has locked, if `page` is still swapped there.
    pub fn insert(
        &self,
        entry: SwapEntry,
        frame: FrameNo,
        frames: &Frames,
        table: &PageTable,
        page: PageNo,
    ) -> Inserted {
        let mut trunk = self.trunk(entry);
        if !table.is_on(page, entry) {
            return Inserted::Changed;
        }
        match trunk.entry(entry.slot().0) {
            Entry::Occupied(_) => return Inserted::Exists,
            Entry::Vacant(place) => place.insert(frame),
        };
        frames.set_entry(frame, Some(entry));
        frames.set(frame, flag::CACHED);
        Inserted::Yes
    }

    /// Caches a freshly allocated `entry`, to which no word refers yet, in a locked `frame`.
    pub fn insert_new(&self, entry: SwapEntry, frame: FrameNo, frames: &Frames) {
        let before = self.trunk(entry).insert(entry.slot().0, frame);
        debug_assert_eq!(before, None, "new entry {entry:?} was cached");
        frames.set_entry(frame, Some(entry));
        frames.set(frame, flag::CACHED);
    }

    /// Takes the locked `frame` out; returns its entry if the caller has to free it because the
    /// word of `page` does not refer to it.
    #[must_use = "the entry returned leaks unless freed"]
    pub fn remove(
        &self,
        frame: FrameNo,
        frames: &Frames,
        table: &PageTable,
        page: PageNo,
    ) -> Option<SwapEntry> {
        let entry = frames.entry(frame)?;
        let mut trunk = self.trunk(entry);
        let before = trunk.remove(&entry.slot().0);
        debug_assert_eq!(before, Some(frame), "entry {entry:?} was not cached in this frame");
        frames.set_entry(frame, None);
        frames.clear(frame, flag::CACHED);
        (!table.is_on(page, entry)).then_some(entry)
    }

    /// Ends the word's reference to a swapped page; returns the entry if the caller has to free it
    /// because it is not cached either. `None` also if the word had changed: `Err` tells that.
    ///
    /// # Errors
    /// The word as it is, if it is not `old`.
    pub fn drop_reference(
        &self,
        table: &PageTable,
        page: PageNo,
        old: Pte,
        new: Pte,
    ) -> Result<Option<SwapEntry>, Pte> {
        let Pte::Swapped { entry, .. } = old else { return Err(old) };
        let trunk = self.trunk(entry);
        if !table.replace(page, old, new) {
            return Err(table.load(page));
        }
        Ok((!trunk.contains_key(&entry.slot().0)).then_some(entry))
    }

    /// Moves the reference of an uncached entry from one page's word to another's, which is empty.
    /// False if it has become cached, or the word changed.
    pub fn move_reference(&self, table: &PageTable, from: PageNo, to: PageNo, word: Pte) -> bool {
        let Pte::Swapped { entry, .. } = word else { return false };
        let trunk = self.trunk(entry);
        !trunk.contains_key(&entry.slot().0)
            && table.replace(to, Pte::Empty, word)
            && table.replace(from, word, Pte::Empty)
    }

    /// Entries cached.
    pub fn len(&self) -> usize {
        self.areas.iter().filter_map(OnceLock::get).flatten().map(|trunk| trunk.lock().len()).sum()
    }

    /// True if nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
