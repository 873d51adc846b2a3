//! Model-checked interleavings of the slot cache. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use overspill_area::{AreaConfig, AreaNo, AreaTables, AreaTuning, MemberNo, Preset, SwapArea};
use overspill_base::Slot;
use overspill_base::sync::Arc;

const CONFIG: AreaConfig = AreaConfig {
    tuning: AreaTuning {
        cluster_slots: 2,
        slot_batch: 1,
        free_batch: 1,
        ..AreaTuning::of(Preset::Modern)
    },
    cpus: 2,
    rotational: false,
    discard: false,
};

fn model(test: impl Fn() + Sync + Send + 'static) {
    // Two preemptions reach every pair of critical sections here; three take minutes, not seconds.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(test);
}

fn area(members: usize) -> (AreaTables, SwapArea) {
    let tables = AreaTables::on_heap(2, CONFIG, members);
    let area = SwapArea::new(AreaNo(0), tables.clone(), CONFIG, MemberNo(0));
    area.set_capacity_slots(2);
    (tables, area)
}

#[test]
fn refill_against_free() {
    model(|| {
        let (_, area) = area(1);
        let area = Arc::new(area);
        let mut mine = Vec::new();
        area.alloc(0, 1, &mut mine);
        let other = {
            let area = area.clone();
            loom::thread::spawn(move || {
                let mut got = Vec::new();
                area.alloc(1, 1, &mut got);
                got
            })
        };
        area.free(0, mine[0]);
        let theirs = other.join().unwrap();
        // There is a second slot, so the other CPU always gets one, whoever wins.
        assert_eq!(theirs.len(), 1);
        area.drain();
        area.check().unwrap();
        assert_eq!(area.count_used_slots(), 1);
    });
}

#[test]
fn two_refills_never_share_a_slot() {
    model(|| {
        let (_, area) = area(1);
        let area = Arc::new(area);
        let other = {
            let area = area.clone();
            loom::thread::spawn(move || {
                let mut got = Vec::new();
                area.alloc(1, 1, &mut got);
                got
            })
        };
        let mut mine = Vec::new();
        area.alloc(0, 1, &mut mine);
        let theirs = other.join().unwrap();
        assert!(mine.iter().all(|slot| !theirs.contains(slot)));
        assert_eq!(mine.len() + theirs.len(), 2);
    });
}

#[test]
fn the_last_of_two_holders_frees() {
    model(|| {
        let (tables, parent) = area(2);
        let mut slots = Vec::new();
        parent.alloc(0, 1, &mut slots);
        let slot: Slot = slots[0];
        parent.drain();
        parent.share_with(MemberNo(1)).unwrap();
        let child = SwapArea::new(AreaNo(0), tables, CONFIG, MemberNo(1));
        let other = loom::thread::spawn(move || child.free(0, slot));
        parent.free(0, slot);
        other.join().unwrap();
        assert_eq!(parent.slot_map().holders(slot), Some(0));
        let mut all = Vec::new();
        assert_eq!(parent.alloc(0, 2, &mut all), 2);
    });
}
