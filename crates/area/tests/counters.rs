//! Exact numbers of lock acquisitions, computed by hand. They are counted for the whole process, so
//! this program has one test.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use common::single;
use overspill_area::{AreaConfig, AreaTuning, Preset, SwapAreas, SwapEntry};
use overspill_base::sync::{LockClass, count_locks, lock_table};

/// Slots allocated or freed, one per call.
const SLOTS: usize = 256;

/// Counts acquisitions of locks of `class` while `f` runs.
fn locks(class: LockClass, f: impl FnOnce()) -> u64 {
    let count = || lock_table().into_iter().find(|(of, _)| *of == class).unwrap().1.acquisitions;
    let before = count();
    count_locks(true);
    f();
    count_locks(false);
    count() - before
}

fn areas(preset: Preset) -> SwapAreas {
    let config = AreaConfig { tuning: AreaTuning::of(preset), cpus: 1, ..AreaConfig::native() };
    single(config, 1 << 14, &[])
}

/// Counts acquisitions of `class` for `SLOTS` allocations of one slot, and for as many frees.
fn cost(preset: Preset, class: LockClass) -> (u64, u64) {
    let areas = areas(preset);
    let mut held: Vec<SwapEntry> = Vec::new();
    let allocated = locks(class, || {
        (0..SLOTS).for_each(|_| assert_eq!(areas.alloc(0, 1, &(), &mut held), 1));
    });
    let freed = locks(class, || held.drain(..).for_each(|entry| areas.free(0, entry)));
    (allocated, freed)
}

#[test]
fn batches_take_a_lock_once_where_it_was_taken_for_every_slot() {
    let (slots, batches) = (SLOTS as u64, SLOTS as u64 / 64);
    // One hold of the area's lock per slot.
    assert_eq!(cost(Preset::Linux4_8, LockClass::Area), (slots, slots));
    assert_eq!(cost(Preset::Linux4_8, LockClass::Cluster), (0, 0));
    // 64 slots per visit, and the word of each under its cluster's lock.
    assert_eq!(cost(Preset::Linux4_11, LockClass::Area), (batches, batches));
    assert_eq!(cost(Preset::Linux4_11, LockClass::Cluster), (slots, slots));
    // Lists: allocating or freeing a batch is one hold of a cluster's lock, as all 256 slots are in
    // one cluster. Listing and picking the fresh cluster takes it twice more.
    assert_eq!(cost(Preset::Modern, LockClass::CpuCluster), (batches, 0));
    assert_eq!(cost(Preset::Modern, LockClass::Cluster), (batches + 2, batches));
    // The lists' lock is taken when a cluster changes lists, not per slot.
    let (allocated, freed) = cost(Preset::Modern, LockClass::ClusterLists);
    assert!(allocated <= 12 && freed == 0, "{allocated} and {freed}");
}
