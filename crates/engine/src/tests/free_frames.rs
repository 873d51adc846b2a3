//! Free frames on the lists of two CPUs.

use crate::frames::{Frames, LockedPage, Watermarks};
use overspill_base::PageNo;
use overspill_base::clock::Cpus;
use proptest::prelude::*;
use std::cell::Cell;

/// Two batches of two frames for each of two CPUs.
const FRAMES: usize = 512;
const BATCH: usize = 2;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

fn frames(limit: usize) -> Frames {
    let cpus = Cpus { count: 2, current: || CPU.get() };
    let frames = Frames::with_own_lists(FRAMES, BATCH, cpus);
    frames.set_limit(limit);
    frames
}

fn on<R>(cpu: usize, act: impl FnOnce() -> R) -> R {
    CPU.set(cpu);
    act()
}

#[test]
fn a_cpu_takes_and_gives_back_in_batches() {
    assert_eq!(Watermarks::of(FRAMES).low, 2 * 2 * BATCH);
    let frames = frames(FRAMES);
    let first = frames.alloc(PageNo(0)).unwrap();
    assert_eq!(frames.free_count(), FRAMES - BATCH);
    let second = frames.alloc(PageNo(1)).unwrap();
    assert_eq!(frames.free_count(), FRAMES - BATCH, "the second came with the first");
    let rest: Vec<_> = (2..6).map(|page| frames.alloc(PageNo(page)).unwrap()).collect();
    for locked in [first, second].into_iter().chain(rest) {
        frames.free(locked);
    }
    // The fifth made the list too long.
    assert_eq!(frames.free_count(), FRAMES - 6 + BATCH);
    assert_eq!(frames.all_free_count(), FRAMES);
}

#[test]
fn frames_on_anothers_list_are_there_once_gathered() {
    let frames = frames(FRAMES);
    let mut all: Vec<LockedPage> = (0..).map_while(|page| frames.alloc(PageNo(page))).collect();
    assert_eq!(all.len(), FRAMES);
    on(1, || frames.free(all.pop().unwrap()));
    assert!(on(0, || frames.alloc(PageNo(0))).is_none());
    assert_eq!(frames.gather_free(), 1);
    all.push(on(0, || frames.alloc(PageNo(0))).unwrap());
    assert_eq!(frames.all_free_count(), 0);
    all.into_iter().for_each(|locked| frames.free(locked));
}

#[test]
fn with_few_frames_no_cpu_has_a_list() {
    let frames = frames(100);
    let locked = frames.alloc(PageNo(0)).unwrap();
    assert_eq!(frames.free_count(), 99);
    frames.free(locked);
    assert_eq!(frames.free_count(), 100);
}

/// What is over a lowered limit goes first, but for what faults need meanwhile.
#[test]
fn a_lowered_limit_is_reached_as_frames_become_free() {
    let frames = frames(FRAMES);
    let mut used: Vec<LockedPage> =
        (0..400).map(|page| frames.alloc(PageNo(page)).unwrap()).collect();
    let high = Watermarks::of(100).high;
    frames.set_limit(100);
    assert_eq!((frames.limit(), frames.over_limit()), (100, 300 + high));
    assert_eq!((frames.all_free_count(), frames.used_count()), (high, 400));
    assert!(frames.are_far_over_limit());
    used.push(frames.alloc(PageNo(400)).expect("a fault gets one"));
    used.drain(..).for_each(|locked| frames.free(locked));
    frames.gather_free();
    assert_eq!((frames.over_limit(), frames.all_free_count()), (0, 100));
}

#[test]
fn a_raised_limit_forgives_what_was_over_a_lower_one() {
    let frames = frames(FRAMES);
    let used: Vec<LockedPage> = (0..400).map(|page| frames.alloc(PageNo(page)).unwrap()).collect();
    frames.set_limit(100);
    frames.set_limit(FRAMES);
    assert_eq!((frames.over_limit(), frames.all_free_count()), (0, FRAMES - 400));
    used.into_iter().for_each(|locked| frames.free(locked));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc,
    Free,
    Limit(usize),
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let op = prop_oneof![
        4 => Just(Op::Alloc),
        4 => Just(Op::Free),
        1 => (1..=FRAMES).prop_map(Op::Limit),
    ];
    (0..2usize, op)
}

proptest! {
    /// F1: the limit and what is over it are the frames in use and the free ones, whatever list
    /// they are on; none is given out twice (`alloc` checks), what is free can be had, and nothing
    /// is over the limit once as many are free.
    #[test]
    fn no_frame_is_lost_or_used_twice(
        limit in 1..=FRAMES,
        ops in prop::collection::vec(op(), 1..600),
    ) {
        let frames = frames(limit);
        let mut used = Vec::new();
        for (cpu, op) in ops {
            CPU.set(cpu);
            match op {
                Op::Alloc => used.extend(frames.alloc(PageNo(7))),
                Op::Free => used.pop().into_iter().for_each(|locked| frames.free(locked)),
                Op::Limit(limit) => frames.set_limit(limit),
            }
            let all = frames.limit() + frames.over_limit();
            prop_assert!(all <= FRAMES);
            prop_assert_eq!(frames.all_free_count() + used.len(), all);
            prop_assert_eq!(frames.used_count(), used.len());
        }
        used.drain(..).for_each(|locked| frames.free(locked));
        frames.gather_free();
        prop_assert_eq!(frames.over_limit(), 0);
        used.extend((0..).map_while(|page| frames.alloc(PageNo(page))));
        prop_assert_eq!(used.len(), frames.limit());
        used.into_iter().for_each(|locked| frames.free(locked));
    }
}
