//! Model-checked interleavings of the page lock and the swap cache. Run with
//! `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize};
use overspill_base::{FrameNo, PageNo, Slot};
use overspill_engine::PageTable;
use overspill_engine::frames::{Frames, LockedPage};
use overspill_engine::swap_cache::{Inserted, SwapCache};
use overspill_engine::types::Pte;

const PAGE: PageNo = PageNo(0);

fn model(test: impl Fn() + Sync + Send + 'static) {
    // Two preemptions reach every pair of steps that can race here.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(test);
}

fn table() -> PageTable {
    PageTable::new(Table::on_heap(1, || AtomicU64::new(0)))
}

struct Owned {
    frames: Frames,
    value: UnsafeCell<u32>,
}

// SAFETY: `value` is accessed only under the page lock; loom reports any violation.
unsafe impl Sync for Owned {}
// SAFETY: as above.
unsafe impl Send for Owned {}

impl Owned {
    fn add(&self, frame: FrameNo) {
        let locked = self.frames.lock(frame).unwrap();
        // SAFETY: the page lock is held.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.frames.unlock(locked);
    }
}

#[test]
fn the_page_lock_excludes_and_loses_no_sleeper() {
    model(|| {
        let owned = Arc::new(Owned { frames: Frames::new(1), value: UnsafeCell::new(0) });
        let locked = owned.frames.alloc(PAGE).unwrap();
        let other = {
            let (owned, frame) = (owned.clone(), locked.frame());
            loom::thread::spawn(move || owned.add(frame))
        };
        // The lock is held since `alloc`, so the other thread may have to sleep.
        // SAFETY: the page lock is held.
        owned.value.with_mut(|value| unsafe { *value += 1 });
        owned.frames.unlock(locked);
        other.join().unwrap();
        // SAFETY: the only thread left.
        assert_eq!(owned.value.with(|value| unsafe { *value }), 2);
    });
}

/// A faulting thread that finds the page locked leaves a mark. Either the unlocking thread sees it,
/// or the faulting one sees the page unlocked and starts over: no wake is lost.
#[test]
fn a_faulter_that_finds_the_page_locked_is_not_forgotten() {
    model(|| {
        let state = Arc::new((Frames::new(1), table()));
        let locked = state.0.alloc(PAGE).unwrap();
        let frame = locked.frame();
        assert!(state.1.replace(PAGE, Pte::Empty, Pte::Resident(frame)));
        let faulter = {
            let state = state.clone();
            loom::thread::spawn(move || {
                let (frames, table) = &*state;
                table.mark_faulted(PAGE, Pte::Resident(frame)) && frames.is_locked_now(frame)
            })
        };
        let (frames, table) = &*state;
        frames.unlock(locked);
        let woken = table.take_faulted(PAGE);
        let sleeps = faulter.join().unwrap();
        assert!(!sleeps || woken, "the faulter sleeps and nobody wakes it");
    });
}

/// One thread caches an entry and removes it again, the other drops the page's reference to it.
/// Exactly one of them frees the slot.
#[test]
fn the_last_reference_to_a_slot_frees_it_once() {
    model(|| {
        let entry = SwapEntry::new(AreaNo(0), Slot(3));
        let swapped = Pte::Swapped { entry, shadow: 0 };
        let state = Arc::new((Frames::new(1), table(), SwapCache::new(1, &[16], 4)));
        assert!(state.1.replace(PAGE, Pte::Empty, swapped));
        let discarder = {
            let state = state.clone();
            loom::thread::spawn(move || {
                let (frames, table, cache) = &*state;
                let freed = cache.drop_reference(frames, table, PAGE, swapped, Pte::Empty).unwrap();
                usize::from(freed.is_some())
            })
        };
        let (frames, table, cache) = &*state;
        let locked = frames.alloc(PAGE).unwrap();
        let freed_here = match cache.insert(entry, &locked, frames, table) {
            Inserted::Yes => usize::from(cache.remove(&locked, frames, table).is_some()),
            Inserted::Exists => panic!("nobody else inserts"),
            Inserted::Changed => 0,
        };
        frames.free(locked);
        assert_eq!(freed_here + discarder.join().unwrap(), 1);
    });
}

/// Of two threads that cache the same entry one wins, and a lookup sees the winner's frame
/// complete.
#[test]
fn one_of_two_inserts_wins_and_lookups_see_it_whole() {
    model(|| {
        let entry = SwapEntry::new(AreaNo(0), Slot(3));
        let state = Arc::new((Frames::new(2), table(), SwapCache::new(2, &[16], 4)));
        assert!(state.1.replace(PAGE, Pte::Empty, Pte::Swapped { entry, shadow: 0 }));
        let insert = move |state: &(Frames, PageTable, SwapCache)| {
            let locked = state.0.alloc(PAGE).unwrap();
            let won = state.2.insert(entry, &locked, &state.0, &state.1) == Inserted::Yes;
            match won {
                true => state.0.unlock(locked),
                false => state.0.free(locked),
            }
            won
        };
        let other = {
            let state = state.clone();
            loom::thread::spawn(move || insert(&state))
        };
        let mine = insert(&state);
        if let Some(frame) = state.2.lookup(entry, PAGE, &state.0) {
            assert_eq!(state.0.page(frame), Some(PAGE));
        }
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs);
        assert!(state.2.lookup(entry, PAGE, &state.0).is_some());
    });
}

/// A page on a slot, as a fault and swapoff see it. A successful insertion into the swap cache
/// counts as a read.
struct Paged {
    frames: Frames,
    table: PageTable,
    cache: SwapCache,
    entry: SwapEntry,
    leaving: AtomicBool,
    reads: AtomicUsize,
    freed: AtomicUsize,
}

impl Paged {
    fn new() -> Self {
        let entry = SwapEntry::new(AreaNo(0), Slot(3));
        let table = table();
        assert!(table.replace(PAGE, Pte::Empty, Pte::Swapped { entry, shadow: 0 }));
        Self {
            frames: Frames::new(2),
            table,
            cache: SwapCache::new(2, &[16], 4),
            entry,
            leaving: AtomicBool::new(false),
            reads: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
        }
    }

    /// Reads the page if it is swapped out; the thread that maps it frees its copy if the area is
    /// leaving.
    fn bring_in(&self) {
        let locked = self.frames.alloc(PAGE).unwrap();
        match self.cache.insert(self.entry, &locked, &self.frames, &self.table) {
            Inserted::Yes => {
                self.reads.fetch_add(1, Relaxed);
                let word = Pte::Swapped { entry: self.entry, shadow: 0 };
                assert!(self.table.replace(PAGE, word, Pte::Resident(locked.frame())));
                if self.leaving.load(Acquire) {
                    self.reclaim_copy(&locked);
                }
                self.frames.unlock(locked);
            }
            Inserted::Exists | Inserted::Changed => self.frames.free(locked),
        }
    }

    fn reclaim_copy(&self, locked: &LockedPage) {
        let freed = self.cache.remove(locked, &self.frames, &self.table);
        self.freed.fetch_add(usize::from(freed.is_some()), Relaxed);
    }

    /// Runs a round of swapoff: frees the copy of a cached, idle page, and reads a swapped one.
    fn round(&self) {
        let Some(frame) = self.cache.lookup(self.entry, PAGE, &self.frames) else {
            return self.bring_in();
        };
        let Ok(locked) = self.frames.try_lock(frame) else { return };
        if self.cache.lookup(self.entry, PAGE, &self.frames) == Some(frame) {
            self.reclaim_copy(&locked);
        }
        self.frames.unlock(locked);
    }
}

/// A fault during swapoff: the page is read once, its slot is freed once, and an undisturbed round
/// leaves no page on the area.
#[test]
fn a_fault_during_swapoff_reads_once_and_frees_once() {
    model(|| {
        let paged = Arc::new(Paged::new());
        let faulter = {
            let paged = paged.clone();
            loom::thread::spawn(move || paged.bring_in())
        };
        paged.leaving.store(true, Release);
        paged.round();
        faulter.join().unwrap();
        paged.round();
        assert!(matches!(paged.table.load(PAGE), Pte::Resident(_)));
        assert_eq!(paged.cache.lookup(paged.entry, PAGE, &paged.frames), None);
        assert_eq!((paged.reads.load(Relaxed), paged.freed.load(Relaxed)), (1, 1));
    });
}
