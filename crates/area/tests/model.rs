//! The area against a naive model: a set of slots in use. Clusters of four slots and batches of
//! two make refills, drains and full clusters the common case.
#![cfg(not(loom))]

use overspill_area::{
    AreaConfig, AreaNo, AreaTables, AreaTuning, MemberNo, Preset, SwapArea, SwapAreas, SwapEntry,
};
use overspill_base::Slot;
use proptest::prelude::*;
use std::collections::HashSet;

const CONFIG: AreaConfig = AreaConfig {
    tuning: AreaTuning {
        cluster_slots: 4,
        slot_batch: 2,
        free_batch: 2,
        ..AreaTuning::of(Preset::Modern)
    },
    cpus: 2,
    rotational: false,
    discard: false,
};
const SLOTS: u32 = 18;

#[derive(Clone, Debug)]
enum Op {
    Alloc { cpu: usize, want: usize },
    Free { cpu: usize, pick: usize },
    Drain,
    Grow,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..2usize, 1..6usize).prop_map(|(cpu, want)| Op::Alloc { cpu, want }),
        4 => (0..2usize, any::<usize>()).prop_map(|(cpu, pick)| Op::Free { cpu, pick }),
        1 => Just(Op::Drain),
        1 => Just(Op::Grow),
    ]
}

fn area(members: usize) -> (AreaTables, SwapArea) {
    let tables = AreaTables::on_heap(SLOTS, CONFIG, members);
    tables.format(&[Slot(0), Slot(7)]);
    let area = SwapArea::new(AreaNo(0), tables.clone(), CONFIG, MemberNo(0));
    (tables, area)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_slot_is_handed_out_twice_and_none_is_lost(ops in prop::collection::vec(op(), 1..80)) {
        let (_, area) = area(1);
        area.set_capacity_slots(8);
        let mut held: Vec<Slot> = Vec::new();
        let usable = |capacity: u32| capacity.min(SLOTS) as usize - 2;
        for op in ops {
            match op {
                Op::Alloc { cpu, want } => {
                    let before = held.len();
                    let got = area.alloc(cpu, want, &mut held);
                    prop_assert_eq!(held.len() - before, got);
                    // E11: one process gets every free slot there is.
                    let free = usable(area.capacity_slots()) - before;
                    prop_assert_eq!(got, want.min(free));
                }
                Op::Free { cpu, pick } if !held.is_empty() => {
                    area.free(cpu, held.swap_remove(pick % held.len()));
                }
                Op::Free { .. } => {}
                Op::Drain => area.drain(),
                Op::Grow => area.set_capacity_slots(20),
            }
            let unique: HashSet<_> = held.iter().collect();
            prop_assert_eq!(unique.len(), held.len());
            prop_assert!(!held.contains(&Slot(0)) && !held.contains(&Slot(7)));
            prop_assert!(held.iter().all(|slot| slot.0 < SLOTS));
        }
        area.drain();
        prop_assert_eq!(area.check(), Ok(()));
        let past_end = area.capacity_slots().saturating_sub(SLOTS) as usize;
        prop_assert_eq!(area.count_used_slots() - 2 - past_end, held.len());
    }

    #[test]
    fn processes_share_slots_by_count(ops in prop::collection::vec((0..3usize, 0..6u8, any::<usize>()), 1..80)) {
        let (tables, first) = area(3);
        first.set_capacity_slots(20);
        let mut areas = [Some(first), None, None];
        let mut held: Vec<Vec<Slot>> = vec![Vec::new(); 3];
        for (who, what, pick) in ops {
            let Some(area) = &areas[who] else { continue };
            match what {
                0..=1 => { area.alloc(0, 3, &mut held[who]); }
                2..=3 if !held[who].is_empty() => {
                    let index = pick % held[who].len();
                    area.free(0, held[who].swap_remove(index));
                }
                4 => {
                    // Fork into a free place.
                    let Some(child) = areas.iter().position(Option::is_none) else { continue };
                    area.drain();
                    area.share_with(MemberNo(child as u32)).unwrap();
                    held[child] = held[who].clone();
                    areas[child] = Some(SwapArea::new(
                        AreaNo(0), tables.clone(), CONFIG, MemberNo(child as u32)));
                }
                5 if areas.iter().flatten().count() > 1 => {
                    // Killed, caches and all; a survivor cleans up.
                    areas[who] = None;
                    held[who].clear();
                    let survivor = areas.iter().flatten().next().unwrap();
                    survivor.release_member(MemberNo(who as u32));
                }
                _ => {}
            }
        }
        for area in areas.iter().flatten() {
            area.drain();
        }
        let map = areas.iter().flatten().next().unwrap().slot_map();
        for slot in (1..SLOTS).map(Slot).filter(|&slot| slot != Slot(7)) {
            let holders = held.iter().filter(|h| h.contains(&slot)).count() as u64;
            prop_assert_eq!(map.holders(slot), Some(holders), "slot {}", slot);
        }
        for area in areas.iter().flatten() {
            prop_assert_eq!(area.check(), Ok(()));
        }
    }
}

#[test]
fn a_fresh_area_gives_ascending_runs() {
    let config = AreaConfig { cpus: 1, ..AreaConfig::native() };
    let tables = AreaTables::on_heap(1024, config, 1);
    tables.format(&[Slot(0)]);
    let area = SwapArea::new(AreaNo(0), tables, config, MemberNo(0));
    area.set_capacity_slots(1024);
    let mut out = Vec::new();
    // Two clusters' worth less the header: one run.
    assert_eq!(area.alloc(0, 1023, &mut out), 1023);
    assert!(out.windows(2).all(|w| w[1].0 == w[0].0 + 1));
}

#[test]
fn equal_priorities_take_turns_and_lower_ones_wait() {
    let make = |n| {
        let tables = AreaTables::on_heap(8, CONFIG, 1);
        tables.format(&[]);
        let area = SwapArea::new(AreaNo(n), tables, CONFIG, MemberNo(0));
        area.set_capacity_slots(8);
        area
    };
    let areas = SwapAreas::new(vec![(make(0), 1), (make(1), 5), (make(2), 5)]);
    let mut out: Vec<SwapEntry> = Vec::new();
    for _ in 0..8 {
        assert_eq!(areas.alloc(0, 2, &mut out, |_| false), 2);
    }
    let count = |n| out.iter().filter(|e| e.area() == AreaNo(n)).count();
    assert_eq!((count(0), count(1), count(2)), (0, 8, 8));
    assert_eq!(areas.alloc(0, 2, &mut out, |_| false), 2);
    assert_eq!(out.last().unwrap().area(), AreaNo(0));
}

#[test]
fn an_area_that_failed_a_write_is_avoided() {
    let (_, area) = area(1);
    area.set_capacity_slots(8);
    area.set_writable(false);
    assert_eq!(area.alloc(0, 1, &mut Vec::new()), 0);
}
