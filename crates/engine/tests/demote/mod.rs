//! Demotion from one area to another, over an address space in ordinary memory.

use crate::common::{Rig, TUNING, Touch};
use overspill_area::AreaNo;
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_device::faulty::Faults;
use overspill_engine::{Tuning, Worker};
use std::time::Duration;

const PAGES: u32 = 400;
const UPPER: AreaNo = AreaNo(0);

/// An engine whose upper area has `slots` slots, and one below it.
fn rig(slots: u32, tuning: Tuning) -> (Rig, Worker, AreaNo) {
    let rig = Rig::on_one_cpu(64, PAGES as usize, &[slots], tuning);
    let lower = rig.swapon_below(2 * PAGES, -1);
    let worker = Worker::new(&rig.engine).unwrap();
    (rig, worker, lower)
}

/// What the reclaim thread does until it is woken the next time.
fn balance(rig: &Rig, worker: &mut Worker) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            rig.engine.wake_background();
        });
        rig.engine.balance(worker, || false);
    });
}

#[test]
fn pages_leave_an_area_that_is_nearly_full_so_that_a_burst_finds_room() {
    let (rig, mut worker, lower) = rig(320, TUNING);
    rig.write(&mut worker, 0..370);
    let before = rig.used_slots(UPPER);
    assert!(before > 300 && rig.used_slots(lower) == 0, "{before}");
    balance(&rig, &mut worker);
    let (above, below) = (rig.used_slots(UPPER), rig.used_slots(lower));
    assert!((200..=280).contains(&above), "an eighth is free: {above}");
    // Some that were allocated and not needed wait in a batch.
    assert!((20..=u64::from(below)).contains(&rig.engine.stats().get(Event::pgdemote)));
    rig.write(&mut worker, 370..PAGES);
    assert!(rig.used_slots(UPPER) >= above + 30);
    rig.verify(&mut worker, PAGES);
}

#[test]
fn the_oldest_go_first() {
    let (rig, mut worker, _) = rig(320, TUNING);
    rig.write(&mut worker, 0..370);
    balance(&rig, &mut worker);
    // What is still above can be told by its loss.
    rig.plans[0].set(Faults { read_failures_per_mille: 1000, ..Faults::default() });
    let down = (0..300).filter(|&page| rig.touch(&mut worker, PageNo(page), |_| ()) == Touch::Done);
    let down: Vec<u32> = down.collect();
    // They were written in order, and so they were evicted.
    assert!(down.len() >= 20 && down.iter().all(|&page| page < 100), "{down:?}");
}

#[test]
fn nothing_is_demoted_before_the_area_is_nearly_full_or_by_older_presets() {
    let old = Tuning::of(overspill_area::Preset::Linux5_8);
    for (slots, tuning) in [(500, TUNING), (320, old)] {
        let (rig, mut worker, lower) = rig(slots, tuning);
        rig.write(&mut worker, 0..370);
        balance(&rig, &mut worker);
        assert_eq!(rig.used_slots(lower), 0, "{slots}");
        rig.write(&mut worker, 370..PAGES);
        rig.verify(&mut worker, PAGES);
    }
}
