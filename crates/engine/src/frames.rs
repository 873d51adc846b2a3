//! Frames: the free list with its watermarks, and the page lock.
//!
//! Owns: [`Frame`]s, the free ones, and the sleepers for a page lock.
//! Invariants: a free frame has no page, no entry and no staging page, and is locked only by its
//! next owner. There is one [`LockedPage`] for each LOCKED flag, which the holder of the page lock
//! has, except where an I/O request holds the lock.
//! Not here: the transitions of a frame's page (`page`).
//!
//! Orderings: `unlock` releases and `try_lock` acquires the flags word, so an owner sees everything
//! the previous one did to the frame. Sleeping: a sleeper sets WAITERS with the wait-table lock
//! held and re-checks; the unlocker that finds WAITERS takes that lock before it notifies, so the
//! notification cannot fall between check and sleep.

use crate::types::{Frame, NO_PAGE, broken_rule, flag};
use overspill_area::SwapEntry;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Condvar, LockClass, Mutex, assert_no_lock_held,
};
use overspill_base::{FrameNo, PageNo};

/// Wait queues shared by all frames, as Linux's page wait table.
const WAIT_QUEUES: usize = if cfg!(loom) { 1 } else { 64 };

/// The page lock of a frame, with the frame's page.
///
/// Its owner may change the frame and the page's word. It ends in [`Frames::unlock`] or
/// [`Frames::free`]; dropping it panics in debug builds, because the page could never be locked
/// again.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a page lock must be let go"]
pub struct LockedPage {
    frame: FrameNo,
    page: PageNo,
}

impl LockedPage {
    /// Returns the frame.
    #[inline]
    pub fn frame(&self) -> FrameNo {
        self.frame
    }

    /// Returns the frame's page.
    #[inline]
    pub fn page(&self) -> PageNo {
        self.page
    }

    fn end(self) -> FrameNo {
        let frame = self.frame;
        std::mem::forget(self);
        frame
    }
}

#[cfg(debug_assertions)]
impl Drop for LockedPage {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the lock of {} in {} is lost", self.page, self.frame);
    }
}

/// Why a page lock was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotLocked {
    /// It is held.
    Busy,
    /// The frame has no page any more.
    Free,
}

/// Numbers of free frames that control reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it readahead and other opportunistic allocations stop.
    pub min: usize,
    /// Below it the reclaim thread starts.
    pub low: usize,
    /// At it the reclaim thread stops.
    pub high: usize,
}

impl Watermarks {
    /// Returns the watermarks for `frames` frames: background reclaim starts at 1/64 free and stops
    /// at 1/32, within bounds that keep a batch in flight on the smallest limits.
    pub fn of(frames: usize) -> Self {
        let low = (frames / 64).clamp(1, 1024);
        Self { min: low.div_ceil(4), low, high: (low * 2).min(frames) }
    }
}

/// All frames of one engine.
#[derive(Debug)]
pub struct Frames {
    frames: Vec<Frame>,
    watermarks: Watermarks,
    free: Mutex<Vec<FrameNo>>,
    free_count: AtomicUsize,
    unevictable_count: AtomicUsize,
    waits: Vec<(Mutex<()>, Condvar)>,
}

impl Frames {
    /// Makes `count` free frames.
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
            watermarks: Watermarks::of(count),
            free: Mutex::new(LockClass::FreeFrames, free),
            free_count: AtomicUsize::new(count),
            unevictable_count: AtomicUsize::new(0),
            waits: std::iter::repeat_with(queue).take(WAIT_QUEUES).collect(),
        }
    }

    /// Returns the number of frames.
    pub fn count(&self) -> usize {
        self.frames.len()
    }

    /// Iterates over all frames.
    pub(crate) fn all(&self) -> impl Iterator<Item = FrameNo> + use<> {
        (0..self.count() as u32).map(FrameNo)
    }

    /// Returns the watermarks.
    pub fn watermarks(&self) -> Watermarks {
        self.watermarks
    }

    /// True if readahead and other opportunistic allocations may take a frame.
    pub(crate) fn are_above_min(&self) -> bool {
        self.free_count() > self.watermarks.min
    }

    /// True if reclaim need not start.
    pub(crate) fn are_above_low(&self) -> bool {
        self.free_count() > self.watermarks.low
    }

    /// Returns the number of free frames.
    pub fn free_count(&self) -> usize {
        self.free_count.load(Relaxed)
    }

    /// Allocates a frame for `page`. Waits at most for a thread that tried to lock the frame's
    /// previous page and is about to unlock it.
    pub fn alloc(&self, page: PageNo) -> Option<LockedPage> {
        let frame = self.free.lock().pop()?;
        self.free_count.fetch_sub(1, Relaxed);
        self.set_locked(frame);
        debug_assert!(!self.has(frame, flag::OF_PAGE), "frame {frame} was not free");
        self.frames[frame.index()].page.store(page.0, Relaxed);
        Some(LockedPage { frame, page })
    }

    /// As [`alloc`](Self::alloc), but returns `None` if frames run short.
    pub(crate) fn alloc_to_spare(&self, page: PageNo) -> Option<LockedPage> {
        if self.are_above_min() { self.alloc(page) } else { None }
    }

    /// Frees a frame.
    pub fn free(&self, locked: LockedPage) {
        let frame = locked.end();
        let state = &self.frames[frame.index()];
        debug_assert_eq!(state.entry.load(Relaxed), 0, "frame {frame} freed while cached");
        debug_assert_eq!(state.staged.load(Relaxed), NO_PAGE, "frame {frame} freed while staged");
        state.page.store(NO_PAGE, Relaxed);
        state.pins.store(0, Relaxed);
        self.mark_unevictable(frame, false);
        state.flags.fetch_and(!flag::OF_PAGE, Relaxed);
        self.clear_locked(frame);
        self.free.lock().push(frame);
        self.free_count.fetch_add(1, Relaxed);
    }

    /// Returns the number of frames that may not be evicted.
    pub(crate) fn unevictable_count(&self) -> usize {
        self.unevictable_count.load(Relaxed)
    }

    /// Forbids or allows the eviction of a page.
    pub(crate) fn set_unevictable(&self, locked: &LockedPage, unevictable: bool) {
        self.mark_unevictable(locked.frame, unevictable);
    }

    fn mark_unevictable(&self, frame: FrameNo, unevictable: bool) {
        if unevictable && self.set(frame, flag::UNEVICTABLE) & flag::UNEVICTABLE == 0 {
            self.unevictable_count.fetch_add(1, Relaxed);
        } else if !unevictable && self.clear(frame, flag::UNEVICTABLE) & flag::UNEVICTABLE != 0 {
            self.unevictable_count.fetch_sub(1, Relaxed);
        }
    }

    /// Adds or removes a pin, which forbids the eviction of a page.
    pub(crate) fn pin(&self, locked: &LockedPage, pin: bool) {
        let pins = &self.frames[locked.frame.index()].pins;
        let count = pins.load(Relaxed);
        let count = if pin { count + 1 } else { count.saturating_sub(1) };
        pins.store(count, Relaxed);
        self.set_unevictable(locked, count > 0);
    }

    /// Takes the page lock if it is free. The frame may have changed pages since it was looked up.
    ///
    /// # Errors
    /// [`NotLocked`].
    #[inline]
    pub fn try_lock(&self, frame: FrameNo) -> Result<LockedPage, NotLocked> {
        match self.try_set_locked(frame) {
            true => self.of_its_page(frame).ok_or(NotLocked::Free),
            false => Err(NotLocked::Busy),
        }
    }

    /// Takes the page lock; sleeps until it is free. The frame may have changed pages meanwhile;
    /// `None` if it has no page.
    pub fn lock(&self, frame: FrameNo) -> Option<LockedPage> {
        self.set_locked(frame);
        self.of_its_page(frame)
    }

    /// Wraps the lock just taken; releases it if the frame has no page.
    fn of_its_page(&self, frame: FrameNo) -> Option<LockedPage> {
        self.assert_legal(frame);
        let page = self.page(frame);
        if page.is_none() {
            self.clear_locked(frame);
        }
        page.map(|page| LockedPage { frame, page })
    }

    #[inline]
    fn try_set_locked(&self, frame: FrameNo) -> bool {
        let before = self.frames[frame.index()].flags.fetch_or(flag::LOCKED, Acquire);
        before & flag::LOCKED == 0
    }

    fn set_locked(&self, frame: FrameNo) {
        while !self.try_set_locked(frame) {
            self.wait_while(frame, flag::LOCKED);
        }
    }

    /// Passes the lock to a request that is about to be submitted.
    pub(crate) fn lend_to_io(&self, locked: LockedPage) {
        locked.end();
    }

    /// Takes the lock back from a completed request.
    pub(crate) fn take_from_io(&self, frame: FrameNo) -> LockedPage {
        debug_assert!(self.has(frame, flag::LOCKED), "{frame} was not locked for its I/O");
        let page = self.page(frame).expect("a frame that is read into has a page");
        LockedPage { frame, page }
    }

    /// Sleeps while the page lock is held; does not take it.
    pub(crate) fn wait_unlocked(&self, frame: FrameNo) {
        if self.has(frame, flag::LOCKED) {
            self.wait_while(frame, flag::LOCKED);
        }
    }

    /// Sleeps until the write in flight has completed; the completion does not need the page lock.
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

    /// Clears WRITEBACK and marks the frame for rotation, in one step, so that a thread that frees
    /// it sees both. A locked frame is not rotated: the lock's holder is about to map it, or to
    /// free it after this. Returns whether it is to be rotated, or `None`, with nothing done, if
    /// its MAPPED bit is not that of `mapped`.
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

    /// Releases a page lock.
    #[inline]
    pub fn unlock(&self, locked: LockedPage) {
        self.clear_locked(locked.end());
    }

    #[inline]
    fn clear_locked(&self, frame: FrameNo) {
        self.assert_legal(frame);
        let lock = flag::LOCKED | flag::WAITERS;
        let before = self.frames[frame.index()].flags.fetch_and(!lock, AcqRel);
        debug_assert_ne!(before & flag::LOCKED, 0, "frame {frame} unlocked twice");
        if before & flag::WAITERS != 0 {
            self.notify(frame);
        }
    }

    /// Checks in debug builds that the flags of a locked frame are legal.
    #[inline]
    fn assert_legal(&self, frame: FrameNo) {
        if cfg!(debug_assertions) {
            let flags = self.frames[frame.index()].flags.load(Acquire);
            let broken = broken_rule(flags);
            assert!(broken.is_none(), "{frame} has {flags:#x}, against {broken:x?}");
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

    /// True if the page lock is held. As a read-modify-write it is ordered after what the caller
    /// did before, and before the unlock if it returns true.
    pub fn is_locked_now(&self, frame: FrameNo) -> bool {
        self.frames[frame.index()].flags.fetch_or(0, AcqRel) & flag::LOCKED != 0
    }

    /// Returns the page of `frame`, if it has one.
    #[inline]
    pub fn page(&self, frame: FrameNo) -> Option<PageNo> {
        match self.frames[frame.index()].page.load(Relaxed) {
            NO_PAGE => None,
            page => Some(PageNo(page)),
        }
    }

    /// Gives a page's frame to another page.
    pub(crate) fn rename(&self, locked: LockedPage, page: PageNo) -> LockedPage {
        let frame = locked.end();
        self.frames[frame.index()].page.store(page.0, Relaxed);
        LockedPage { frame, page }
    }

    /// Returns the entry `frame` is cached under.
    pub(crate) fn entry(&self, frame: FrameNo) -> Option<SwapEntry> {
        self.frames[frame.index()].entry.load(Acquire).checked_sub(1).map(SwapEntry::from_bits)
    }

    /// Records that a page's frame is cached under `entry`, or not cached.
    pub(crate) fn set_entry(&self, locked: &LockedPage, entry: Option<SwapEntry>) {
        let bits = entry.map_or(0, |e| e.to_bits() + 1);
        self.frames[locked.frame.index()].entry.store(bits, Release);
        match entry {
            Some(_) => self.set(locked.frame, flag::CACHED),
            None => self.clear(locked.frame, flag::CACHED),
        };
    }

    /// Returns the staging page with the content of `frame`.
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

    /// Clears `old` and sets `new` in one step; returns the flags before, or `None` if `old` was
    /// not set.
    pub(crate) fn exchange(&self, frame: FrameNo, old: u32, new: u32) -> Option<u32> {
        let next = |flags: u32| (flags & old != 0).then_some(flags & !old | new);
        self.frames[frame.index()].flags.fetch_update(AcqRel, Acquire, next).ok()
    }

    /// Sets `bits`; returns the flags before.
    #[inline]
    pub(crate) fn set(&self, frame: FrameNo, bits: u32) -> u32 {
        self.frames[frame.index()].flags.fetch_or(bits, AcqRel)
    }

    /// Clears `bits`; returns the flags before.
    #[inline]
    pub(crate) fn clear(&self, frame: FrameNo, bits: u32) -> u32 {
        self.frames[frame.index()].flags.fetch_and(!bits, AcqRel)
    }
}
