//! Several areas in every tuning, driven by operations decoded from bytes, against a set of
//! entries. A short run under `cargo test`; `make fuzz` runs for any time.
#![cfg(not(loom))]

#[allow(dead_code, reason = "every test program uses its part of it")]
mod common;

use arbitrary::{Arbitrary, Result, Unstructured};
use common::{CPUS, Discarder};
use overspill_area::{
    AreaConfig, AreaNo, AreaTuning, Preset, ScanBase, SlotTable, SwapArea, SwapAreas, SwapEntry,
};
use overspill_base::Slot;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[derive(Clone, Debug)]
struct Script {
    config: AreaConfig,
    areas: Vec<AreaSetup>,
    ops: Vec<Op>,
}

#[derive(Clone, Debug)]
struct AreaSetup {
    slots: u32,
    priority: i16,
    rotational: bool,
    discard: bool,
    reserved: Vec<Slot>,
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { cpu: usize, want: usize },
    Folio { cpu: usize, order: u8 },
    Free { cpu: usize, pick: usize },
    Stop { area: u8 },
    Start { area: u8 },
    DrainCpu { cpu: usize },
    Drain,
}

impl<'a> Arbitrary<'a> for Script {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let tuning = AreaTuning {
            slot_batch: u.int_in_range(1..=4)?,
            free_batch: u.int_in_range(1..=4)?,
            cluster_slots: *u.choose(&[2, 4, 8])?,
            trunk_slots: *u.choose(&[8, 16])?,
            scan_limit_slots: u.int_in_range(2..=8)?,
            scan_base: *u.choose(&[ScanBase::Shared, ScanBase::PerCpu])?,
            ..AreaTuning::of(u.choose(&Preset::ALL)?.0)
        };
        let config = AreaConfig { tuning, cpus: CPUS, rotational: false, discard: false };
        let areas = (0..u.int_in_range(1..=3)?).map(|_| area(u)).collect::<Result<_>>()?;
        let mut ops = Vec::new();
        while !u.is_empty() {
            ops.push(op(u)?);
        }
        Ok(Self { config, areas, ops })
    }
}

fn area(u: &mut Unstructured<'_>) -> Result<AreaSetup> {
    let slots = u.int_in_range(1..=40)?;
    let reserved = (0..u.int_in_range(0..=3)?).map(|_| Ok(Slot(u.int_in_range(0..=slots - 1)?)));
    Ok(AreaSetup {
        slots,
        reserved: reserved.collect::<Result<_>>()?,
        priority: u.int_in_range(0..=1)?,
        rotational: u.ratio(1, 8)?,
        discard: u.ratio(1, 3)?,
    })
}

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    let cpu = |u: &mut Unstructured<'_>| u.int_in_range(0..=CPUS - 1);
    let area = |u: &mut Unstructured<'_>| u.int_in_range(0..=2);
    Ok(match u.int_in_range(0..=15)? {
        0..=5 => Op::Alloc { cpu: cpu(u)?, want: u.int_in_range(1..=8)? },
        6 => Op::Folio { cpu: cpu(u)?, order: u.int_in_range(1..=3)? },
        7..=11 => Op::Free { cpu: cpu(u)?, pick: u.arbitrary::<u8>()?.into() },
        12 => Op::Stop { area: area(u)? },
        13 => Op::Start { area: area(u)? },
        14 => Op::DrainCpu { cpu: cpu(u)? },
        _ => Op::Drain,
    })
}

struct Episode<'a> {
    script: &'a Script,
    areas: SwapAreas,
    held: Vec<SwapEntry>,
    stopped: BTreeSet<u8>,
}

impl<'a> Episode<'a> {
    fn new(script: &'a Script) -> Self {
        let areas = SwapAreas::new(script.config);
        for (number, setup) in script.areas.iter().enumerate() {
            let (rotational, discard) = (setup.rotational, setup.discard);
            let config = AreaConfig { rotational, discard, ..script.config };
            let table = SlotTable::on_heap(setup.slots, config, &setup.reserved);
            let area = SwapArea::new(AreaNo(number as u8), table, config);
            area.set_capacity_slots(setup.slots);
            areas.add(area, setup.priority);
        }
        Self { script, areas, held: Vec::new(), stopped: BTreeSet::new() }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Alloc { cpu, want } => self.alloc(cpu, want),
            Op::Folio { cpu, order } => self.folio(cpu, order),
            Op::Free { cpu, pick } if !self.held.is_empty() => {
                let pick = pick % self.held.len();
                self.areas.free(cpu, self.held.swap_remove(pick));
            }
            Op::Free { .. } => {}
            Op::Stop { area } => self.stop(area),
            Op::Start { area } => self.start(area),
            Op::DrainCpu { cpu } => self.areas.drain_cpu(cpu),
            Op::Drain => self.areas.drain(),
        }
    }

    /// E11: an allocation gets all it asks for, as long as there are free slots.
    fn alloc(&mut self, cpu: usize, want: usize) {
        let (free, before) = (self.free_slots(), self.held.len());
        let got = self.areas.alloc(cpu, want, &Discarder(&self.areas), &mut self.held);
        assert_eq!(got, want.min(free), "{free} slots were free");
        let fresh = self.held.split_off(before);
        fresh.into_iter().for_each(|entry| self.hold(entry));
    }

    /// E10: a folio is aligned, and in one cluster.
    fn folio(&mut self, cpu: usize, order: u8) {
        let Some(first) = self.areas.alloc_folio(cpu, order) else { return };
        let size = self.script.config.tuning.cluster_slots;
        assert!(1 << order <= size && first.slot().0 % (1 << order) == 0, "{first:?}");
        let slots = (0..1 << order).map(|n| first.slot().plus(n));
        slots.for_each(|slot| self.hold(SwapEntry::new(first.area(), slot)));
    }

    /// E4, E5, E27: a slot is usable, free before, and in an area in use.
    fn hold(&mut self, entry: SwapEntry) {
        let setup = &self.script.areas[usize::from(entry.area().0)];
        assert!(entry.slot().0 < setup.slots && !setup.reserved.contains(&entry.slot()));
        assert!(!self.held.contains(&entry), "{entry:?} is handed out twice");
        assert!(
            !self.stopped.contains(&entry.area().0),
            "{entry:?} is handed out of a stopped area"
        );
        self.held.push(entry);
    }

    fn stop(&mut self, area: u8) {
        if usize::from(area) < self.script.areas.len() {
            let stopped = self.areas.dequeue(AreaNo(area)).is_some();
            assert_eq!(stopped, self.stopped.insert(area));
        }
    }

    fn start(&mut self, area: u8) {
        if self.stopped.remove(&area) {
            let priority = self.script.areas[usize::from(area)].priority;
            self.areas.get(AreaNo(area)).open();
            self.areas.enqueue(AreaNo(area), priority);
        }
    }

    fn free_slots(&self) -> usize {
        let running = |n: &usize| !self.stopped.contains(&(*n as u8));
        let usable = |n: usize| {
            let AreaSetup { slots, reserved, .. } = &self.script.areas[n];
            *slots as usize - reserved.iter().collect::<BTreeSet<_>>().len()
        };
        let usable: usize = (0..self.script.areas.len()).filter(running).map(usable).sum();
        let held = self.held.iter().filter(|entry| running(&usize::from(entry.area().0)));
        usable - held.count()
    }

    /// E3, E6, E7: with all caches empty every counter is exact, with slots held and without.
    fn end(mut self) {
        for _ in 0..2 {
            self.areas.drain();
            for area in self.areas.iter() {
                assert_eq!(area.check(), Ok(()), "area {}", area.number().0);
                let held = self.held.iter().filter(|entry| entry.area() == area.number());
                assert_eq!(area.used_slots() as usize, held.count());
            }
            self.held.drain(..).for_each(|entry| self.areas.free(0, entry));
        }
    }
}

#[test]
fn slots_are_never_shared_lost_or_reserved_ones() {
    static PLAYED: AtomicUsize = AtomicUsize::new(0);
    bolero::check!().with_max_len(512).for_each(|bytes: &[u8]| {
        let Ok(script) = Script::arbitrary(&mut Unstructured::new(bytes)) else { return };
        let mut episode = Episode::new(&script);
        script.ops.iter().for_each(|op| episode.step(op));
        episode.end();
        PLAYED.fetch_add(script.ops.len(), Relaxed);
    });
    let played = PLAYED.load(Relaxed);
    assert!(played > 1000, "only {played} operations were played");
    println!("{played} operations");
}
