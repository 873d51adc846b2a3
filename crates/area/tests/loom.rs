//! Model-checked interleavings of allocation. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use overspill_area::{
    AreaConfig, AreaNo, AreaTuning, Preset, SlotFreeNotify, SlotTable, SwapArea, SwapAreas,
    SwapEntry,
};
use overspill_base::Slot;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicU32};

/// Returns a configuration of clusters of two slots, for two CPUs without caches.
fn small(preset: Preset) -> AreaConfig {
    let tuning = AreaTuning {
        cluster_slots: 2,
        trunk_slots: 2,
        slot_batch: 1,
        free_batch: 1,
        slot_cache: false,
        ..AreaTuning::of(preset)
    };
    AreaConfig { tuning, cpus: 2, rotational: false, discard: false }
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    // Three preemptions reach every pair of critical sections here.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    let explored = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = explored.clone();
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        test();
    });
    let explored = explored.load(std::sync::atomic::Ordering::Relaxed);
    assert!(explored > 1, "only {explored} interleavings: is anything under the model checker?");
    println!("{explored} interleavings");
}

fn area(number: u8, config: AreaConfig, slots: u32) -> SwapArea {
    let area = SwapArea::new(AreaNo(number), SlotTable::on_heap(slots, config, &[]), config);
    area.set_capacity_slots(slots);
    area
}

fn alone(config: AreaConfig, slots: u32) -> Arc<SwapAreas> {
    let areas = SwapAreas::new(config);
    areas.add(area(0, config, slots), 0);
    Arc::new(areas)
}

/// Allocates up to `want` entries on a thread of its own.
fn spawn_alloc(
    areas: &Arc<SwapAreas>,
    cpu: usize,
    want: usize,
) -> loom::thread::JoinHandle<Vec<SwapEntry>> {
    let areas = areas.clone();
    loom::thread::spawn(move || alloc(&areas, cpu, want))
}

fn alloc(areas: &SwapAreas, cpu: usize, want: usize) -> Vec<SwapEntry> {
    let mut got = Vec::new();
    areas.alloc(cpu, want, &(), &mut got);
    got
}

fn check(areas: &SwapAreas, used: usize) {
    areas.drain();
    areas.get(AreaNo(0)).check().unwrap();
    assert_eq!(areas.get(AreaNo(0)).used_slots() as usize, used);
}

#[test]
fn refill_against_free() {
    for preset in [Preset::Modern, Preset::Linux5_8] {
        model(move || {
            let areas = alone(small(preset), 2);
            let mine = alloc(&areas, 0, 1);
            let other = spawn_alloc(&areas, 1, 1);
            areas.free(0, mine[0]);
            // There is a second slot, so the other CPU gets one in any order.
            assert_eq!(other.join().unwrap().len(), 1);
            check(&areas, 1);
        });
    }
}

#[test]
fn two_refills_never_share_a_slot() {
    for preset in [Preset::Modern, Preset::Linux4_8, Preset::Linux5_8] {
        model(move || {
            let areas = alone(small(preset), 2);
            let other = spawn_alloc(&areas, 1, 1);
            let mine = alloc(&areas, 0, 1);
            let theirs = other.join().unwrap();
            assert!(mine.iter().all(|entry| !theirs.contains(entry)));
            assert_eq!(mine.len() + theirs.len(), 2);
        });
    }
}

/// The slot cache of one CPU used by two threads, and drained by one of them (E5, E45).
#[test]
fn a_drain_against_an_allocation_from_the_cache() {
    model(|| {
        let mut config = small(Preset::Modern);
        config.cpus = 1;
        config.tuning.slot_batch = 2;
        config.tuning.slot_cache = true;
        // More than five batches are free, so that caching is on.
        let areas = alone(config, 12);
        let other = spawn_alloc(&areas, 0, 1);
        areas.drain_cpu(0);
        let mine = alloc(&areas, 0, 1);
        let theirs = other.join().unwrap();
        assert_ne!(mine[0], theirs[0]);
        check(&areas, 2);
    });
}

/// {allocator, freer, drain, one cluster of two slots}: no slot is lost between the caches, and the
/// allocator gets one in any interleaving (E5, E11, E38).
#[test]
fn an_allocation_a_free_and_a_drain_of_one_cluster() {
    for preset in [Preset::Modern, Preset::Linux5_8] {
        model(move || {
            let mut config = small(preset);
            config.tuning.free_batch = 2;
            let areas = alone(config, 2);
            let mine = alloc(&areas, 0, 1);
            let allocator = spawn_alloc(&areas, 1, 1);
            let drain = {
                let areas = areas.clone();
                loom::thread::spawn(move || areas.drain_cpu(0))
            };
            areas.free(0, mine[0]);
            drain.join().unwrap();
            assert_eq!(allocator.join().unwrap().len(), 1);
            check(&areas, 1);
        });
    }
}

/// E27: once an area is dequeued, nothing more is claimed in it.
#[test]
fn a_dequeue_against_an_allocation() {
    for preset in [Preset::Modern, Preset::Linux5_8] {
        model(move || {
            let areas = alone(small(preset), 2);
            let other = spawn_alloc(&areas, 1, 2);
            areas.dequeue(AreaNo(0));
            let used = areas.get(AreaNo(0)).count_used_slots();
            let theirs = other.join().unwrap();
            assert_eq!(theirs.len(), used);
            assert_eq!(alloc(&areas, 0, 1).len(), 0);
            check(&areas, used);
        });
    }
}

/// E11: there is always an area with room, but twice another one.
#[test]
fn areas_that_come_and_go_against_an_allocation() {
    model(|| {
        let config = small(Preset::Modern);
        let areas = alone(config, 2);
        let other = spawn_alloc(&areas, 1, 1);
        for number in 1..=2 {
            areas.add(area(number, config, 2), 0);
            areas.dequeue(AreaNo(number - 1));
        }
        assert_eq!(other.join().unwrap().len(), 1);
    });
}

#[test]
fn the_last_of_two_holders_frees() {
    model(|| {
        let areas = alone(small(Preset::Modern), 2);
        let entry = alloc(&areas, 0, 1)[0];
        areas.get(AreaNo(0)).share(entry.slot()).unwrap();
        let other = {
            let areas = areas.clone();
            loom::thread::spawn(move || areas.free(1, entry))
        };
        areas.free(0, entry);
        other.join().unwrap();
        assert_eq!(areas.get(AreaNo(0)).slot_map().holders(entry.slot()), Some(0));
        assert_eq!(alloc(&areas, 0, 2).len(), 2);
        check(&areas, 2);
    });
}

/// A device's content of the one slot that changes hands; 0 is none.
#[derive(Debug)]
struct Content(Arc<AtomicU32>);

impl SlotFreeNotify for Content {
    fn slot_free(&self, _: Slot) {
        self.0.store(0, Relaxed);
    }
}

/// The last of two holders has the device forget the slot, before it can be written again.
#[test]
fn a_slot_is_forgotten_before_it_is_free() {
    model(|| {
        let config = small(Preset::Modern);
        let content = Arc::new(AtomicU32::new(1));
        let areas = SwapAreas::new(config);
        areas.add(area(0, config, 2).notifying(Box::new(Content(content.clone()))), 0);
        let areas = Arc::new(areas);
        let entry = alloc(&areas, 0, 1)[0];
        areas.drain();
        areas.get(AreaNo(0)).share(entry.slot()).unwrap();
        let other = {
            let areas = areas.clone();
            loom::thread::spawn(move || areas.free(1, entry))
        };
        areas.free(0, entry);
        // The slot beside it was always free, so its cluster is searched.
        let again = alloc(&areas, 0, 2).contains(&entry);
        if again {
            content.store(2, Relaxed);
        }
        other.join().unwrap();
        assert_eq!(content.load(Relaxed), 2 * u32::from(again));
    });
}
