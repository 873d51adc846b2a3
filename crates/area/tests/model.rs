//! The areas against a naive model: a set of entries in use. Clusters of four slots and batches of
//! two make refills, drains, walks and full clusters common. Every preset runs the same episodes.
#![cfg(not(loom))]

mod common;

use common::{CPUS, SLOTS, areas, config, single};
use overspill_area::{
    AreaConfig, AreaNo, AreaTuning, Preset, ScanBase, SlotTable, SwapArea, SwapAreas, SwapEntry,
};
use overspill_base::Slot;
use proptest::prelude::*;
use std::collections::HashSet;

#[derive(Clone, Debug)]
enum Op {
    Alloc { cpu: usize, want: usize },
    Folio { cpu: usize, order: u8 },
    Free { cpu: usize, pick: usize },
    DrainCpu { cpu: usize },
    Drain,
    Grow,
}

fn op() -> impl Strategy<Value = Op> {
    let cpu = 0..CPUS;
    prop_oneof![
        6 => (cpu.clone(), 1..6usize).prop_map(|(cpu, want)| Op::Alloc { cpu, want }),
        2 => (cpu.clone(), 1..4u8).prop_map(|(cpu, order)| Op::Folio { cpu, order }),
        6 => (cpu.clone(), any::<usize>()).prop_map(|(cpu, pick)| Op::Free { cpu, pick }),
        1 => cpu.prop_map(|cpu| Op::DrainCpu { cpu }),
        1 => Just(Op::Drain),
        1 => Just(Op::Grow),
    ]
}

fn tuning() -> impl Strategy<Value = AreaConfig> {
    let preset = prop::sample::select(Preset::ALL.to_vec());
    (preset, any::<bool>(), any::<bool>()).prop_map(|((preset, _), rotational, discard)| {
        AreaConfig { rotational, discard, ..config(preset) }
    })
}

/// An area and its model.
struct Episode {
    areas: SwapAreas,
    held: Vec<SwapEntry>,
}

impl Episode {
    fn area(&self) -> &SwapArea {
        self.areas.get(AreaNo(0))
    }

    fn free_slots(&self) -> usize {
        // Slots 0 and 7 are reserved.
        self.area().capacity_slots().min(SLOTS) as usize - 2 - self.held.len()
    }

    fn play(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Alloc { cpu, want } => {
                let free = self.free_slots();
                let got =
                    self.areas.alloc(cpu, want, &common::Discarder(&self.areas), &mut self.held);
                // E11: every free slot can be had.
                prop_assert_eq!(got, want.min(free));
            }
            Op::Folio { cpu, order } => {
                if let Some(first) = self.areas.alloc_folio(cpu, order) {
                    // E10: aligned, in one cluster.
                    prop_assert_eq!(first.slot().0 % (1 << order), 0);
                    let slots = (0..1 << order).map(|n| first.slot().plus(n));
                    self.held.extend(slots.map(|slot| SwapEntry::new(first.area(), slot)));
                }
            }
            Op::Free { cpu, pick } if !self.held.is_empty() => {
                let pick = pick % self.held.len();
                self.areas.free(cpu, self.held.swap_remove(pick));
            }
            Op::Free { .. } => {}
            Op::DrainCpu { cpu } => self.areas.drain_cpu(cpu),
            Op::Drain => self.areas.drain(),
            Op::Grow => self.area().set_capacity_slots(20),
        }
        let unique: HashSet<_> = self.held.iter().collect();
        prop_assert_eq!(unique.len(), self.held.len());
        for entry in &self.held {
            let slot = entry.slot();
            prop_assert!(slot != Slot(0) && slot != Slot(7) && slot.0 < SLOTS, "{}", slot);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// E3 to E7, E10, E11, E33, E38, E40 for every preset, rotational or not, with discard or not.
    #[test]
    fn no_slot_is_handed_out_twice_and_none_is_lost(
        config in tuning(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut episode = Episode { areas: areas(config, 8), held: Vec::new() };
        for op in &ops {
            episode.play(op)?;
        }
        episode.areas.drain();
        prop_assert_eq!(episode.area().check(), Ok(()));
        prop_assert_eq!(episode.area().used_slots() as usize, episode.held.len());
        for entry in std::mem::take(&mut episode.held) {
            episode.areas.free_now(entry);
        }
        prop_assert_eq!(episode.area().check(), Ok(()));
        prop_assert_eq!(episode.area().used_slots(), 0);
    }

    /// E9: pages come to a slot and leave it in any order.
    #[test]
    fn pages_share_slots_by_count(
        ops in prop::collection::vec((0..6u8, any::<usize>()), 1..80),
    ) {
        let areas = areas(config(Preset::Modern), 20);
        let area = areas.get(AreaNo(0));
        let mut held: Vec<SwapEntry> = Vec::new();
        for (what, pick) in ops {
            match what {
                0..=1 => {
                    areas.alloc(0, 3, &(), &mut held);
                }
                2..=3 if !held.is_empty() => {
                    let entry = held[pick % held.len()];
                    area.share(entry.slot()).unwrap();
                    held.push(entry);
                }
                4..=5 if !held.is_empty() => {
                    areas.free(0, held.swap_remove(pick % held.len()));
                }
                _ => {}
            }
        }
        areas.drain();
        for slot in (1..SLOTS).map(Slot).filter(|&slot| slot != Slot(7)) {
            let holders = held.iter().filter(|entry| entry.slot() == slot).count() as u64;
            prop_assert_eq!(area.slot_map().holders(slot), Some(holders), "slot {}", slot);
        }
        prop_assert_eq!(area.check(), Ok(()));
    }
}

/// Makes a fresh area of the real sizes, all of it available.
fn fresh(preset: Preset, cpus: usize, slots: u32) -> SwapAreas {
    let config = AreaConfig { tuning: AreaTuning::of(preset), cpus, ..AreaConfig::native() };
    single(config, slots, &[Slot(0)])
}

#[test]
fn a_fresh_area_gives_ascending_runs() {
    for preset in [Preset::Modern, Preset::Linux5_8, Preset::Linux4_11] {
        let areas = fresh(preset, 1, 1024);
        let mut out = Vec::new();
        assert_eq!(areas.alloc(0, 512, &(), &mut out), 512);
        let breaks = out.windows(2).filter(|w| !w[0].precedes(w[1])).count();
        assert!(breaks <= 2, "{preset:?}: {breaks} breaks in 512 slots");
    }
}

#[test]
fn cpus_begin_in_trunks_of_their_own() {
    // Four trunks of 16384 slots; four CPUs.
    for preset in [Preset::Modern, Preset::Linux4_11] {
        let areas = fresh(preset, 4, 4 << 14);
        let mut out = Vec::new();
        (0..4).for_each(|cpu| assert_eq!(areas.alloc(cpu, 1, &(), &mut out), 1));
        let trunks: HashSet<u32> = out.iter().map(|e| e.slot().0 >> 14).collect();
        assert!(trunks.len() >= 3, "{preset:?}: trunks {trunks:?}");
    }
}

/// Makes a full area with every second slot freed: no cluster is free, and every visit scans.
fn fragmented(preset: Preset, cpus: usize, slots: u32) -> SwapAreas {
    let areas = fresh(preset, cpus, slots);
    let mut all = Vec::new();
    areas.alloc(0, slots as usize, &(), &mut all);
    assert_eq!(all.len() as u32, slots - 1);
    all.iter().filter(|e| e.slot().0 % 2 == 0).for_each(|&e| areas.free_now(e));
    areas
}

#[test]
fn a_fragmented_area_gives_one_slot_per_visit_before_scan_more_and_many_after() {
    let visit = |preset| {
        let areas = fragmented(preset, 1, 1 << 14);
        let mut out = Vec::new();
        areas.get(AreaNo(0)).alloc(0, 64, &(), &mut out)
    };
    assert_eq!(visit(Preset::Linux5_7), 1);
    assert_eq!(visit(Preset::Linux5_8), 64);
    assert_eq!(visit(Preset::Modern), 64);
}

#[test]
fn a_random_base_reaches_every_trunk_and_stays_within_the_bounds() {
    // E40, with trunks of 16 slots, so that walks often leave theirs. The bounds are asserted where
    // a base is chosen.
    let tuning = AreaTuning {
        trunk_slots: 16,
        cluster_slots: 4,
        slot_cache: false,
        scan_base: ScanBase::PerCpu,
        ..AreaTuning::of(Preset::Linux5_8)
    };
    let areas = single(AreaConfig { tuning, cpus: 2, ..AreaConfig::native() }, 256, &[Slot(0)]);
    let mut out = Vec::new();
    assert_eq!(areas.alloc(0, 255, &(), &mut out), 255);
    for &entry in &out {
        areas.free_now(entry);
        // The only free slot must be found from any base.
        let mut again = Vec::new();
        assert_eq!(areas.alloc(1, 2, &(), &mut again), 1);
        assert_eq!(again, [entry]);
    }
}

#[test]
fn the_very_first_slot_can_be_the_last_one_free() {
    // Memory has no header, so slot 0 is a slot like any other.
    for (preset, _) in Preset::ALL {
        let areas = single(config(preset), 4, &[]);
        let mut out = Vec::new();
        assert_eq!(areas.alloc(0, 4, &(), &mut out), 4);
        areas.free_now(SwapEntry::new(AreaNo(0), Slot(0)));
        let mut again = Vec::new();
        assert_eq!(areas.alloc(0, 1, &(), &mut again), 1);
        assert_eq!((again[0].slot(), areas.get(AreaNo(0)).check()), (Slot(0), Ok(())));
    }
}

#[test]
fn an_area_with_nothing_but_discards_to_wait_for_counts_as_full() {
    // Four slots of one cluster, all used, then all freed: they wait on the discard list.
    let config = AreaConfig { discard: true, ..config(Preset::Linux4_11) };
    let areas = single(config, 4, &[]);
    let mut out = Vec::new();
    assert_eq!(areas.alloc(0, 4, &(), &mut out), 4);
    areas.drain();
    out.drain(..).for_each(|entry| areas.free_now(entry));
    assert_eq!(areas.get(AreaNo(0)).check(), Ok(()));
    // Without a discard there are no slots; with one there are.
    assert_eq!(areas.alloc(0, 1, &(), &mut out), 0);
    assert_eq!(areas.alloc(0, 5, &common::Discarder(&areas), &mut out), 4);
}

#[test]
fn equal_priorities_take_turns_and_lower_ones_wait() {
    for preset in [Preset::Linux4_8, Preset::Modern] {
        let config = config(preset);
        let areas = SwapAreas::new(config);
        for (number, priority) in [(0, 1), (1, 5), (2, 5)] {
            let table = SlotTable::on_heap(8, config, &[]);
            let area = SwapArea::new(AreaNo(number), table, config);
            area.set_capacity_slots(8);
            areas.add(area, priority);
        }
        let mut out: Vec<SwapEntry> = Vec::new();
        let count = |out: &[SwapEntry], n| out.iter().filter(|e| e.area() == AreaNo(n)).count();
        for _ in 0..8 {
            assert_eq!(areas.alloc(0, 2, &(), &mut out), 2);
            // E42: never more than one batch apart.
            assert!(count(&out, 1).abs_diff(count(&out, 2)) <= 2);
        }
        assert_eq!((count(&out, 0), count(&out, 1), count(&out, 2)), (0, 8, 8));
        assert_eq!(areas.alloc(0, 2, &(), &mut out), 2);
        assert_eq!(count(&out, 0), 2);
    }
}

#[test]
fn freed_slots_wait_for_their_batch() {
    // E38: with one slot free in the area and three in the batch, the one is handed out.
    let tuning =
        AreaTuning { free_batch: 4, slot_cache: false, ..AreaTuning::of(Preset::Linux4_11) };
    let areas = single(AreaConfig { tuning, cpus: 1, ..AreaConfig::native() }, 256, &[]);
    let mut held = Vec::new();
    assert_eq!(areas.alloc(0, 255, &(), &mut held), 255);
    let freed: Vec<_> = held.drain(..3).collect();
    freed.iter().for_each(|&entry| areas.free(0, entry));
    assert_eq!(areas.get(AreaNo(0)).used_slots(), 255, "freed before the flush");
    let mut next = Vec::new();
    areas.alloc(0, 1, &(), &mut next);
    assert!(!freed.contains(&next[0]), "{next:?} was handed out before the flush");
    // And when nothing else is left, the batch is flushed rather than refused.
    assert_eq!(areas.alloc(0, 3, &(), &mut next), 3);
}

#[test]
fn an_area_that_failed_a_write_is_avoided_and_one_that_is_off_gives_nothing() {
    for (preset, _) in Preset::ALL {
        let areas = areas(config(preset), 8);
        let mut out = Vec::new();
        assert_eq!(areas.alloc(0, 1, &(), &mut out), 1);
        areas.get(AreaNo(0)).avoid();
        assert_eq!(areas.get(AreaNo(0)).alloc(0, 1, &(), &mut Vec::new()), 0);
        areas.get(AreaNo(0)).open();
        assert_eq!(areas.dequeue(AreaNo(0)), Some(0));
        assert_eq!(areas.dequeue(AreaNo(0)), None);
        assert_eq!(areas.alloc(0, 1, &(), &mut out), 0);
        areas.get(AreaNo(0)).open();
        areas.enqueue(AreaNo(0), 0);
        assert_eq!(areas.alloc(0, 1, &(), &mut out), 1);
    }
}

#[test]
fn a_folio_gets_adjacent_slots_until_the_area_is_fragmented() {
    let areas = fresh(Preset::Modern, 1, 2048);
    for order in [9, 4, 1] {
        let first = areas.alloc_folio(0, order).unwrap();
        assert_eq!(first.slot().0 % (1 << order), 0, "order {order}");
    }
    assert_eq!(areas.alloc_folio(0, 10), None, "larger than a cluster");
    let areas = fragmented(Preset::Modern, 1, 2048);
    assert_eq!(areas.alloc_folio(0, 1), None);
    assert_eq!(areas.alloc(0, 64, &(), &mut Vec::new()), 64);
}
