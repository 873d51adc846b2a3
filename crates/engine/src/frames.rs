//! Frames, and the page lock.
//!
//! Owns: [`Frame`]s, and the sleepers for a page lock.
//! Invariants: the limit and what is over it are, together, the free frames and those with a page.
//! A free frame has no page, no entry and no staging page, and is locked only by its next owner.
//! There is one [`LockedPage`] for each LOCKED flag, which the holder of the page lock has, except
//! where an I/O request holds the lock.
//! Not here: the transitions of a frame's page (`page`), the lists of free ones, the limit and the
//! watermarks (`free_frames`).
//!
//! Orderings: `unlock` releases and `try_lock` acquires the flags word, so an owner sees everything
//! the previous one did to the frame. Sleeping: a sleeper sets WAITERS with the wait-table lock
//! held and re-checks; the unlocker that finds WAITERS takes that lock before it notifies, so the
//! notification cannot fall between check and sleep.

pub use crate::free_frames::Watermarks;

use crate::free_frames::FreeFrames;
use crate::types::{Frame, broken_rule, flag};
use overspill_area::SwapEntry;
use overspill_base::clock::Cpus;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{AtomicUsize, Condvar, LockClass, Mutex, assert_no_lock_held};
use overspill_base::{FrameNo, PageNo, zeroed};

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

/// All frames of one engine.
#[derive(Debug)]
pub struct Frames {
    frames: Box<[Frame]>,
    free: FreeFrames,
    unevictable_count: AtomicUsize,
    waits: Vec<(Mutex<()>, Condvar)>,
}

impl Frames {
    /// Makes `count` frames, which is the limit, too, with one list of the free ones.
    pub fn new(count: usize) -> Self {
        Self::with_own_lists(count, 0, Cpus::native())
    }

    /// As [`new`](Self::new), with a list of free ones for each CPU too; up to `batch` frames are
    /// moved there at a time.
    pub fn with_own_lists(count: usize, batch: usize, cpus: Cpus) -> Self {
        let queue = || (Mutex::new(LockClass::Wait, ()), Condvar::new());
        Self {
            frames: zeroed::slice(count),
            free: FreeFrames::new(count, batch, cpus),
            unevictable_count: AtomicUsize::new(0),
            waits: std::iter::repeat_with(queue).take(WAIT_QUEUES).collect(),
        }
    }

    /// Returns the number of frames.
    pub fn count(&self) -> usize {
        self.frames.len()
    }

    /// Returns how many of them may be in use.
    pub fn limit(&self) -> usize {
        self.free.limit()
    }

    /// Changes how many of them may be in use.
    pub(crate) fn set_limit(&self, frames: usize) {
        assert!(frames <= self.count(), "a limit of {frames} frames of {}", self.count());
        self.free.set_limit(frames);
    }

    /// Returns how many frames are still to be freed after the limit was lowered.
    pub(crate) fn over_limit(&self) -> usize {
        self.free.over_limit()
    }

    /// True if that is more than a quarter of what there is. Faults then help to reclaim, or would
    /// use up what is freed. (Linux does the same above `memory.high`.)
    pub(crate) fn are_far_over_limit(&self) -> bool {
        let over = self.over_limit();
        over > (self.limit() + over) / 4
    }

    /// Returns the number of frames with a page. A hint.
    pub(crate) fn used_count(&self) -> usize {
        (self.limit() + self.over_limit()).saturating_sub(self.all_free_count())
    }

    /// Iterates over all frames.
    pub(crate) fn all(&self) -> impl Iterator<Item = FrameNo> + use<> {
        (0..self.count() as u32).map(FrameNo)
    }

    /// Returns the watermarks.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks::of(self.limit())
    }

    /// True if readahead and other opportunistic allocations may take a frame.
    pub(crate) fn are_above_min(&self) -> bool {
        self.free_count() > self.watermarks().min
    }

    /// True if reclaim need not start.
    pub(crate) fn are_above_low(&self) -> bool {
        self.free_count() > self.watermarks().low
    }

    /// Returns the number of free frames that any CPU may take: the watermarks are compared with
    /// it.
    #[inline]
    pub fn free_count(&self) -> usize {
        self.free.common_count()
    }

    /// Returns the number of all free frames.
    pub(crate) fn all_free_count(&self) -> usize {
        self.free.count()
    }

    /// Makes the free frames of every CPU's list free for any; returns how many they were.
    pub(crate) fn gather_free(&self) -> usize {
        self.free.gather()
    }

    /// Allocates a frame for `page`. Waits at most for a thread that tried to lock the frame's
    /// previous page and is about to unlock it. `None` if there are none, but perhaps on other
    /// CPUs' lists.
    pub fn alloc(&self, page: PageNo) -> Option<LockedPage> {
        let frame = self.free.take(self.watermarks())?;
        self.set_locked(frame);
        debug_assert!(!self.has(frame, flag::OF_PAGE), "frame {frame} was not free");
        self.frames[frame.index()].page.store(page.0 + 1, Relaxed);
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
        debug_assert_eq!(state.staged.load(Relaxed), 0, "frame {frame} freed while staged");
        state.page.store(0, Relaxed);
        state.pins.store(0, Relaxed);
        self.mark_unevictable(frame, false);
        state.flags.fetch_and(!flag::OF_PAGE, Relaxed);
        self.clear_locked(frame);
        self.free.put(frame, self.watermarks());
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
        self.frames[frame.index()].page.load(Relaxed).checked_sub(1).map(PageNo)
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
        let staged = self.frames[frame.index()].staged.load(Relaxed);
        staged.checked_sub(1).map(|index| index as usize)
    }

    pub(crate) fn set_staged(&self, frame: FrameNo, index: Option<usize>) {
        let index = index.map_or(0, |index| index as u32 + 1);
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
