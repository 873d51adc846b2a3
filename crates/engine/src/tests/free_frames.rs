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

fn frames(leased: usize) -> Frames {
    Frames::with_own_lists(FRAMES, leased, BATCH, Cpus { count: 2, current: || CPU.get() })
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
fn a_process_with_few_frames_has_none_on_lists_of_cpus() {
    let frames = frames(100);
    let locked = frames.alloc(PageNo(0)).unwrap();
    assert_eq!(frames.free_count(), 99);
    frames.free(locked);
    assert_eq!(frames.free_count(), 100);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc,
    Free,
    Lease(usize),
    GiveBack(usize),
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let op = prop_oneof![
        4 => Just(Op::Alloc),
        4 => Just(Op::Free),
        1 => (1..200usize).prop_map(Op::Lease),
        1 => (0..400usize).prop_map(Op::GiveBack),
    ];
    (0..2usize, op)
}

proptest! {
    /// Leased frames are those in use and the free ones, whatever list they are on; none is given
    /// out twice (`alloc` checks), and what is free can be had.
    #[test]
    fn no_frame_is_lost_or_used_twice(
        leased in 0..=FRAMES,
        ops in prop::collection::vec(op(), 1..600),
    ) {
        let frames = frames(leased);
        let mut used = Vec::new();
        for (cpu, op) in ops {
            CPU.set(cpu);
            match op {
                Op::Alloc => used.extend(frames.alloc(PageNo(7))),
                Op::Free => used.pop().into_iter().for_each(|locked| frames.free(locked)),
                Op::Lease(more) => frames.add_leased(more.min(FRAMES - frames.leased())),
                Op::GiveBack(keep) => {
                    let free = frames.all_free_count();
                    prop_assert_eq!(frames.take_leased(keep, 50), free.saturating_sub(keep).min(50));
                }
            }
            prop_assert_eq!(frames.all_free_count() + used.len(), frames.leased());
        }
        frames.gather_free();
        used.extend((0..).map_while(|page| frames.alloc(PageNo(page))));
        prop_assert_eq!(used.len(), frames.leased());
        used.into_iter().for_each(|locked| frames.free(locked));
    }
}
