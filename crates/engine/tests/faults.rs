//! Whole engines of every tuning over devices that fail, stall, lie and vanish: one episode per
//! seed. `OVERSPILL_SEED=n` replays one, `OVERSPILL_SEEDS=n` runs the first n; `make faults` runs
//! 10 000.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use arbitrary::{Arbitrary, Unstructured};
use common::chaos::Script;
use common::episodes::Replay;
use common::{Rig, TUNING, Touch};
use overspill_base::stats::Event;
use overspill_base::{PageNo, Slot};
use overspill_device::faulty::Faults;
use overspill_engine::{Tuning, Worker};
use overspill_mutate::seeds;
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
        "pgdemote",
        "pgadopt",
        "pgshare",
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

/// Writes 128 pages and reads them in order, one slot being bad; returns those that are lost, and
/// how many were read ahead.
fn lost_to_a_bad_slot(tuning: Tuning) -> (Vec<u32>, u64) {
    let rig = Rig::on_one_cpu(64, 128, &[256], tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    for page in 0..128 {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(1));
    }
    rig.plans[0].set(Faults { unreadable: Some(Slot(20)), ..Faults::default() });
    let mut lost = Vec::new();
    for page in 0..128 {
        if rig.touch(&mut worker, PageNo(page), |content| content.fill(1)) == Touch::Poisoned {
            lost.push(page);
            // Its slot is free now, and could become another page's that is read after this.
            rig.plans[0].set(Faults::default());
        }
    }
    assert_eq!(rig.engine.stats().get(Event::pages_poisoned), lost.len() as u64);
    (lost, rig.engine.stats().get(Event::swap_ra))
}

/// A bad slot fails every request it is part of. The other slots are read again one by one: what is
/// lost is the page that is lost if pages are only ever read one by one.
#[test]
fn a_bad_slot_in_the_middle_of_a_window_costs_its_page() {
    let (singly, ahead) = lost_to_a_bad_slot(Tuning { readahead_max_pages: 1, ..TUNING });
    assert_eq!((singly.len(), ahead), (1, 0));
    let (in_windows, ahead) = lost_to_a_bad_slot(TUNING);
    assert_eq!(in_windows, singly);
    assert!(ahead > 0, "no window was read");
}
