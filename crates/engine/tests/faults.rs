//! Whole engines of every tuning over devices that fail, stall, lie and vanish: one episode per
//! seed. `OVERSPILL_SEED=n` replays one, `OVERSPILL_SEEDS=n` runs the first n; `make faults` runs
//! 10 000.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use arbitrary::{Arbitrary, Unstructured};
use common::chaos::Script;
use common::episodes::{Replay, seeds};
use common::{Rig, TUNING, Touch};
use overspill_base::stats::Event;
use overspill_base::{PageNo, Slot};
use overspill_device::faulty::Faults;
use overspill_engine::{Tuning, Worker};
use std::collections::HashMap;

/// Episodes that `make test` runs.
const SEEDS: u64 = 1000;
/// Bytes that an episode is decoded from; an operation takes two to four.
const BYTES: usize = 700;

fn script(seed: u64) -> Script {
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes: Vec<u8> = (0..BYTES).map(|_| random.u8(..)).collect();
    Script::arbitrary(&mut Unstructured::new(&bytes)).expect("there are bytes enough for a setup")
}

#[test]
fn no_fault_of_a_device_costs_more_than_the_pages_it_hits() {
    let seeds = seeds(SEEDS);
    let mut happened: HashMap<&str, u64> = HashMap::new();
    for seed in seeds.clone() {
        let replay = Replay(seed);
        let stats = script(seed).play();
        Event::ALL.iter().for_each(|&(event, name)| {
            *happened.entry(name).or_default() += stats.get(event);
        });
        drop(replay);
    }
    // The episodes must cause all of these.
    let wanted = [
        "pswpin",
        "pswpout",
        "swpout_zero",
        "swpout_clean",
        "swap_cache_hit",
        "swap_ra",
        "pgrotated",
        "workingset_refault",
        "evict_pinned",
        "evict_refused",
        "write_errors",
        "pages_poisoned",
        "pgdiscard",
    ];
    let absent = wanted.iter().filter(|name| happened[*name] == 0);
    assert!(seeds.end - seeds.start < 100 || absent.count() == 0, "{happened:?}");
    println!("{happened:?}");
}

#[test]
fn a_seed_plays_the_same_game_again() {
    assert_eq!(format!("{:?}", script(1)), format!("{:?}", script(1)));
    assert_ne!(format!("{:?}", script(1)), format!("{:?}", script(2)));
}

/// The poison moves with the page: the old address is clean.
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

/// A bad slot fails every request it is part of. The other slots are read again one by one.
#[test]
fn a_bad_slot_in_the_middle_of_a_window_costs_one_page() {
    let rig = Rig::new(64, 128, &[256], TUNING);
    let mut worker = Worker::new(&rig.engine).unwrap();
    let mut read = |unreadable| {
        rig.plans[0].set(Faults { unreadable, ..Faults::default() });
        let mut lost = 0;
        for page in 0..128 {
            if rig.touch(&mut worker, PageNo(page), |content| content.fill(1)) == Touch::Poisoned {
                lost += 1;
                // Its slot is free now, and could become another page's that is read after this.
                rig.plans[0].set(Faults::default());
            }
        }
        lost
    };
    assert_eq!(read(None), 0);
    let ahead = rig.engine.stats().get(Event::swap_ra);
    assert_eq!(read(Some(Slot(20))), 1);
    assert!(rig.engine.stats().get(Event::swap_ra) > ahead, "no window was read");
    assert_eq!(rig.engine.stats().get(Event::pages_poisoned), 1);
}
