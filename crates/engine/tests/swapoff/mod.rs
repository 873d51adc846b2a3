//! Swapon and swapoff, over an address space in ordinary memory.

use crate::common::{Rig, TUNING, Touch};
use overspill_area::{AreaNo, Preset};
use overspill_base::PageNo;
use overspill_base::stats::Event;
use overspill_base::sync::Arc;
use overspill_device::faulty::Faults;
use overspill_engine::{SwapoffError, Tuning, Worker};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const FIRST: AreaNo = AreaNo(0);

/// Makes an engine of `frames` frames, with `pages` pages written in order.
fn written(frames: usize, pages: u32, slots: &[u32], tuning: Tuning) -> (Rig, Worker) {
    let rig = Rig::on_one_cpu(frames, pages as usize, slots, tuning);
    let mut worker = Worker::new(&rig.engine).unwrap();
    rig.write(&mut worker, 0..pages);
    (rig, worker)
}

#[test]
fn pages_move_on_to_the_other_area_and_the_device_closes() {
    let by_slot = Tuning { preset: Preset::Linux4_8, ..TUNING };
    for tuning in [TUNING, by_slot] {
        let (rig, mut worker) = written(24, 200, &[512], tuning);
        let second = rig.swapon(512).unwrap();
        assert!(rig.used_slots(FIRST) > 150 && rig.used_slots(second) == 0);
        let waited_ns = rig.engine.stats().fault_latency_sum_ns();
        assert_eq!(rig.engine.swapoff(&mut worker, FIRST), Ok(()));
        assert_eq!(rig.engine.stats().fault_latency_sum_ns(), waited_ns, "nobody waited");
        assert_eq!(rig.used_slots(FIRST), 0);
        let names: Vec<AreaNo> = rig.engine.swaps().iter().map(|swap| swap.area).collect();
        assert_eq!(names, [second]);
        // The device owned the other half of the plan.
        assert_eq!(Arc::strong_count(&rig.plans[0]), 1, "the device is still open");
        rig.verify(&mut worker, 200);
    }
}

/// As for areas that several processes share: nobody waits for the end.
#[test]
fn the_reclaim_thread_empties_an_area_beside_the_program() {
    let (rig, mut worker) = written(24, 200, &[512], TUNING);
    let second = rig.swapon(512).unwrap();
    rig.engine.start_swapoff(FIRST);
    assert!(!rig.engine.has_left(FIRST));
    // What else it is wanted for comes first.
    rig.engine.balance(&mut worker, || true);
    assert!(rig.used_slots(FIRST) > 150);
    let mut rounds = 0;
    while !rig.engine.has_left(FIRST) {
        rig.engine.balance(&mut worker, || false);
        rig.write(&mut worker, rounds % 200..rounds % 200 + 1);
        rounds += 1;
        assert!(rounds < 100, "{} slots are left", rig.used_slots(FIRST));
    }
    assert_eq!(rig.used_slots(FIRST), 0);
    assert!(rig.used_slots(second) > 150);
    worker.finish(&rig.engine);
    assert_eq!(Arc::strong_count(&rig.plans[0]), 1, "the device is still open");
    rig.verify(&mut worker, 200);
}

#[test]
fn pages_that_fit_come_back_to_memory() {
    let (rig, mut worker) = written(128, 160, &[512], TUNING);
    rig.engine.discard(PageNo(80), 80);
    // Pages that are mapped and have copies on the area, and others that are on it only.
    rig.verify(&mut worker, 40);
    assert!((40..80).any(|page| !rig.engine.is_resident(PageNo(page))));
    assert_eq!(rig.engine.swapoff(&mut worker, FIRST), Ok(()));
    assert!(rig.engine.swaps().is_empty());
    assert!((0..80).all(|page| rig.engine.is_resident(PageNo(page))));
    rig.verify(&mut worker, 80);
}

#[test]
fn without_room_nothing_is_tried() {
    let (rig, mut worker) = written(24, 100, &[256, 16], TUNING);
    let reads = rig.engine.stats().get(Event::pswpin);
    let error = rig.engine.swapoff(&mut worker, FIRST).unwrap_err();
    assert!(matches!(error, SwapoffError::NoRoom { pages: 50.., .. }), "{error}");
    assert_eq!(rig.engine.stats().get(Event::pswpin), reads);
    rig.verify(&mut worker, 100);
}

/// The other area counts as room until a write to it fails.
#[test]
fn when_memory_ends_the_area_is_in_use_as_before() {
    let (rig, mut worker) = written(24, 100, &[256], TUNING);
    let broken = Faults { fail_writes_from: Some(0), ..Faults::default() };
    rig.swapon_with(256, broken).unwrap();
    let error = rig.engine.swapoff(&mut worker, FIRST).unwrap_err();
    assert!(matches!(error, SwapoffError::NoMemory { slots: 40.., .. }), "{error}");
    assert_eq!(rig.engine.swaps().len(), 2);
    let written_before = rig.engine.stats().get(Event::pswpout);
    rig.verify(&mut worker, 100);
    for page in 0..100 {
        rig.touch(&mut worker, PageNo(page), |content| content.fill(page as u8 | 1));
    }
    assert!(rig.engine.stats().get(Event::pswpout) > written_before, "nothing is written to it");
}

#[test]
fn pages_that_cannot_be_read_are_lost_and_the_others_not() {
    let (rig, mut worker) = written(24, 100, &[256], TUNING);
    rig.swapon(256).unwrap();
    rig.plans[0].set(Faults { seed: 3, read_failures_per_mille: 200, ..Faults::default() });
    assert_eq!(rig.engine.swapoff(&mut worker, FIRST), Ok(()));
    let lost = rig.engine.stats().get(Event::pages_poisoned);
    assert!((1..60).contains(&lost), "{lost} lost");
    assert!(rig.engine.last_error().is_some_and(|line| line.contains("is lost")));
    let poisoned = (0..100).filter(|&page| {
        rig.touch(&mut worker, PageNo(page), |content| assert_eq!(content[0], page as u8 | 1))
            == Touch::Poisoned
    });
    assert_eq!(poisoned.count() as u64, lost);
}

#[test]
fn a_device_that_has_vanished_can_be_given_up() {
    let (rig, mut worker) = written(24, 100, &[256], TUNING);
    rig.swapon(256).unwrap();
    let gone = Faults {
        read_failures_per_mille: 1000,
        write_failures_per_mille: 1000,
        ..Faults::default()
    };
    rig.plans[0].set(gone);
    assert_eq!(rig.engine.swapoff(&mut worker, FIRST), Ok(()));
    assert_eq!(rig.used_slots(FIRST), 0);
    assert_eq!(rig.engine.check(), Ok(()));
}

#[test]
fn an_area_is_given_up_once_and_its_number_is_not_used_again() {
    let (rig, mut worker) = written(24, 8, &[64, 64], TUNING);
    assert_eq!(rig.engine.swapoff(&mut worker, FIRST), Ok(()));
    assert_eq!(rig.engine.swapoff(&mut worker, FIRST), Err(SwapoffError::NotOn(0)));
    assert_eq!(rig.engine.swapoff(&mut worker, AreaNo(9)), Err(SwapoffError::NotOn(9)));
    assert_eq!(rig.swapon(64).unwrap(), AreaNo(2));
    let last = (0..).find_map(|_| rig.swapon(64).err()).unwrap();
    assert!(last.to_string().contains("at most 32"), "{last}");
    rig.verify(&mut worker, 8);
}

/// With early reclaim, copies of mapped pages are freed once more than half of the slots are used;
/// without, when an allocation finds nothing else.
#[test]
fn copies_are_given_up_from_half_full_on() {
    let early = Tuning { preset: Preset::Linux5_8, ..TUNING };
    for (slots, tuning, none) in [(1024, early, false), (150, early, true), (150, TUNING, false)] {
        let (rig, mut worker) = written(24, 100, &[slots], tuning);
        rig.verify(&mut worker, 100);
        rig.engine.drain();
        let mapped = (0..100).filter(|&page| rig.engine.is_resident(PageNo(page))).count();
        let copies = rig.used_slots(FIRST) as usize - (100 - mapped);
        assert_eq!(copies == 0, none, "{copies} copies of {mapped} mapped pages");
    }
}

/// Two threads increment bytes during swapon and swapoff. No increment may be lost.
#[test]
fn faults_go_on_while_areas_come_and_go() {
    const PAGES: u32 = 96;
    const TOUCHES: u32 = 6000;
    let rig = Rig::new(24, PAGES as usize, &[128], TUNING);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let touchers = [0usize, 1].map(|thread| {
            let rig = &rig;
            scope.spawn(move || {
                let mut worker = Worker::new(&rig.engine).unwrap();
                let mut random = thread as u32;
                for _ in 0..TOUCHES {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let page = PageNo((random >> 8) % PAGES);
                    let touched = rig.touch(&mut worker, page, |content| {
                        content[thread] = content[thread].wrapping_add(1);
                    });
                    assert_eq!(touched, Touch::Done);
                }
                worker.finish(&rig.engine);
            })
        });
        let (rig, stop) = (&rig, &stop);
        let changer = scope.spawn(move || {
            let mut worker = Worker::new(&rig.engine).unwrap();
            let mut given_up = 0;
            while !stop.load(Relaxed) && rig.swapon(128).is_ok() {
                let oldest = rig.engine.swaps()[0].area;
                given_up += usize::from(rig.engine.swapoff(&mut worker, oldest).is_ok());
                worker.finish(&rig.engine);
            }
            given_up
        });
        touchers.into_iter().for_each(|toucher| toucher.join().unwrap());
        stop.store(true, Relaxed);
        assert!(changer.join().unwrap() > 3);
    });
    assert_eq!(rig.engine.check(), Ok(()));
    let mut worker = Worker::new(&rig.engine).unwrap();
    let mut sums = [0u32; 2];
    for page in 0..PAGES {
        rig.touch(&mut worker, PageNo(page), |content| {
            sums.iter_mut().zip(content.iter()).for_each(|(sum, &byte)| *sum += u32::from(byte));
        });
    }
    // 6000 touches over 96 pages stay far below 256 each.
    assert_eq!(sums, [TOUCHES; 2]);
}
