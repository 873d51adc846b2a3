//! Whole engines of every tuning over devices that fail, stall, lie and vanish: one game per seed.
//! `OVERSPILL_SEED=n` replays one, `OVERSPILL_SEEDS=n` plays the first n; `make faults` plays 10 000.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use arbitrary::{Arbitrary, Unstructured};
use common::chaos::Script;
use common::{Rig, TUNING, Touch};
use overspill_base::PageNo;
use overspill_device::faulty::Faults;
use overspill_engine::{Tuning, Worker};
use std::ops::Range;

/// Games that `make test` plays.
const SEEDS: u64 = 1000;
/// Bytes a game is decoded from; an operation takes two to four of them.
const BYTES: usize = 700;

fn script(seed: u64) -> Script {
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes: Vec<u8> = (0..BYTES).map(|_| random.u8(..)).collect();
    Script::arbitrary(&mut Unstructured::new(&bytes)).expect("there are bytes enough for a setup")
}

fn seeds() -> Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
    };
    match (number("OVERSPILL_SEED"), number("OVERSPILL_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SEEDS),
    }
}

/// Says how to see a failure again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with OVERSPILL_SEED={}", self.0);
        }
    }
}

#[test]
fn no_fault_of_a_device_costs_more_than_the_pages_it_hits() {
    for seed in seeds() {
        let replay = Replay(seed);
        script(seed).play();
        drop(replay);
    }
}

#[test]
fn a_seed_plays_the_same_game_again() {
    assert_eq!(format!("{:?}", script(1)), format!("{:?}", script(1)));
    assert_ne!(format!("{:?}", script(1)), format!("{:?}", script(2)));
}

/// The poison goes with the page: what is mapped at the old address later is as good as new.
#[test]
fn a_lost_page_that_is_moved_leaves_no_poison_behind() {
    let rig = Rig::new(8, 64, &[128], Tuning { readahead_max_pages: 1, ..TUNING });
    let mut worker = Worker::new(&rig.engine).unwrap();
    for page in 0..48 {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(1));
    }
    rig.plans[0].set(Faults { read_failures_per_mille: 1000, ..Faults::default() });
    assert_eq!(rig.touch(&mut worker, PageNo(0), |_| ()), Touch::Poisoned);
    rig.plans[0].set(Faults::default());
    rig.engine.transfer(PageNo(0), PageNo(50), 1);
    rig.engine.discard(PageNo(0), 1);
    assert_eq!(rig.touch(&mut worker, PageNo(50), |_| ()), Touch::Poisoned);
    assert_eq!(rig.touch(&mut worker, PageNo(0), |content| assert_eq!(content[0], 0)), Touch::Done);
}
