//! Invariants that random episodes do not test often enough: see docs/invariants.md.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use common::{config, lone, single};
use overspill_area::{
    Allocator, AreaConfig, AreaNo, AreaTuning, Preset, SlotReclaim, SlotTable, SwapArea, SwapAreas,
    SwapEntry,
};
use overspill_base::Slot;

/// Answers for a full area that it was taken out, and another added, before it could grow.
struct Turnover<'a> {
    areas: &'a SwapAreas,
    config: AreaConfig,
    last: u8,
}

impl SlotReclaim for Turnover<'_> {
    fn grow(&self, area: AreaNo) -> bool {
        let next = AreaNo(area.0 + 1);
        if next.0 <= self.last {
            self.areas.add(full_unless(next.0 == self.last, next, self.config), 0);
            self.areas.dequeue(area);
        }
        false
    }

    fn reclaim_slot(&self, _: SwapEntry) -> bool {
        false
    }

    fn discard(&self, _: AreaNo) -> bool {
        false
    }
}

/// Makes an area of 4 slots, of which none is available unless it `has_room`.
fn full_unless(has_room: bool, number: AreaNo, config: AreaConfig) -> SwapArea {
    let area = SwapArea::new(number, SlotTable::on_heap(4, config, &[]), config);
    area.set_capacity_slots(if has_room { 4 } else { 0 });
    area
}

/// E11: there is room all the time, but never where the allocation looks: on an area that was added
/// after it had begun. It looks twice in any case.
#[test]
fn an_allocation_keeps_up_with_areas_that_come_and_go() {
    for (preset, _) in Preset::ALL {
        let config = config(preset);
        let areas = lone(config, full_unless(false, AreaNo(0), config));
        let (turnover, mut out) = (Turnover { areas: &areas, config, last: 3 }, Vec::new());
        assert_eq!(areas.alloc(0, 2, &turnover, &mut out), 2, "{preset:?}");
        assert!(out.iter().all(|entry| entry.area() == AreaNo(3)), "{preset:?}: {out:?}");
    }
}

/// E33: one hold of the area's lock examines no more slots than the limit.
#[test]
fn a_visit_looks_at_no_more_slots_than_its_budget() {
    let visit = |limit| {
        let tuning = AreaTuning {
            scan_limit_slots: limit,
            slot_cache: false,
            ..AreaTuning::of(Preset::Linux5_8)
        };
        let config = AreaConfig { tuning, cpus: 1, ..AreaConfig::native() };
        let areas = single(config, 1 << 13, &[]);
        let mut all = Vec::new();
        areas.alloc(0, 1 << 13, &(), &mut all);
        let sparse = all.iter().filter(|entry| entry.slot().0 % 64 == 0);
        sparse.for_each(|&entry| areas.free_now(entry));
        // A walk without the lock finds the first slot; the others are found under it.
        areas.get(AreaNo(0)).alloc(0, 64, &(), &mut Vec::new())
    };
    assert_eq!(visit(256), 1 + 256 / 64);
    assert_eq!(visit(128), 1 + 128 / 64);
    assert_eq!(visit(63), 1);
}

/// E41: nothing is allocated from a cluster while it is discarded.
#[test]
fn a_cluster_is_not_used_while_it_is_discarded() {
    for (preset, _) in Preset::ALL {
        let config = AreaConfig { discard: true, ..config(preset) };
        let areas = single(config, 8, &[]);
        let mut out = Vec::new();
        assert_eq!(areas.alloc(0, 8, &(), &mut out), 8);
        out.drain(..).for_each(|entry| areas.free_now(entry));
        areas.drain();
        let area = areas.get(AreaNo(0));
        let (first, slots) = area.take_discard().expect("both clusters wait");
        let (second, _) = area.take_discard().expect("one waits still");
        assert_eq!((area.take_discard(), slots), (None, 4));
        assert_eq!(areas.alloc(0, 1, &(), &mut out), 0, "{preset:?}: {out:?} is being discarded");
        area.discarded(second);
        assert_eq!(areas.alloc(0, 8, &(), &mut out), 4);
        assert!(out.iter().all(|entry| entry.slot().0 / 4 == second.0 / 4), "{preset:?}: {out:?}");
        area.discarded(first);
        assert_eq!(areas.alloc(0, 8, &(), &mut out), 4);
        assert_eq!(area.check(), Ok(()));
    }
}

/// A cluster that nothing was ever written to has nothing to discard.
#[test]
fn a_fresh_cluster_is_used_without_a_discard() {
    let config = AreaConfig { discard: true, ..config(Preset::Modern) };
    let areas = single(config, 8, &[]);
    assert_eq!(areas.alloc(0, 8, &(), &mut Vec::new()), 8);
}

/// E39: between its thresholds, five and two batches per CPU, the cache stays on or off. Hidden
/// slots show which.
#[test]
fn the_slot_cache_goes_on_and_off_with_hysteresis() {
    let config = AreaConfig { cpus: 1, ..config(Preset::Linux4_11) };
    let areas = single(config, 16, &[]);
    let mut held = Vec::new();
    let hidden = |held: &[SwapEntry]| areas.get(AreaNo(0)).used_slots() as usize - held.len();
    // Eight batches of two are free: it is on, and keeps the second slot of each visit.
    let mut seen = Vec::new();
    for _ in 0..15 {
        assert_eq!(areas.alloc(0, 1, &(), &mut held), 1);
        seen.push(hidden(&held));
    }
    // It is off once fewer than four slots are free: from the fourteenth allocation on.
    assert_eq!(seen, [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0]);
    // Up to five free batches it stays off: nothing is hidden.
    held.drain(..9).for_each(|entry| areas.free_now(entry));
    assert_eq!(areas.alloc(0, 1, &(), &mut held), 1);
    assert_eq!(hidden(&held), 0);
    // Above five batches it is on again.
    held.drain(..4).for_each(|entry| areas.free_now(entry));
    assert_eq!(areas.alloc(0, 1, &(), &mut held), 1);
    assert_eq!(hidden(&held), 1);
}

/// E4: reserved slots are not counted as usable, with any allocator.
#[test]
fn reserved_slots_are_no_capacity() {
    for (preset, _) in Preset::ALL {
        let config = config(preset);
        let areas = single(config, 10, &[Slot(0), Slot(5), Slot(9)]);
        assert_eq!(areas.get(AreaNo(0)).free_slots(), 7);
        let mut out = Vec::new();
        assert_eq!(areas.alloc(0, 10, &(), &mut out), 7, "{:?}", config.tuning.allocator);
        assert!(areas.get(AreaNo(0)).is_full(), "others cannot be handed out");
        assert_eq!(config.tuning.allocator == Allocator::Lists, preset == Preset::Modern);
    }
}

/// E7: an area without usable slots is full from the start.
#[test]
fn an_area_of_reserved_slots_is_full() {
    for (preset, _) in Preset::ALL {
        let areas = single(config(preset), 1, &[Slot(0)]);
        assert_eq!(areas.get(AreaNo(0)).check(), Ok(()));
        assert_eq!(areas.alloc(0, 1, &(), &mut Vec::new()), 0);
    }
}
