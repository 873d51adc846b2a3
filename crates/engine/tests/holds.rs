//! Pages that a thread holds for a system call.

#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use common::swapped_out::{read, swapped_out, write};
use overspill_base::PageNo;
use overspill_engine::{RANGES_MAX, Tuning};

/// Neither as a victim nor as the neighbour of one.
#[test]
fn a_held_page_amid_victims_stays() {
    let (rig, mut worker) = swapped_out(Tuning { reclaim_batch_pages: 1, ..Tuning::default() });
    let holder = rig.engine.become_holder().unwrap();
    (0..12).for_each(|page| read(&rig, &mut worker, page));
    assert!(rig.engine.hold(holder, &[PageNo(5)..PageNo(6)]));
    for round in 0..20 {
        (0..12).filter(|&page| page != 5).for_each(|page| read(&rig, &mut worker, page));
        while rig.engine.is_missing(PageNo(5)) {
            read(&rig, &mut worker, 5);
        }
        // Before the page in front of it, and after.
        let (first, second) = if round % 2 == 0 { (4, 5) } else { (5, 4) };
        rig.engine.make_cold(PageNo(first), 1);
        rig.engine.make_cold(PageNo(second), 1);
        (64..320).for_each(|page| write(&rig, &mut worker, page));
        assert!(rig.engine.is_resident(PageNo(5)));
    }
    rig.engine.end_holder(holder);
}

#[test]
fn what_is_held_stays_and_what_is_let_go_may_leave() {
    let (rig, mut worker) = swapped_out(Tuning::default());
    let holder = rig.engine.become_holder().unwrap();
    assert!(rig.engine.hold(holder, &[PageNo(3)..PageNo(6), PageNo(6)..PageNo(7)]));
    let mut touched = 0;
    for page in 3..7 {
        while rig.engine.is_missing(PageNo(page)) {
            read(&rig, &mut worker, page);
            touched += 1;
        }
    }
    assert!((1..=4).contains(&touched), "{touched}");
    (64..320).for_each(|page| write(&rig, &mut worker, page));
    assert!((3..7).all(|page| rig.engine.is_resident(PageNo(page))));
    // Another's hold is not touched by this one's end.
    let other = rig.engine.become_holder().unwrap();
    assert_ne!(other, holder);
    assert!(rig.engine.hold(other, &[PageNo(3)..PageNo(5)]));
    assert!(!rig.engine.is_missing(PageNo(3)) && !rig.engine.is_missing(PageNo(4)));
    assert!(!rig.engine.hold(other, &vec![PageNo(1)..PageNo(2); RANGES_MAX + 1]));
    rig.engine.let_go(holder);
    rig.engine.make_cold(PageNo(3), 4);
    (64..320).for_each(|page| write(&rig, &mut worker, page));
    let resident = |page| rig.engine.is_resident(PageNo(page));
    assert_eq!([3, 4, 5, 6].map(resident), [true, true, false, false]);
    rig.engine.end_holder(other);
    rig.engine.end_holder(holder);
    rig.engine.check().unwrap();
}
