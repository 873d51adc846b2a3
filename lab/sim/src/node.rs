//! A memory node: an engine, its pages, its devices.
//!
//! Owns: building it. Linux has LRU lists, reclaim and (since 4.14) an order of devices per memory
//! node; an engine has one of each. So a machine of several nodes has as many engines, each with
//! the processes and the devices of its node. Left out: pages of a process on the other node, and
//! processes of both nodes that share a device.
//! Not here: what runs on it (`workload`).

use crate::device::{DeviceModel, SimDevice};
use crate::network::{Client, Servers};
use crate::shootdown::Shootdown;
use crate::space::SimSpace;
use overspill_area::{AreaConfig, AreaNo, SlotTable, SwapArea, SwapAreas, SwapEntry};
use overspill_base::clock::Cpus;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::AtomicU64;
use overspill_base::{PAGE_SIZE, Slot};
use overspill_engine::{Engine, EngineParts, PageTable, Space, Swap, Tuning};
use std::sync::Arc;

/// The size of a node, and its parts.
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub(crate) cpus: Cpus,
    pub(crate) frames: usize,
    pub(crate) process_pages: usize,
    /// For each process, the CPUs it runs on.
    pub(crate) processes: Vec<Vec<usize>>,
    pub(crate) device: DeviceModel,
    pub(crate) devices: usize,
    pub(crate) device_slots: u32,
    /// Share of each device's slots that others use, at random places.
    pub(crate) foreign: f64,
    /// True if devices grow as they fill.
    pub(crate) sparse: bool,
    pub(crate) tuning: Tuning,
    /// If its devices are on servers: which, and its number among the machines that use them.
    pub(crate) servers: Option<(Arc<Servers>, usize)>,
}

pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) space: Arc<SimSpace>,
    /// Slots in use for what is not simulated.
    foreign: Vec<SwapEntry>,
}

/// Slots allocated at a time while a device is filled.
const FILL_SLOTS: usize = 64;

impl Node {
    pub(crate) fn new(plan: &NodePlan, shootdown: &Arc<Shootdown>, seed: u64) -> Self {
        let pages = plan.process_pages * plan.processes.len();
        let space = SimSpace::new(plan.process_pages, plan.processes.clone(), shootdown.clone());
        let space = Arc::new(space);
        let chunk = Tuning::CHUNK_PAGES;
        let staging = Engine::staging_pages(plan.frames).max(2 * plan.cpus.count * chunk);
        let engine = Engine::new(EngineParts {
            frames: plan.frames,
            table: PageTable::new(Table::on_heap(pages, || AtomicU64::new(0))),
            space: Space::Moving(space.clone()),
            page_bytes: PAGE_SIZE,
            swaps: (0..plan.devices).map(|n| plan.swap(n, shootdown)).collect(),
            arena: PageArena::new(staging).expect("address space for staging pages"),
            stats: Stats::on_heap(),
            report: Box::new(|_| {}),
            tuning: plan.tuning,
            cpus: plan.cpus,
        });
        let mut random = fastrand::Rng::with_seed(seed);
        let foreign = fragment(engine.areas(), plan.foreign, &mut random);
        Self { engine, space, foreign }
    }

    /// Verifies every counter, at the end of a run.
    ///
    /// # Panics
    /// If one is wrong.
    pub(crate) fn check(&self) {
        self.foreign.iter().for_each(|&entry| self.engine.areas().free(0, entry));
        self.engine.check().unwrap_or_else(|wrong| panic!("after the run: {wrong}"));
    }
}

impl NodePlan {
    fn swap(&self, number: usize, shootdown: &Arc<Shootdown>) -> Swap {
        let config = AreaConfig {
            tuning: self.tuning.area,
            cpus: self.cpus.count,
            rotational: false,
            discard: false,
        };
        // As on the heap, but in memory that becomes resident only where it is touched.
        let words = Table::private(SlotTable::words(self.device_slots, config));
        let words = words.expect("address space for a table");
        let slots = SlotTable::new(words, self.device_slots, &[Slot(0)]);
        let area = SwapArea::new(AreaNo(number as u8), slots, config);
        if !self.sparse {
            area.set_capacity_slots(self.device_slots);
        }
        let client = self.servers.clone();
        let client = client.map(|(servers, n)| Client::new(n, servers, self.device.channels));
        let device = SimDevice::new(self.device, self.device_slots, shootdown.clone(), client);
        Swap { device: Arc::new(device), area, priority: 0 }
    }
}

/// Fills all areas and frees all but a share of `foreign`, at random: no cluster is free.
fn fragment(areas: &SwapAreas, foreign: f64, random: &mut fastrand::Rng) -> Vec<SwapEntry> {
    if foreign == 0.0 {
        return Vec::new();
    }
    let mut filled: Vec<SwapEntry> = Vec::new();
    while areas.alloc(0, FILL_SLOTS, &(), &mut filled) > 0 {}
    random.shuffle(&mut filled);
    let keep = (filled.len() as f64 * foreign) as usize;
    filled.drain(keep..).for_each(|entry| areas.free(0, entry));
    areas.drain();
    filled
}
