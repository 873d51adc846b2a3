//! Batched rotation, step by step.

use crate::frames::{Frames, LockedPage};
use crate::lru::{Lru, LruList};
use crate::tuning::Tuning;
use crate::types::flag::{DIRTY, ROTATE_PENDING, WRITEBACK};
use overspill_base::clock::Cpus;
use overspill_base::stats::{Event, Stats};
use overspill_base::{FrameNo, PageNo};
use std::cell::Cell;

struct Rig {
    frames: Frames,
    lru: Lru,
    stats: Stats,
}

/// Makes `count` unlocked frames on the inactive list, with the last one at its head.
fn rig(count: usize, rotate_batch_pages: usize) -> Rig {
    let tuning = Tuning { rotate_batch_pages, lru_batch_pages: 1, ..Tuning::default() };
    let frames = Frames::new(count);
    let lru = Lru::new(count, &tuning, Cpus { count: 1, current: || 0 });
    for page in 0..count as u32 {
        let locked = frames.alloc(PageNo(page)).unwrap();
        lru.add(&locked, LruList::Inactive, &frames);
        frames.unlock(locked);
    }
    Rig { frames, lru, stats: Stats::on_heap() }
}

impl Rig {
    fn end_write(&self, frame: u32) {
        let frame = FrameNo(frame);
        self.frames.set(frame, WRITEBACK);
        assert_eq!(self.frames.end_writeback(frame, 0), Some(true));
        self.lru.rotate(frame, &self.frames, &self.stats);
    }

    /// Returns the frame numbers from head to tail.
    fn inactive(&self) -> Vec<u32> {
        self.lru.drain(&self.frames, &self.stats);
        self.lru.members(LruList::Inactive).into_iter().map(|frame| frame.0).collect()
    }

    fn rotated(&self) -> u64 {
        self.stats.get(Event::pgrotated)
    }
}

/// E37: the list is the same with and without batches, and pages are evicted in the order in which
/// their writes ended.
#[test]
fn rotation_in_batches_ends_as_rotation_page_by_page() {
    let rotate = |batch| {
        let rig = rig(8, batch);
        [5, 2, 7].into_iter().for_each(|frame| rig.end_write(frame));
        (rig.inactive(), rig.rotated())
    };
    // Frame 5's write ended first, 7's last.
    assert_eq!(rotate(1), (vec![6, 4, 3, 1, 0, 5, 2, 7], 3));
    (2..5).for_each(|batch| assert_eq!(rotate(batch), rotate(1), "batch of {batch}"));
}

/// E36: a batch does not own its frames. One that was freed meanwhile and belongs to another page
/// stays where that page was added.
#[test]
fn a_frame_that_changed_pages_in_a_batch_is_not_rotated() {
    let rig = rig(3, 4);
    rig.end_write(1);
    let locked = rig.frames.lock(FrameNo(1)).unwrap();
    rig.lru.remove(&locked, &rig.frames);
    rig.frames.free(locked);
    let again = rig.frames.alloc(PageNo(9)).unwrap();
    assert_eq!(again.frame(), FrameNo(1));
    rig.lru.add(&again, LruList::Inactive, &rig.frames);
    rig.frames.unlock(again);
    assert_eq!((rig.inactive(), rig.rotated()), (vec![1, 2, 0], 0));
}

/// E37: dirty, locked and active pages are not rotated, but lose the mark.
#[test]
fn pages_that_are_not_to_be_evicted_are_not_rotated() {
    let rig = rig(4, 8);
    (0..4).for_each(|frame| rig.end_write(frame));
    rig.frames.set(FrameNo(0), DIRTY);
    let locked = rig.frames.lock(FrameNo(1)).unwrap();
    rig.lru.activate(FrameNo(2), &rig.frames);
    assert_eq!((rig.inactive(), rig.rotated()), (vec![1, 0, 3], 1));
    rig.frames.unlock(locked);
    assert!((0..4).all(|frame| !rig.frames.has(FrameNo(frame), ROTATE_PENDING)));
}

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Makes two CPUs with batches of three, and two frames added on each.
fn two_cpus() -> Rig {
    let tuning = Tuning { lru_batch_pages: 3, ..Tuning::default() };
    let frames = Frames::new(4);
    let lru = Lru::new(4, &tuning, Cpus { count: 2, current: || CPU.get() });
    for page in 0..4u32 {
        CPU.set(page as usize / 2);
        let locked = frames.alloc(PageNo(page)).unwrap();
        lru.add(&locked, LruList::Inactive, &frames);
        frames.unlock(locked);
    }
    Rig { frames, lru, stats: Stats::on_heap() }
}

/// A round of reclaim on one CPU does not flush the others' batches.
#[test]
fn a_cpu_flushes_its_own_batches_and_a_drain_all() {
    let rig = two_cpus();
    CPU.set(0);
    rig.lru.drain_own(&rig.frames, &rig.stats);
    assert_eq!(rig.lru.members(LruList::Inactive), [1, 0].map(FrameNo));
    rig.lru.drain(&rig.frames, &rig.stats);
    assert_eq!(rig.lru.members(LruList::Inactive), [3, 2, 1, 0].map(FrameNo));
}

/// Frames that are locked, active or not listed by then stay where they are.
#[test]
fn of_several_frames_those_idle_on_the_inactive_list_are_taken() {
    let rig = rig(5, 1);
    let locked = rig.frames.lock(FrameNo(1)).unwrap();
    rig.lru.activate(FrameNo(2), &rig.frames);
    let isolated = rig.lru.isolate_one(FrameNo(3), &rig.frames);
    let idle = |n: u32| rig.lru.looks_idle(FrameNo(n), &rig.frames);
    assert_eq!([0, 1, 2, 3, 4].map(idle), [true, false, false, false, true]);
    let wanted: Vec<FrameNo> = (0..5).map(FrameNo).collect();
    let taken = rig.lru.isolate_these(&wanted, &rig.frames);
    let frames: Vec<FrameNo> = taken.iter().map(LockedPage::frame).collect();
    assert_eq!(frames, [0, 4].map(FrameNo));
    assert_eq!(rig.inactive(), [1]);
    let all = taken.into_iter().chain(isolated).chain([locked]);
    all.for_each(|locked| rig.frames.unlock(locked));
}
