//! Engines that lease their frames from one budget.

#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use common::{Rig, Touch};
use overspill_area::MemberNo;
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_engine::{Asked, FrameBudget, RefaultCounts, Worker};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FRAMES: usize = 400;
const PAGES: usize = 1000;

/// Frames of two, each of whom asks the other.
#[derive(Debug, Default)]
struct Pot {
    free: Mutex<usize>,
    asked: [AtomicUsize; 2],
    declined: AtomicUsize,
}

#[derive(Debug)]
struct Half {
    pot: Arc<Pot>,
    me: usize,
}

impl FrameBudget for Half {
    fn lease(&self, want: usize, most: usize) -> usize {
        let mut free = self.pot.free.lock().unwrap();
        let taken = want.min(most).min(*free);
        *free -= taken;
        taken
    }

    fn limit(&self) -> usize {
        FRAMES
    }

    fn give_back(&self, most: usize) -> usize {
        let asked = &self.pot.asked[self.me];
        asked.store(asked.load(Relaxed).saturating_sub(most), Relaxed);
        *self.pot.free.lock().unwrap() += most;
        most
    }

    fn asked(&self) -> usize {
        self.pot.asked[self.me].load(Relaxed)
    }

    fn decline(&self) {
        self.pot.asked[self.me].store(0, Relaxed);
        self.pot.declined.fetch_add(1, Relaxed);
    }

    fn ask(&self, frames: usize, _: &RefaultCounts, _: bool) -> Asked {
        self.pot.asked[1 - self.me].fetch_add(frames, Relaxed);
        Asked::One
    }

    fn become_member(&self, _: MemberNo, _: usize, most: usize) -> usize {
        most.min(3)
    }
}

struct Two {
    pot: Arc<Pot>,
    rigs: [(Rig, Worker); 2],
}

impl Two {
    fn new() -> Self {
        let pot = Arc::new(Pot { free: Mutex::new(FRAMES), ..Pot::default() });
        let rig = |me| {
            let rig = Rig::leasing(FRAMES, PAGES, Arc::new(Half { pot: pot.clone(), me }));
            let worker = Worker::new(&rig.engine).unwrap();
            (rig, worker)
        };
        let rigs = [rig(0), rig(1)];
        Self { pot, rigs }
    }

    /// Writes to pages, or finds in them what was written.
    fn touch(&mut self, who: usize, pages: std::ops::Range<u32>, write: bool) {
        let (rig, worker) = &mut self.rigs[who];
        for page in pages {
            let content = (page * 7 + who as u32) as u8;
            let touched = rig.touch(worker, PageNo(page), |bytes| {
                if write {
                    bytes[9] = content;
                }
                assert_eq!(bytes[9], content, "page {page} of {who}");
            });
            assert_eq!(touched, Touch::Done);
        }
    }

    fn leased(&self, who: usize) -> usize {
        self.rigs[who].0.engine.leased()
    }

    fn check(&self) {
        let free = *self.pot.free.lock().unwrap();
        assert_eq!(self.leased(0) + self.leased(1) + free, FRAMES);
        self.rigs.iter().for_each(|(rig, _)| rig.engine.check().unwrap());
    }

    /// Gives what the reclaim thread of one would give, and sleeps no more than that if there is
    /// nothing to give: who wants more asks once in a millisecond.
    fn balance(&mut self, who: usize) {
        let (rig, worker) = &mut self.rigs[who];
        rig.engine.balance(worker, || {
            rig.engine.wake_background();
            false
        });
    }
}

#[test]
fn a_process_leases_what_it_uses_and_others_the_rest() {
    let mut two = Two::new();
    two.touch(0, 0..100, true);
    assert!((100..150).contains(&two.leased(0)), "{}", two.leased(0));
    two.touch(1, 0..500, true);
    assert_eq!(two.leased(0) + two.leased(1), FRAMES);
    two.touch(0, 0..100, false);
    two.touch(1, 0..500, false);
    two.check();
}

#[test]
fn room_is_leased_before_anything_is_evicted() {
    let mut two = Two::new();
    two.touch(0, 0..100, true);
    let leased = two.leased(0);
    let (rig, worker) = &mut two.rigs[0];
    rig.engine.make_room(worker, 64);
    assert_eq!(rig.engine.stats().get(Event::pgsteal_direct), 0);
    assert!(two.leased(0) > leased, "{leased}");
    two.check();
}

#[test]
fn one_that_is_asked_gives_and_the_one_that_asked_grows() {
    let mut two = Two::new();
    two.touch(0, 0..380, true);
    two.touch(1, 0..500, true);
    let before = two.leased(1);
    let begun = Instant::now();
    while two.leased(1) <= 2 * before {
        two.balance(0);
        two.touch(1, 0..500, false);
        assert!(begun.elapsed() < Duration::from_secs(60), "{before}, then {}", two.leased(1));
    }
    two.balance(0);
    assert_eq!(two.pot.asked[0].load(Relaxed), 0);
    two.touch(0, 0..380, false);
    two.check();
}

#[test]
fn what_pages_have_left_goes_back() {
    let mut two = Two::new();
    two.touch(0, 0..380, true);
    two.rigs[0].0.engine.discard(PageNo(0), 380);
    assert!(two.leased(0) < 150, "{}", two.leased(0));
    two.touch(1, 0..300, true);
    assert!(two.leased(1) > 200, "{}", two.leased(1));
    two.check();
}

#[test]
fn one_whose_pages_are_all_locked_declines() {
    let mut two = Two::new();
    two.touch(0, 0..300, true);
    (0..300).for_each(|page| assert!(two.rigs[0].0.engine.pin(PageNo(page))));
    two.pot.asked[0].store(350, Relaxed);
    two.balance(0);
    assert_eq!((two.pot.asked[0].load(Relaxed), two.pot.declined.load(Relaxed)), (0, 1));
    assert!(two.leased(0) >= 300);
    two.check();
}

#[test]
fn a_child_has_what_its_pages_have() {
    let mut two = Two::new();
    two.touch(0, 0..100, true);
    let engine = &two.rigs[0].0.engine;
    let used = engine.leased() - engine.status().free_frames;
    engine.become_member(MemberNo(0));
    let engine = &two.rigs[0].0.engine;
    assert_eq!(
        (engine.leased() - engine.status().free_frames, engine.status().free_frames),
        (used, 3)
    );
    two.rigs[0].0.engine.check().unwrap();
}
