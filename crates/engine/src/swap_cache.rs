//! The swap cache: maps entries and their pages to the frames that hold them.
//!
//! Owns: entry and page → frame, cut into trunks of 64 MiB with a lock each (Linux 4.11), and the
//! rule that a page gives up its hold of a slot when neither its word nor its cached frame refers
//! to it.
//! Invariants: at most one frame per entry and page. Pages that share a slot have a frame each, so
//! none ever waits for another's. `frame.entry` and the cache agree whenever the page lock is free;
//! a cached frame changes pages only under its trunk's lock. The trunk lock makes "is the word
//! still Swapped(entry)" and "is the page cached" one question, so of a page's two references
//! dropped at once exactly one sees itself as the last. A chain
//! holds frames of one trunk only, and its links change under that trunk's lock. A trunk is a hash
//! table whose chains run through the frames. Its heads are allocated when its first page is
//! written out, by a thread of the pager; a fault on the faulting thread, which may have been in
//! the allocator, finds them.
//! Not here: reading the page (`swapin`).
//! Rejected: a lock-free array of words per cluster (Linux 6.18). It wins when many CPUs share a
//! trunk, and costs memory per slot; a chain costs it per frame, and a head per [`CHAIN_SLOTS`].
//! The standard library's trees and hash maps, which allocate. One frame for all pages of a slot:
//! a fault would have to wait for a frame that another page's fault, readahead or reclaim works on,
//! and be woken by it.

use crate::frames::{Frames, LockedPage};
use crate::page_table::PageTable;
use crate::types::Pte;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicU32, LockClass, Mutex, MutexGuard};
use overspill_base::work::{self, Path, Work};
use overspill_base::{FrameNo, PageNo, Slot, zeroed};
use std::sync::OnceLock;

/// The result of caching a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// The page is cached in the frame.
    Yes,
    /// The page is cached in another frame (EEXIST).
    Exists,
    /// The page is no longer on that entry.
    Changed,
}

/// Slots that share a chain: its maximum length.
const CHAIN_SLOTS: usize = 16;

/// A link to a frame: its number plus one, or 0 for none, so that fresh heads are zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct Link(u32);

impl Link {
    fn to(frame: FrameNo) -> Self {
        Self(frame.0 + 1)
    }

    fn frame(self) -> Option<FrameNo> {
        self.0.checked_sub(1).map(FrameNo)
    }
}

/// A frame's node in a chain. Written under the lock of the frame's trunk; a move to another trunk
/// holds the page lock, which orders the two.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct Node {
    slot: AtomicU32,
    next: AtomicU32,
}

/// One trunk's chains.
#[derive(Debug)]
struct Trunk {
    /// Empty until the first page is cached.
    heads: Box<[Link]>,
    /// Their number, a power of two.
    chains: usize,
    len: usize,
}

impl Trunk {
    fn new(slots: usize) -> Self {
        let chains = slots.div_ceil(CHAIN_SLOTS).next_power_of_two();
        Self { heads: Box::default(), chains, len: 0 }
    }

    fn head(&mut self, slot: Slot) -> &mut Link {
        &mut self.heads[slot.index() & (self.chains - 1)]
    }

    /// Finds a frame of `slot` that `is_it`.
    fn find(&self, nodes: &[Node], slot: Slot, is_it: impl Fn(FrameNo) -> bool) -> Option<FrameNo> {
        work::charge(Work::CacheFind);
        let head = self.heads.get(slot.index() & (self.chains - 1));
        let mut link = head.copied().unwrap_or_default();
        while let Some(frame) = link.frame() {
            let node = &nodes[frame.index()];
            if node.slot.load(Relaxed) == slot.0 && is_it(frame) {
                return Some(frame);
            }
            link = Link(node.next.load(Relaxed));
        }
        None
    }

    fn push(&mut self, nodes: &[Node], slot: Slot, frame: FrameNo) {
        work::charge(Work::CacheChange);
        if self.heads.is_empty() {
            self.heads = zeroed::slice(self.chains);
        }
        let head = std::mem::replace(self.head(slot), Link::to(frame));
        let node = &nodes[frame.index()];
        node.slot.store(slot.0, Relaxed);
        node.next.store(head.0, Relaxed);
        self.len += 1;
    }

    /// Unlinks `frame` from the chain of `slot`; false if it is not in it.
    fn unlink(&mut self, nodes: &[Node], slot: Slot, frame: FrameNo) -> bool {
        work::charge(Work::CacheChange);
        let next = nodes[frame.index()].next.load(Relaxed);
        let mut link = *self.head(slot);
        if link == Link::to(frame) {
            *self.head(slot) = Link(next);
            self.len -= 1;
            return true;
        }
        while let Some(before) = link.frame() {
            let node = &nodes[before.index()].next;
            link = Link(node.load(Relaxed));
            if link == Link::to(frame) {
                node.store(next, Relaxed);
                self.len -= 1;
                return true;
            }
        }
        false
    }
}

type Trunks = Box<[Mutex<Trunk>]>;

/// The cache of one set of areas, from entry to frame.
#[derive(Debug)]
pub struct SwapCache {
    /// Per area, per trunk.
    areas: Box<[OnceLock<Trunks>]>,
    trunk_shift: u32,
    /// By frame.
    nodes: Box<[Node]>,
}

impl SwapCache {
    /// Makes an empty cache of up to `frames` pages, for areas of `slots` slots in trunks of `1 <<
    /// trunk_shift` slots.
    pub fn new(frames: usize, slots: &[usize], trunk_shift: u32) -> Self {
        let areas = (0..AreaNo::MAX).map(|_| OnceLock::new()).collect();
        let cache = Self { areas, trunk_shift, nodes: zeroed::slice(frames) };
        slots.iter().enumerate().for_each(|(n, &slots)| cache.add_area(AreaNo(n as u8), slots));
        cache
    }

    /// Makes trunks for a new area of `slots` slots.
    pub fn add_area(&self, area: AreaNo, slots: usize) {
        let trunk_slots = slots.min(1 << self.trunk_shift);
        let trunks = slots.div_ceil(1 << self.trunk_shift).max(1);
        let trunk = |_| Mutex::new(LockClass::SwapCache, Trunk::new(trunk_slots));
        let fresh = self.areas[area.0 as usize].set((0..trunks).map(trunk).collect()).is_ok();
        assert!(fresh, "area {} has trunks already", area.0);
    }

    fn trunk(&self, entry: SwapEntry) -> MutexGuard<'_, Trunk> {
        let trunks = self.areas[entry.area().0 as usize].get();
        trunks.expect("entries name areas that were added")
            [entry.slot().index() >> self.trunk_shift]
            .lock()
    }

    /// Returns the frame in which `page` is cached under `entry`. A hint until the frame is locked
    /// and checked again.
    pub fn lookup(&self, entry: SwapEntry, page: PageNo, frames: &Frames) -> Option<FrameNo> {
        self.lookup_where(entry, |frame| frames.page(frame) == Some(page))
    }

    /// Returns a frame cached under `entry` that `is_it`.
    pub(crate) fn lookup_where(
        &self,
        entry: SwapEntry,
        is_it: impl Fn(FrameNo) -> bool,
    ) -> Option<FrameNo> {
        self.trunk(entry).find(&self.nodes, entry.slot(), is_it)
    }

    /// Caches `entry` in a page's frame, if the page is still swapped to it.
    pub fn insert(
        &self,
        entry: SwapEntry,
        locked: &LockedPage,
        frames: &Frames,
        table: &PageTable,
    ) -> Inserted {
        let _path = work::on(Path::AddToSwapCache);
        let mut trunk = self.trunk(entry);
        if !table.is_on(locked.page(), entry) {
            return Inserted::Changed;
        }
        let page = Some(locked.page());
        if trunk.find(&self.nodes, entry.slot(), |frame| frames.page(frame) == page).is_some() {
            return Inserted::Exists;
        }
        trunk.push(&self.nodes, entry.slot(), locked.frame());
        frames.set_entry(locked, Some(entry));
        Inserted::Yes
    }

    /// Caches a freshly allocated `entry`, to which no word refers yet.
    pub fn insert_new(&self, entry: SwapEntry, locked: &LockedPage, frames: &Frames) {
        let _path = work::on(Path::AddToSwapCache);
        let mut trunk = self.trunk(entry);
        let before = trunk.find(&self.nodes, entry.slot(), |_| true);
        debug_assert_eq!(before, None, "new entry {entry:?} was cached");
        trunk.push(&self.nodes, entry.slot(), locked.frame());
        drop(trunk);
        frames.set_entry(locked, Some(entry));
    }

    /// Removes a page's frame; returns its entry if the caller has to free it, because the page's
    /// word does not refer to it.
    #[must_use = "the entry returned leaks unless freed"]
    pub fn remove(
        &self,
        locked: &LockedPage,
        frames: &Frames,
        table: &PageTable,
    ) -> Option<SwapEntry> {
        let entry = frames.entry(locked.frame())?;
        let _path = work::on(Path::RemoveMapping);
        let mut trunk = self.trunk(entry);
        let cached = trunk.unlink(&self.nodes, entry.slot(), locked.frame());
        debug_assert!(cached, "entry {entry:?} was not cached in this frame");
        frames.set_entry(locked, None);
        (!table.is_on(locked.page(), entry)).then_some(entry)
    }

    /// Drops the word's reference to a slot, replacing `old` by `new`; returns the entry if the
    /// caller has to free it, because the page is not cached either.
    ///
    /// # Errors
    /// The current word, if it is not `old`.
    pub fn drop_reference(
        &self,
        frames: &Frames,
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
        let of_page = |frame| frames.page(frame) == Some(page);
        Ok(trunk.find(&self.nodes, entry.slot(), of_page).is_none().then_some(entry))
    }

    /// Calls `act` if `page` is on `entry` and not cached: it stays so until `act` returns. False
    /// if it is not so, or if `act` returns false.
    pub(crate) fn while_uncached(
        &self,
        frames: &Frames,
        table: &PageTable,
        (page, word): (PageNo, Pte),
        act: impl FnOnce() -> bool,
    ) -> bool {
        let Pte::Swapped { entry, .. } = word else { return false };
        let trunk = self.trunk(entry);
        let of_page = |frame| frames.page(frame) == Some(page);
        table.load(page) == word
            && trunk.find(&self.nodes, entry.slot(), of_page).is_none()
            && act()
    }

    /// Returns the number of entries cached.
    pub fn len(&self) -> usize {
        self.areas.iter().filter_map(OnceLock::get).flatten().map(|trunk| trunk.lock().len).sum()
    }

    /// True if nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
