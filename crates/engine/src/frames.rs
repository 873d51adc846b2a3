//! Frames: the free list with its watermarks, and the page lock.
//!
//! Owns: [`Frame`]s, which of them are free, and who sleeps for one's lock.
//! Invariants: a free frame has no page, no entry, no staging page and is locked by nobody but its
//! next owner; `alloc` hands frames out locked.
//! Not here: what a frame's page goes through (`fault`, `reclaim`).
//!
//! Orderings: `unlock` releases and `try_lock` acquires the flags word, so an owner sees everything
//! the previous one did to the frame. Sleeping: a sleeper sets WAITERS with the wait-table lock held
//! and re-checks; the unlocker that finds WAITERS takes that lock before it notifies, so the
//! notification cannot fall between check and sleep.

use crate::types::{Frame, NO_PAGE, flag};
use overspill_area::SwapEntry;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Condvar, LockClass, Mutex, assert_no_lock_held,
};
use overspill_base::{FrameNo, PageNo};
use std::time::Duration;

/// Wait queues shared by all frames, as Linux's page wait table.
const WAIT_QUEUES: usize = if cfg!(loom) { 1 } else { 64 };

/// Free frames below which things happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Readahead and other luxuries stop.
    pub min: usize,
    /// The reclaim thread starts.
    pub low: usize,
    /// The reclaim thread stops.
    pub high: usize,
}

impl Watermarks {
    /// For `frames` frames: background reclaim starts at 1/64 free and goes on to 1/32, within
    /// bounds that keep a batch in flight on the smallest limits.
    pub fn of(frames: usize) -> Self {
        let low = (frames / 64).clamp(1, 1024);
        Self { min: low.div_ceil(4), low, high: (low * 2).min(frames) }
    }
}

/// All frames of one engine.
#[derive(Debug)]
pub struct Frames {
    frames: Vec<Frame>,
    free: Mutex<Vec<FrameNo>>,
    free_count: AtomicUsize,
    unevictable_count: AtomicUsize,
    waits: Vec<(Mutex<()>, Condvar)>,
}

impl Frames {
    /// `count` free frames.
    pub fn new(count: usize) -> Self {
        let frame = || Frame {
            flags: AtomicU32::new(0),
            staged: AtomicU32::new(NO_PAGE),
            page: AtomicU32::new(NO_PAGE),
            pins: AtomicU32::new(0),
            entry: AtomicU64::new(0),
        };
        let free = (0..count as u32).rev().map(FrameNo).collect();
        let queue = || (Mutex::new(LockClass::Wait, ()), Condvar::new());
        Self {
            frames: std::iter::repeat_with(frame).take(count).collect(),
            free: Mutex::new(LockClass::FreeFrames, free),
            free_count: AtomicUsize::new(count),
            unevictable_count: AtomicUsize::new(0),
            waits: std::iter::repeat_with(queue).take(WAIT_QUEUES).collect(),
        }
    }

    /// Frames there are.
    pub fn count(&self) -> usize {
        self.frames.len()
    }

    /// Every frame.
    pub(crate) fn all(&self) -> impl Iterator<Item = FrameNo> + use<> {
        (0..self.count() as u32).map(FrameNo)
    }

    /// Frames nobody has.
    pub fn free_count(&self) -> usize {
        self.free_count.load(Relaxed)
    }

    /// A free frame for `page`, locked. Waits only for somebody who tried to lock the frame's
    /// previous page and is about to notice.
    pub fn alloc(&self, page: PageNo) -> Option<FrameNo> {
        let frame = self.free.lock().pop()?;
        self.free_count.fetch_sub(1, Relaxed);
        self.lock(frame);
        debug_assert!(!self.has(frame, flag::OF_PAGE), "frame {frame} was not free");
        self.set_page(frame, page);
        Some(frame)
    }

    /// Gives a locked frame back, and unlocks it.
    pub fn free(&self, frame: FrameNo) {
        let state = &self.frames[frame.index()];
        debug_assert_eq!(state.entry.load(Relaxed), 0, "frame {frame} freed while cached");
        debug_assert_eq!(state.staged.load(Relaxed), NO_PAGE, "frame {frame} freed while staged");
        state.page.store(NO_PAGE, Relaxed);
        state.pins.store(0, Relaxed);
        self.set_unevictable(frame, false);
        state.flags.fetch_and(!flag::OF_PAGE, Relaxed);
        self.unlock(frame);
        self.free.lock().push(frame);
        self.free_count.fetch_add(1, Relaxed);
    }

    /// Frames that may not be evicted.
    pub(crate) fn unevictable_count(&self) -> usize {
        self.unevictable_count.load(Relaxed)
    }

    /// Forbids or allows the eviction of a locked frame's page.
    pub(crate) fn set_unevictable(&self, frame: FrameNo, unevictable: bool) {
        if unevictable && self.set(frame, flag::UNEVICTABLE) & flag::UNEVICTABLE == 0 {
            self.unevictable_count.fetch_add(1, Relaxed);
        } else if !unevictable && self.clear(frame, flag::UNEVICTABLE) & flag::UNEVICTABLE != 0 {
            self.unevictable_count.fetch_sub(1, Relaxed);
        }
    }

    /// Forbids the eviction of a locked frame's page once more, or once less.
    pub(crate) fn pin(&self, frame: FrameNo, pin: bool) {
        let pins = &self.frames[frame.index()].pins;
        let count = pins.load(Relaxed);
        let count = if pin { count + 1 } else { count.saturating_sub(1) };
        pins.store(count, Relaxed);
        self.set_unevictable(frame, count > 0);
    }

    /// Takes the page lock if nobody has it.
    #[inline]
    pub fn try_lock(&self, frame: FrameNo) -> bool {
        let before = self.frames[frame.index()].flags.fetch_or(flag::LOCKED, Acquire);
        before & flag::LOCKED == 0
    }

    /// Sleeps until the page lock is ours. The frame may have changed pages meanwhile: look again.
    pub fn lock(&self, frame: FrameNo) {
        while !self.try_lock(frame) {
            self.wait_while(frame, flag::LOCKED);
        }
    }

    /// Sleeps while somebody has the page lock; does not take it.
    pub(crate) fn wait_unlocked(&self, frame: FrameNo) {
        if self.has(frame, flag::LOCKED) {
            self.wait_while(frame, flag::LOCKED);
        }
    }

    /// Sleeps until the write in flight has ended. The caller holds the page lock, which a
    /// completion does not need.
    pub(crate) fn wait_writeback(&self, frame: FrameNo) {
        while self.has(frame, flag::WRITEBACK) {
            self.wait_while(frame, flag::WRITEBACK);
        }
    }

    fn wait_while(&self, frame: FrameNo, bit: u32) {
        assert_no_lock_held("sleeping for a page");
        let (mutex, condvar) = self.wait_queue(frame);
        let guard = mutex.lock();
        if self.set(frame, flag::WAITERS) & bit != 0 {
            drop(condvar.wait(guard));
        }
    }

    /// Clears WRITEBACK and marks the frame for rotation, in one step so that whoever frees it sees
    /// both. A locked one is not rotated: its locker is about to map it, or to free it as soon as this
    /// is done. Returns whether it is to be rotated; None, and nothing done, if its MAPPED bit is not
    /// as in `mapped`.
    pub(crate) fn end_writeback(&self, frame: FrameNo, mapped: u32) -> Option<bool> {
        let rotates = |flags: u32| flags & flag::LOCKED == 0;
        let next = |flags: u32| {
            let rotation = if rotates(flags) { flag::ROTATE_PENDING } else { 0 };
            let ended = flags & !flag::WRITEBACK | rotation;
            (flags & flag::MAPPED == mapped).then_some(ended)
        };
        let before = self.frames[frame.index()].flags.fetch_update(AcqRel, Acquire, next).ok()?;
        if before & flag::WAITERS != 0 {
            self.notify(frame);
        }
        Some(rotates(before))
    }

    /// Lets go of the page lock.
    #[inline]
    pub fn unlock(&self, frame: FrameNo) {
        let lock = flag::LOCKED | flag::WAITERS;
        let before = self.frames[frame.index()].flags.fetch_and(!lock, AcqRel);
        debug_assert_ne!(before & flag::LOCKED, 0, "frame {frame} unlocked twice");
        if before & flag::WAITERS != 0 {
            self.notify(frame);
        }
    }

    #[cold]
    fn notify(&self, frame: FrameNo) {
        let (mutex, condvar) = self.wait_queue(frame);
        drop(mutex.lock());
        condvar.notify_all();
    }

    fn wait_queue(&self, frame: FrameNo) -> &(Mutex<()>, Condvar) {
        &self.waits[frame.index() % self.waits.len()]
    }

    /// Sees whether the page lock is held, ordered after whatever the caller did before and before
    /// the unlock that it does not see (a read-modify-write takes part in the flags' order).
    pub fn is_locked_now(&self, frame: FrameNo) -> bool {
        self.frames[frame.index()].flags.fetch_or(0, AcqRel) & flag::LOCKED != 0
    }

    /// The page of `frame`, if it has one.
    #[inline]
    pub fn page(&self, frame: FrameNo) -> Option<PageNo> {
        match self.frames[frame.index()].page.load(Relaxed) {
            NO_PAGE => None,
            page => Some(PageNo(page)),
        }
    }

    pub(crate) fn set_page(&self, frame: FrameNo, page: PageNo) {
        self.frames[frame.index()].page.store(page.0, Relaxed);
    }

    /// The entry `frame` is cached under.
    pub(crate) fn entry(&self, frame: FrameNo) -> Option<SwapEntry> {
        self.frames[frame.index()].entry.load(Acquire).checked_sub(1).map(SwapEntry::from_bits)
    }

    pub(crate) fn set_entry(&self, frame: FrameNo, entry: Option<SwapEntry>) {
        let bits = entry.map_or(0, |e| e.to_bits() + 1);
        self.frames[frame.index()].entry.store(bits, Release);
    }

    /// The staging page with the content of `frame`.
    pub(crate) fn staged(&self, frame: FrameNo) -> Option<usize> {
        match self.frames[frame.index()].staged.load(Relaxed) {
            NO_PAGE => None,
            index => Some(index as usize),
        }
    }

    pub(crate) fn set_staged(&self, frame: FrameNo, index: Option<usize>) {
        let index = index.map_or(NO_PAGE, |index| index as u32);
        self.frames[frame.index()].staged.store(index, Relaxed);
    }

    /// True if any of `bits` is set.
    #[inline]
    pub(crate) fn has(&self, frame: FrameNo, bits: u32) -> bool {
        self.frames[frame.index()].flags.load(Acquire) & bits != 0
    }

    /// Clears `old` and sets `new` in one step; returns what was set before, or nothing where `old` was
    /// not set.
    pub(crate) fn exchange(&self, frame: FrameNo, old: u32, new: u32) -> Option<u32> {
        let next = |flags: u32| (flags & old != 0).then_some(flags & !old | new);
        self.frames[frame.index()].flags.fetch_update(AcqRel, Acquire, next).ok()
    }

    /// Sets `bits`; returns what was set before.
    #[inline]
    pub(crate) fn set(&self, frame: FrameNo, bits: u32) -> u32 {
        self.frames[frame.index()].flags.fetch_or(bits, AcqRel)
    }

    /// Clears `bits`; returns what was set before.
    #[inline]
    pub(crate) fn clear(&self, frame: FrameNo, bits: u32) -> u32 {
        self.frames[frame.index()].flags.fetch_and(!bits, AcqRel)
    }
}

/// Where threads wait for frames to become free, or for work to do.
#[derive(Debug)]
pub(crate) struct Doorbell {
    bell: Mutex<Bell>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct Bell {
    rung: u64,
    sleepers: usize,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self { bell: Mutex::new(LockClass::Wait, Bell::default()), condvar: Condvar::new() }
    }

    /// A system call only if somebody sleeps: it is rung for every page while memory is short.
    pub(crate) fn ring(&self) {
        let mut bell = self.bell.lock();
        bell.rung += 1;
        let heard = bell.sleepers > 0;
        drop(bell);
        if heard {
            self.condvar.notify_all();
        }
    }

    /// How often it has rung.
    pub(crate) fn count(&self) -> u64 {
        self.bell.lock().rung
    }

    /// Sleeps until it has rung more often than `seen`, or `limit` is over.
    pub(crate) fn wait(&self, seen: u64, limit: Option<Duration>) {
        let mut bell = self.bell.lock();
        bell.sleepers += 1;
        while bell.rung == seen {
            match limit {
                None => bell = self.condvar.wait(bell),
                Some(limit) => {
                    bell = self.condvar.wait_for(bell, limit);
                    break;
                }
            }
        }
        bell.sleepers -= 1;
    }
}
