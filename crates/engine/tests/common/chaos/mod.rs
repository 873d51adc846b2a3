//! A whole engine of any tuning over failing devices, driven by random operations on two CPUs, and
//! a model of every page's content.
//!
//! An episode is decoded from bytes, so it may come from a seed or a fuzzer. Nothing in it depends
//! on time or threads: the same bytes give the same episode.
//! Invariants: the last device is sound and has room for every page, unless the episode is
//! hopeless; only the first one loses its content. So only its faults may lose pages, and memory
//! must not run out.

mod forks;
mod script;

pub(crate) use script::Script;

use super::guards::{checksummed, notifying, sealed};
use super::{Rig, Seen, SimSpace};
use overspill_area::{AreaConfig, AreaNo, AreaTuning, SlotTable, SwapArea};
use overspill_base::clock::Cpus;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::{Arc, AtomicU64};
use overspill_base::{Bytes, PAGE_SIZE, PageNo};
use overspill_device::faulty::{FaultPlan, Faults, Faulty};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{SwapDevice, SwapKind};
use overspill_engine::{Engine, EngineParts, FaultOutcome, PageTable, Space, Swap, Worker};
use script::{DeviceSetup, Op, Setup};
use std::cell::Cell;
use std::sync::Mutex;

const PAGES: usize = 64;
const CPUS: usize = 2;

thread_local! {
    /// The CPU that the episode's next operation runs on.
    static CPU: Cell<usize> = const { Cell::new(0) };
}

impl Script {
    /// Runs the episode; returns its counters.
    ///
    /// # Panics
    /// If the engine breaks an invariant.
    pub(crate) fn play(&self) -> Stats {
        let mut episode = Episode::new(&self.setup);
        let stats = episode.rig.engine.stats().clone();
        if self.ops.iter().all(|op| episode.step(op)) {
            episode.end_well();
        } else {
            episode.end_of_memory();
        }
        stats
    }
}

struct Episode<'a> {
    setup: &'a Setup,
    rig: Rig,
    workers: Vec<Worker>,
    /// The page's bytes; `None` if it was lost.
    model: Vec<Option<u8>>,
    locked: Vec<usize>,
    /// Pages in memory of which the engine does not know.
    strange: Vec<usize>,
    lost: u64,
    log: Arc<Mutex<Vec<String>>>,
}

impl<'a> Episode<'a> {
    fn new(setup: &'a Setup) -> Self {
        CPU.set(0);
        let log = Arc::new(Mutex::new(Vec::new()));
        let rig = rig(setup, log.clone());
        let workers = (0..CPUS).map(|_| Worker::new(&rig.engine).unwrap()).collect();
        let plans = rig.plans.iter().zip(&setup.devices);
        plans.for_each(|(plan, device)| plan.set(device.faults));
        rig.space.set_busy(setup.busy_per_mille, setup.busy_seed);
        let (model, locked, strange) = (vec![Some(0); PAGES], vec![], vec![]);
        Self { setup, rig, workers, model, locked, strange, lost: 0, log }
    }

    /// False if memory ran out.
    fn step(&mut self, op: &Op) -> bool {
        match *op {
            Op::Write { page, value } => return self.touch(page, Some(value)),
            Op::Read { page } => return self.touch(page, None),
            Op::Begin { page } => return self.fault(page),
            Op::Scan { first, pages } => {
                return (first..(first + pages).min(PAGES)).all(|page| self.touch(page, None));
            }
            Op::Discard { first, pages } => self.discard(first, pages.min(PAGES - first)),
            Op::Pin { page } => self.rig.space.pin(Some(PageNo(page as u32))),
            Op::Lock { page, lock } => self.lock(page, lock),
            Op::Switch { cpu } => CPU.set(cpu),
            Op::Poll { cpu } => self.poll(cpu),
            Op::Balance => self.balance(),
            Op::Drain => self.rig.engine.drain(),
            Op::Fill { first, pages, value } => self.fill(first, pages.min(PAGES - first), value),
            Op::Adopt { first, pages } => return self.adopt(first, pages.min(PAGES - first)),
            Op::Fork { from, to, pages } => return self.fork(from, to, pages),
            Op::Swapoff { nth } => self.swapoff(nth),
        }
        true
    }

    fn touch(&mut self, page: usize, write: Option<u8>) -> bool {
        while !self.look(page, write) {
            if !self.fault(page) {
                return false;
            }
            // The page may wait for I/O of the other CPU.
            (0..CPUS).for_each(|cpu| self.poll(cpu));
        }
        true
    }

    /// Compares the page with the model, and writes it; false if it is missing.
    fn look(&mut self, page: usize, write: Option<u8>) -> bool {
        let mut seen = self.rig.space.pages[page].lock().unwrap();
        match &mut *seen {
            Seen::Missing => return false,
            Seen::Poisoned => {
                self.lost += u64::from(self.model[page].take().is_some());
            }
            Seen::Present(content) => {
                assert_eq!(content[1..], content[..content.len() - 1], "page {page} is torn");
                assert_eq!(Some(content[0]), self.model[page], "page {page}");
                if let Some(value) = write {
                    content.fill(value);
                    self.model[page] = write;
                }
            }
        }
        true
    }

    /// False if memory ran out.
    fn fault(&mut self, page: usize) -> bool {
        if self.rig.engine.status().free_frames == 0 {
            // On one thread a fault cannot wait for frames that the other CPU would free.
            self.finish();
        }
        let worker = &mut self.workers[CPU.get()];
        match self.rig.engine.fault(worker, PageNo(page as u32), 1) {
            FaultOutcome::OutOfMemory => return false,
            FaultOutcome::Stray => panic!("page {page} is mapped"),
            FaultOutcome::Mapped | FaultOutcome::Pending | FaultOutcome::Poisoned => {}
        }
        true
    }

    fn poll(&mut self, cpu: usize) {
        self.workers[cpu].poll(&self.rig.engine);
        self.rig.engine.demote(&mut self.workers[cpu], || false);
    }

    fn finish(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.finish(&self.rig.engine));
    }

    fn balance(&mut self) {
        self.finish();
        let status = self.rig.engine.status();
        let low = overspill_engine::frames::Watermarks::of(status.frames).low;
        // With more free frames, the call would sleep.
        if status.free_frames <= low {
            self.rig.engine.balance(&mut self.workers[CPU.get()], || false);
        }
    }

    fn discard(&mut self, first: usize, pages: usize) {
        self.finish();
        self.forget_strangers(first, pages);
        self.rig.engine.discard(PageNo(first as u32), pages);
        self.model[first..first + pages].fill(Some(0));
        self.locked.retain(|page| !(first..first + pages).contains(page));
    }

    /// At most a quarter of the frames, so that there is always something to evict.
    fn lock(&mut self, page: usize, lock: bool) {
        self.finish();
        let allowed = self.locked.len() < self.setup.frames / 4 && !self.locked.contains(&page);
        if lock && allowed && self.rig.engine.set_unevictable(PageNo(page as u32), true) {
            self.locked.push(page);
        } else if !lock && self.rig.engine.set_unevictable(PageNo(page as u32), false) {
            self.locked.retain(|&locked| locked != page);
        }
    }

    /// Checks that every page is as in the model, that nothing has leaked, and that errors were
    /// reported.
    fn end_well(mut self) {
        self.rig.plans.iter().for_each(|plan| plan.set(Faults::default()));
        for page in 0..PAGES {
            if !self.touch(page, None) {
                return self.end_of_memory();
            }
        }
        self.finish();
        assert_eq!(self.rig.engine.check(), Ok(()));
        self.check_log();
        self.discard(0, PAGES);
        self.finish();
        assert_eq!(self.rig.engine.check(), Ok(()));
        // Pages in the swap cache stay there until reclaim finds them.
        let status = self.rig.engine.status();
        assert_eq!(status.free_frames + status.cached, self.setup.frames, "frames leaked");
        let used = self.rig.engine.areas().iter().map(|area| area.used_slots() as usize);
        assert_eq!(used.sum::<usize>(), status.cached, "slots leaked");
    }

    /// Without a sound device memory may run out. What is in memory is still right.
    fn end_of_memory(mut self) {
        assert!(self.setup.hopeless, "memory ended: {:?}", self.rig.engine.last_error());
        assert!(self.rig.engine.last_error().is_some());
        (0..PAGES).for_each(|page| {
            self.look(page, None);
        });
        self.finish();
        assert_eq!(self.rig.engine.check(), Ok(()));
        self.check_log();
    }

    fn check_log(&self) {
        let log = self.log.lock().unwrap();
        let count = |event| self.rig.engine.stats().get(event);
        let says = |words| log.iter().any(|line| line.contains(words));
        let poisoned = count(Event::pages_poisoned);
        assert_eq!(says("is lost"), poisoned > 0, "{poisoned} lost; said: {log:?}");
        assert_eq!(count(Event::pages_lost), poisoned, "lost to something else: {log:?}");
        let failed = count(Event::write_errors);
        assert_eq!(says("stay in memory"), failed > 0, "{failed} failed; said: {log:?}");
        assert!(self.lost <= poisoned, "{} pages lost, {poisoned} counted", self.lost);
        let first = &self.setup.devices[0].faults;
        assert!(poisoned <= self.worst(first), "{poisoned} pages lost by {first:?}");
        if let Some(slot) = first.unreadable {
            let told = log.iter().filter(|line| line.contains("is lost"));
            let named = format!("slot {slot} ");
            told.for_each(|line| assert!(line.contains(&named), "{line} with only {slot} bad"));
        }
        let fails = self.setup.devices.iter().any(|device| breaks(&device.faults));
        assert!(fails || log.is_empty(), "nothing failed; said: {log:?}");
    }

    /// Returns the most pages that `faults` can lose.
    fn worst(&self, faults: &Faults) -> u64 {
        if faults.garble_read.is_some() {
            self.setup.tuning.readahead_max_pages as u64
        } else if faults.fail_read.or(faults.short_read).is_some() {
            1
        } else if loses(faults) {
            u64::MAX
        } else {
            0
        }
    }
}

fn loses(faults: &Faults) -> bool {
    let any = faults.unreadable.is_some() || faults.vanish_from.is_some();
    any || faults.read_failures_per_mille > 0
}

fn breaks(faults: &Faults) -> bool {
    let reads = faults.fail_read.or(faults.short_read).or(faults.garble_read);
    let writes = faults.fail_write.or(faults.short_write).or(faults.fail_writes_from);
    reads.or(writes).is_some() || loses(faults) || faults.write_failures_per_mille > 0
}

fn rig(setup: &Setup, log: Arc<Mutex<Vec<String>>>) -> Rig {
    let space = SimSpace::new(PAGES);
    let plan = |_: &DeviceSetup| Arc::new(FaultPlan::new(Faults::default()));
    let plans: Vec<_> = setup.devices.iter().map(plan).collect();
    let devices = setup.devices.iter().zip(&plans).enumerate();
    let engine = Engine::new(EngineParts {
        frames: setup.frames,
        table: PageTable::new(Table::on_heap(PAGES, || AtomicU64::new(0))),
        space: Space::Moving(space.clone()),
        page_bytes: PAGE_SIZE,
        swaps: devices
            .map(|(n, (device, plan))| swap(n, device, plan, setup.tuning.area))
            .collect(),
        arena: PageArena::new(Engine::staging_pages(setup.frames)).unwrap(),
        stats: Stats::on_heap(),
        report: Box::new(move |line| log.lock().unwrap().push(line.to_owned())),
        tuning: setup.tuning,
        cpus: Cpus { count: CPUS, current: || CPU.get() },
    });
    Rig { engine: Arc::new(engine), space, plans }
}

fn swap(number: usize, setup: &DeviceSetup, plan: &Arc<FaultPlan>, tuning: AreaTuning) -> Swap {
    let kind = SwapKind::Ram { size: Bytes::of_pages(u64::from(setup.slots)) };
    let ram = FileDevice::open(&kind.into(), &OpenOptions::default()).unwrap();
    let slots = ram.info().slots_max;
    let (rotational, discard) = (setup.rotational, setup.discard);
    let config = AreaConfig { tuning, cpus: CPUS, rotational, discard };
    let table = SlotTable::on_heap(slots, config, &ram.info().reserved);
    let faulty = Arc::new(Faulty::new(Arc::new(ram), plan.clone()));
    // Half of the devices are encrypted.
    let device = if slots.is_multiple_of(2) { checksummed(faulty) } else { sealed(faulty) };
    Swap {
        area: notifying(SwapArea::new(AreaNo(number as u8), table, config), &*device),
        device,
        priority: setup.priority,
    }
}
