//! The active and inactive lists, filled through per-CPU batches.
//!
//! Owns: the order in which pages are considered for eviction.
//! Invariants: a frame is on at most one list (LRU and ACTIVE say which). A batch does not own its
//! frames: each has ADD_PENDING or ROTATE_PENDING, which freeing the frame clears, and the flush
//! acts only on frames that still have it. Rotation moves only clean, unlocked, inactive frames.
//! Not here: the choice of victims (`reclaim`).
//! Source of rotation in batches: Linux 2.6.24 (pagevec_move_tail); the LRU lock is taken once per
//! batch instead of once per page whose write has ended. As in Linux a CPU's own batches are
//! flushed before it shrinks the inactive list; all CPUs' are if that list has too few frames.
//! Linux also flushes the batch of a CPU that goes offline; here `Engine::drain` flushes all before
//! a fork, when the threads that would fill them stop. There are no accessed bits: user space
//! learns of a touch only from a fault. Second chances come from the time in the swap cache and
//! from the refault distance (`workingset`). Pages that a stream of faults has passed (`readahead`)
//! are evicted first.

use crate::frames::{Frames, LockedPage};
use crate::tuning::Tuning;
use crate::types::flag::{
    ACTIVE, ADD_PENDING, DIRTY, LOCKED, LRU, ROTATE_PENDING, STREAMED, UNEVICTABLE, WRITEBACK,
};
use overspill_base::FrameNo;
use overspill_base::clock::Cpus;
use overspill_base::list::{Links, List};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{AtomicUsize, LockClass, Mutex};
use overspill_base::work::{self, Path, Work};

/// Flags that keep a frame from being isolated or moved.
const BUSY: u32 = LOCKED | WRITEBACK | UNEVICTABLE;

/// One of the two lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LruList {
    Active,
    Inactive,
}

#[derive(Debug)]
struct Lists {
    links: Links,
    /// By [`LruList`].
    ends: [List; 2],
}

#[derive(Debug)]
struct Batches {
    add: Mutex<Vec<FrameNo>>,
    rotate: Mutex<Vec<FrameNo>>,
}

/// Both lists and their batches.
#[derive(Debug)]
pub(crate) struct Lru {
    lists: Mutex<Lists>,
    /// Recent length of the active list, readable without the lock.
    active_len: AtomicUsize,
    batches: Vec<Batches>,
    cpus: Cpus,
    add_batch: usize,
    rotate_batch: usize,
}

impl Lru {
    pub(crate) fn new(frames: usize, tuning: &Tuning, cpus: Cpus) -> Self {
        let (add_batch, rotate_batch) = (tuning.lru_batch_pages, tuning.rotate_batch_pages);
        let lists = Lists { links: Links::new(frames), ends: [List::default(); 2] };
        let batches = || Batches {
            add: Mutex::new(LockClass::LruBatch, Vec::with_capacity(add_batch)),
            rotate: Mutex::new(LockClass::RotateBatch, Vec::with_capacity(rotate_batch)),
        };
        Self {
            lists: Mutex::new(LockClass::Lru, lists),
            active_len: AtomicUsize::new(0),
            batches: std::iter::repeat_with(batches).take(cpus.count).collect(),
            cpus,
            add_batch,
            rotate_batch,
        }
    }

    /// Returns the lengths of the active and the inactive list.
    pub(crate) fn lens(&self) -> (usize, usize) {
        let lists = self.lists.lock();
        (lists.len(LruList::Active), lists.len(LruList::Inactive))
    }

    /// Returns a recent length of the active list.
    pub(crate) fn active_len(&self) -> usize {
        self.active_len.load(Relaxed)
    }

    /// Adds a frame that is on no list to the head of one, with the next batch.
    pub(crate) fn add(&self, locked: &LockedPage, to: LruList, frames: &Frames) {
        let frame = locked.frame();
        match to {
            LruList::Active => frames.set(frame, ACTIVE | ADD_PENDING),
            LruList::Inactive => {
                frames.clear(frame, ACTIVE);
                frames.set(frame, ADD_PENDING)
            }
        };
        let mut batch = self.batches[self.cpus.current()].add.lock();
        batch.push(frame);
        if batch.len() >= self.add_batch {
            self.flush_adds(&mut batch, frames);
        }
    }

    fn flush_adds(&self, batch: &mut Vec<FrameNo>, frames: &Frames) {
        if batch.is_empty() {
            return;
        }
        let _path = work::on(Path::LruAdd);
        let mut lists = self.lists.lock();
        for frame in batch.drain(..) {
            // In one step, because `remove` reads both bits without the lists' lock.
            if let Some(flags) = frames.exchange(frame, ADD_PENDING, LRU) {
                lists.push_head(frame, list_of(flags));
            }
        }
        self.active_len.store(lists.len(LruList::Active), Relaxed);
    }

    /// Rotates a frame to the inactive tail with the next batch. Its writeback has just ended and
    /// set ROTATE_PENDING.
    pub(crate) fn rotate(&self, frame: FrameNo, frames: &Frames, stats: &Stats) {
        let Batches { add, rotate } = &self.batches[self.cpus.current()];
        let mut batch = rotate.lock();
        batch.push(frame);
        if batch.len() >= self.rotate_batch {
            // If I/O completes at once, a page may not be on a list yet. Not rotated, it would keep
            // its whole staging chunk until it reaches the tail.
            self.flush_adds(&mut add.lock(), frames);
            self.flush_rotations(&mut batch, frames, stats);
        }
    }

    fn flush_rotations(&self, batch: &mut Vec<FrameNo>, frames: &Frames, stats: &Stats) {
        if batch.is_empty() {
            return;
        }
        let _path = work::on(Path::Rotate);
        let mut moved = 0;
        let mut lists = self.lists.lock();
        for frame in batch.drain(..) {
            let flags = frames.clear(frame, ROTATE_PENDING);
            let unfit = ACTIVE | LOCKED | WRITEBACK | DIRTY;
            if flags & ROTATE_PENDING != 0 && flags & LRU != 0 && flags & unfit == 0 {
                lists.unlink(frame, LruList::Inactive);
                lists.push_tail(frame);
                moved += 1;
            }
        }
        drop(lists);
        stats.count(Event::lru_rotate_locks);
        stats.add(Event::pgrotated, moved);
    }

    /// Flushes the batches of all CPUs, so that the lists are complete.
    pub(crate) fn drain(&self, frames: &Frames, stats: &Stats) {
        for cpu in &self.batches {
            self.flush_adds(&mut cpu.add.lock(), frames);
            self.flush_rotations(&mut cpu.rotate.lock(), frames, stats);
        }
    }

    /// Flushes the calling CPU's batches, before reclaim looks at the tail. Flushing all each time
    /// would take two locks per CPU and leave only short batches.
    pub(crate) fn drain_own(&self, frames: &Frames, stats: &Stats) {
        let Batches { add, rotate } = &self.batches[self.cpus.current()];
        self.flush_adds(&mut add.lock(), frames);
        self.flush_rotations(&mut rotate.lock(), frames, stats);
    }

    /// Isolates up to `want` pages from the tail of the inactive list. Moves frames that are locked
    /// or may not be evicted to its head. Returns how many it scanned.
    pub(crate) fn isolate(&self, want: usize, frames: &Frames, out: &mut Vec<LockedPage>) -> usize {
        let _path = work::on(Path::ShrinkInactiveList);
        let mut lists = self.lists.lock();
        let most = (want * 2).min(lists.len(LruList::Inactive));
        let mut seen = 0;
        while seen < most && out.len() < want {
            let Some(frame) = lists.pop_tail(LruList::Inactive) else { break };
            seen += 1;
            let fit = !frames.has(frame, UNEVICTABLE | WRITEBACK);
            match fit.then(|| frames.try_lock(frame)) {
                Some(Ok(locked)) => {
                    frames.clear(frame, LRU);
                    out.push(locked);
                }
                _ => lists.push_head(frame, LruList::Inactive),
            }
        }
        seen
    }

    /// Isolates one given page, if it is idle on the inactive list.
    pub(crate) fn isolate_one(&self, frame: FrameNo, frames: &Frames) -> Option<LockedPage> {
        self.lists.lock().isolate(frame, frames)
    }

    /// True if [`isolate_one`](Self::isolate_one) would probably take the frame. A hint, without
    /// the lock.
    pub(crate) fn looks_idle(&self, frame: FrameNo, frames: &Frames) -> bool {
        frames.has(frame, LRU) && !frames.has(frame, ACTIVE | BUSY)
    }

    /// Isolates those of `wanted` that are idle on the inactive list, under one hold of the lists'
    /// lock.
    pub(crate) fn isolate_these(&self, wanted: &[FrameNo], frames: &Frames) -> Vec<LockedPage> {
        let mut lists = self.lists.lock();
        wanted.iter().filter_map(|&frame| lists.isolate(frame, frames)).collect()
    }

    /// Moves idle frames that a stream has read to the inactive tail, from either list. Pages of a
    /// loop refault soon and become active, but deserve no more than the rest of the loop.
    pub(crate) fn drop_behind(&self, passed: impl Iterator<Item = FrameNo>, frames: &Frames) {
        let mut lists = self.lists.lock();
        passed.for_each(|frame| lists.send_last(frame, STREAMED, frames));
    }

    /// Moves idle frames to the inactive tail, from either list, on the program's advice.
    pub(crate) fn make_cold(&self, cold: impl Iterator<Item = FrameNo>, frames: &Frames) {
        let mut lists = self.lists.lock();
        cold.for_each(|frame| lists.send_last(frame, 0, frames));
    }

    /// Moves up to `want` frames from the active tail to the inactive head; returns their number.
    pub(crate) fn deactivate(&self, want: usize, frames: &Frames) -> usize {
        let _path = work::on(Path::ShrinkActiveList);
        let mut lists = self.lists.lock();
        let mut moved = 0;
        while moved < want
            && let Some(frame) = lists.pop_tail(LruList::Active)
        {
            frames.clear(frame, ACTIVE);
            lists.push_head(frame, LruList::Inactive);
            moved += 1;
        }
        self.active_len.store(lists.len(LruList::Active), Relaxed);
        moved
    }

    /// Moves a frame to the active list, or has it added there if it is on none yet.
    pub(crate) fn activate(&self, frame: FrameNo, frames: &Frames) {
        let mut lists = self.lists.lock();
        let before = frames.set(frame, ACTIVE);
        if before & LRU != 0 && before & ACTIVE == 0 {
            lists.unlink(frame, LruList::Inactive);
            lists.push_head(frame, LruList::Active);
        }
    }

    /// Removes a page, whose frame is about to be freed, from its list or batch.
    pub(crate) fn remove(&self, locked: &LockedPage, frames: &Frames) {
        let frame = locked.frame();
        // The page lock keeps an isolated frame off the lists.
        if !frames.has(frame, LRU | ADD_PENDING | ROTATE_PENDING) {
            return;
        }
        let mut lists = self.lists.lock();
        let before = frames.clear(frame, LRU | ADD_PENDING | ROTATE_PENDING);
        if before & LRU != 0 {
            lists.unlink(frame, list_of(before));
        }
    }

    /// Returns the frames of a list from head to tail.
    pub(crate) fn members(&self, list: LruList) -> Vec<FrameNo> {
        let lists = self.lists.lock();
        lists.links.iter(&lists.ends[list as usize]).map(FrameNo).collect()
    }
}

fn list_of(flags: u32) -> LruList {
    if flags & ACTIVE != 0 { LruList::Active } else { LruList::Inactive }
}

impl Lists {
    /// Isolates a page, if it is idle on the inactive list.
    fn isolate(&mut self, frame: FrameNo, frames: &Frames) -> Option<LockedPage> {
        let flags = frames.set(frame, 0);
        if flags & LRU == 0 || flags & (ACTIVE | BUSY) != 0 {
            return None;
        }
        let locked = frames.try_lock(frame).ok()?;
        let flags = frames.clear(frame, LRU);
        self.unlink(frame, list_of(flags));
        Some(locked)
    }

    /// Moves an idle frame to the inactive tail, from either list, if it has all of `marks`; clears
    /// them.
    fn send_last(&mut self, frame: FrameNo, marks: u32, frames: &Frames) {
        let (flags, wanted) = (frames.set(frame, 0), LRU | marks);
        if flags & wanted == wanted && flags & BUSY == 0 {
            frames.clear(frame, ACTIVE | marks);
            self.unlink(frame, list_of(flags));
            self.push_tail(frame);
        }
    }

    fn len(&self, list: LruList) -> usize {
        self.ends[list as usize].len()
    }

    fn push_head(&mut self, frame: FrameNo, list: LruList) {
        work::charge(Work::ListMoves(1));
        self.links.push_front(&mut self.ends[list as usize], frame.0);
    }

    fn push_tail(&mut self, frame: FrameNo) {
        work::charge(Work::ListMoves(1));
        self.links.push_back(&mut self.ends[LruList::Inactive as usize], frame.0);
    }

    fn pop_tail(&mut self, list: LruList) -> Option<FrameNo> {
        let frame = FrameNo(self.ends[list as usize].last()?);
        self.unlink(frame, list);
        Some(frame)
    }

    fn unlink(&mut self, frame: FrameNo, list: LruList) {
        work::charge(Work::ListMoves(1));
        self.links.unlink(&mut self.ends[list as usize], frame.0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use overspill_base::PageNo;
    use proptest::prelude::*;

    const FRAMES: u32 = 12;

    /// Lists with given batch sizes, and all frames added.
    struct Rig {
        lru: Lru,
        frames: Frames,
        stats: Stats,
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// The write of a page ends.
        Rotate(u32),
        Activate(u32),
        /// The page is freed, and another one takes its frame.
        Replace(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..FRAMES).prop_map(Op::Rotate),
            1 => (0..FRAMES).prop_map(Op::Activate),
            1 => (0..FRAMES).prop_map(Op::Replace),
        ]
    }

    impl Rig {
        fn new(rotate_batch_pages: usize) -> Self {
            Self::with_batches(1, rotate_batch_pages)
        }

        fn with_batches(lru_batch_pages: usize, rotate_batch_pages: usize) -> Self {
            let tuning = Tuning { lru_batch_pages, rotate_batch_pages, ..Tuning::default() };
            let cpus = Cpus { count: 1, current: || 0 };
            let lru = Lru::new(FRAMES as usize, &tuning, cpus);
            let rig = Self { lru, frames: Frames::new(FRAMES as usize), stats: Stats::on_heap() };
            (0..FRAMES).for_each(|_| rig.add());
            rig
        }

        fn add(&self) {
            let locked = self.frames.alloc(PageNo(0)).unwrap();
            self.lru.add(&locked, LruList::Inactive, &self.frames);
            self.frames.unlock(locked);
        }

        fn play(&self, op: Op) {
            match op {
                Op::Rotate(n) => {
                    self.frames.set(FrameNo(n), ROTATE_PENDING);
                    self.lru.rotate(FrameNo(n), &self.frames, &self.stats);
                }
                Op::Activate(n) => self.lru.activate(FrameNo(n), &self.frames),
                Op::Replace(n) => {
                    let locked = self.frames.lock(FrameNo(n)).unwrap();
                    self.lru.remove(&locked, &self.frames);
                    self.frames.free(locked);
                    self.add();
                }
            }
        }

        /// Returns the active and inactive frames, and the acquisitions of the lock for rotation.
        fn end(&self) -> (Vec<FrameNo>, Vec<FrameNo>, u64) {
            self.lru.drain(&self.frames, &self.stats);
            let locks = self.stats.get(Event::lru_rotate_locks);
            (self.lru.members(LruList::Active), self.lru.members(LruList::Inactive), locks)
        }
    }

    proptest! {
        /// Batches change only the order inside a batch, and take the lock once each.
        #[test]
        fn rotation_in_batches_refines_rotation_one_by_one(
            batch in 2..6usize,
            ops in prop::collection::vec(op(), 0..80),
        ) {
            let (single, batched) = (Rig::new(1), Rig::new(batch));
            // The batch in which each frame was last rotated; 0 if it never was.
            let mut in_batch = [0; FRAMES as usize];
            let mut rotations = 0;
            for &op in &ops {
                single.play(op);
                batched.play(op);
                match op {
                    Op::Rotate(n) => {
                        in_batch[n as usize] = rotations / batch + 1;
                        rotations += 1;
                    }
                    Op::Replace(n) => in_batch[n as usize] = 0,
                    Op::Activate(_) => {}
                }
            }
            let (active, inactive, locks) = single.end();
            let (batched_active, batched_inactive, batched_locks) = batched.end();
            prop_assert_eq!(active, batched_active);
            let in_batches = |frames: &[FrameNo]| -> Vec<usize> {
                frames.iter().map(|frame| in_batch[frame.index()]).collect()
            };
            prop_assert_eq!(in_batches(&inactive), in_batches(&batched_inactive));
            let fixed = |frames: &[FrameNo]| -> Vec<FrameNo> {
                frames.iter().copied().filter(|frame| in_batch[frame.index()] == 0).collect()
            };
            prop_assert_eq!(fixed(&inactive), fixed(&batched_inactive));
            prop_assert_eq!(locks, rotations as u64);
            prop_assert_eq!(batched_locks, rotations.div_ceil(batch) as u64);
        }
    }

    #[test]
    fn a_lock_moves_a_page_or_a_batch_of_them() {
        for (batch, locks) in [(1, 12), (4, 3), (12, 1)] {
            let rig = Rig::new(batch);
            (0..FRAMES).for_each(|n| rig.play(Op::Rotate(n)));
            assert_eq!(rig.stats.get(Event::lru_rotate_locks), locks);
            assert_eq!(rig.stats.get(Event::pgrotated), u64::from(FRAMES));
        }
    }

    #[test]
    fn what_a_stream_has_read_goes_last_and_nothing_else_does() {
        let rig = Rig::new(1);
        // Read by the stream: 3; 4, active since; 5, locked. 6 was there before.
        for n in [3, 4, 5] {
            rig.frames.set(FrameNo(n), STREAMED);
        }
        rig.play(Op::Activate(4));
        let locked = rig.frames.lock(FrameNo(5)).unwrap();
        rig.lru.drop_behind([3, 4, 5, 6].map(FrameNo).into_iter(), &rig.frames);
        let (active, inactive, _) = rig.end();
        assert_eq!(active, []);
        assert_eq!(inactive, [11, 10, 9, 8, 7, 6, 5, 2, 1, 0, 3, 4].map(FrameNo));
        rig.frames.unlock(locked);
    }

    #[test]
    fn a_page_that_still_waits_for_its_list_is_rotated_too() {
        // All additions wait in one batch when a write ends.
        let rig = Rig::with_batches(15, 1);
        rig.play(Op::Rotate(3));
        assert_eq!(rig.end().1.last(), Some(&FrameNo(3)));
        assert_eq!(rig.stats.get(Event::pgrotated), 1);
    }

    #[test]
    fn a_page_that_is_dirty_or_locked_by_then_stays_where_it_is() {
        let rig = Rig::new(4);
        let before = rig.lru.members(LruList::Inactive);
        rig.play(Op::Rotate(7));
        rig.frames.set(FrameNo(7), DIRTY);
        rig.play(Op::Rotate(8));
        let locked = rig.frames.lock(FrameNo(8)).unwrap();
        assert_eq!(rig.end().1, before);
        assert_eq!(rig.stats.get(Event::pgrotated), 0);
        rig.frames.unlock(locked);
    }
}
