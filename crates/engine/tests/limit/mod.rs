//! A limit that changes while pages are in use.

use crate::common::{Rig, TUNING};
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_engine::Worker;

const FRAMES: usize = 400;
const PAGES: u32 = 1000;

fn rig() -> (Rig, Worker) {
    let rig = Rig::on_one_cpu(FRAMES, PAGES as usize, &[4 * PAGES], TUNING);
    let worker = Worker::new(&rig.engine).unwrap();
    (rig, worker)
}

/// What the reclaim thread does, without a sleep if there is nothing to do.
fn balance(rig: &Rig, worker: &mut Worker) {
    rig.engine.balance(worker, || {
        rig.engine.wake_background();
        false
    });
}

#[test]
fn a_lowered_limit_is_reached_in_the_background() {
    let (rig, mut worker) = rig();
    rig.write(&mut worker, 0..380);
    rig.engine.set_limit(100);
    balance(&rig, &mut worker);
    assert!(rig.engine.used_frames() <= 100, "{}", rig.engine.used_frames());
    assert_eq!(rig.engine.status().frames, 100);
    rig.verify(&mut worker, 380);
    assert!(rig.engine.used_frames() <= 100, "{}", rig.engine.used_frames());
}

/// Without a thread that reclaims, faults do it as far as they need: none waits for all of it.
#[test]
fn faults_go_on_while_much_is_over_a_lowered_limit() {
    let (rig, mut worker) = rig();
    rig.write(&mut worker, 0..380);
    rig.engine.set_limit(100);
    rig.write(&mut worker, 380..388);
    let used = rig.engine.used_frames();
    assert!((150..380).contains(&used), "{used}");
    rig.write(&mut worker, 388..700);
    assert!(rig.engine.used_frames() < used, "{} after {used}", rig.engine.used_frames());
    rig.verify(&mut worker, 700);
}

#[test]
fn what_is_locked_stays_until_it_may_go() {
    let (rig, mut worker) = rig();
    rig.write(&mut worker, 0..300);
    (0..300).for_each(|page| assert!(rig.engine.pin(PageNo(page))));
    rig.engine.set_limit(100);
    balance(&rig, &mut worker);
    assert_eq!(rig.engine.used_frames(), 300);
    (0..300).for_each(|page| rig.engine.unpin(PageNo(page)));
    balance(&rig, &mut worker);
    assert!(rig.engine.used_frames() <= 100, "{}", rig.engine.used_frames());
    rig.verify(&mut worker, 300);
}

#[test]
fn a_raised_limit_is_used_before_anything_is_evicted() {
    let (rig, mut worker) = rig();
    rig.engine.set_limit(100);
    rig.write(&mut worker, 0..90);
    rig.engine.set_limit(FRAMES);
    rig.write(&mut worker, 90..380);
    assert!(rig.engine.used_frames() >= 380, "{}", rig.engine.used_frames());
    assert_eq!(rig.engine.stats().get(Event::pgscan_direct), 0);
    rig.verify(&mut worker, 380);
}
