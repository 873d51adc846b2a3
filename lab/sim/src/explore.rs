//! `explore`: small machines in schedules that no clock would produce, checked after each.
//!
//! Owns: the episodes. A seed determines the tuning, all sizes, what the tasks do, and in which
//! order they take turns. Sizes are shrunk so that rare paths become common.
//! Invariants: an episode that fails panics, and prints the seed first; the same seed plays the
//! same episode. Each episode checks: every page read has the content last written; the counter
//! equations of engine and areas; that no task waits forever; in builds with debug assertions the
//! lock order and the engine's own assertions.
//! Not here: choosing the order (`overspill-vcpu`).

use crate::device::{DeviceModel, OPTANE, PMEM};
use crate::error::{SimError, within};
use crate::node::{Node, NodePlan};
use crate::shootdown::Shootdown;
use crate::space::Touch;
use overspill_area::Preset;
use overspill_base::PageNo;
use overspill_base::clock::Cpus;
use overspill_engine::{FaultOutcome, Tuning, Worker};
use overspill_vcpu::{Costs, Machine, Schedule, Shape};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};

/// Which episodes to play.
#[derive(Clone, Copy, Debug)]
pub struct ExploreOptions {
    /// The first seed.
    pub seed: u64,
    /// Number of episodes; 0 for no end.
    pub runs: u64,
}

/// Episodes between two progress messages.
const PROGRESS_RUNS: u64 = 1000;
/// Accesses of one task.
const ACCESSES: usize = 40;

/// Plays `options.runs` episodes; returns a summary.
///
/// # Errors
/// [`SimError::OutOfRange`].
///
/// # Panics
/// If an episode fails.
pub fn explore(options: &ExploreOptions, progress: &dyn Fn(&str)) -> Result<String, SimError> {
    within("--runs", options.runs, 0..=1 << 40)?;
    tell_seed_of_panics();
    let last = if options.runs == 0 { u64::MAX } else { options.seed.saturating_add(options.runs) };
    for seed in options.seed..last {
        SEED.store(seed, Relaxed);
        Episode::of(seed).play();
        let played = seed - options.seed + 1;
        if played.is_multiple_of(PROGRESS_RUNS) {
            progress(&format!("{played} schedules"));
        }
    }
    SEED.store(NO_SEED, Relaxed);
    let (runs, seed) = (options.runs, options.seed);
    Ok(format!("{runs} schedules from seed {seed} on: every page and every counter is right"))
}

const NO_SEED: u64 = u64::MAX;
static SEED: AtomicU64 = AtomicU64::new(NO_SEED);

/// A panic aborts a release build at once, so the hook prints the seed before.
fn tell_seed_of_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let seed = SEED.load(Relaxed);
            if seed != NO_SEED {
                eprintln!("seed {seed} fails: overspill-lab sim explore --seed {seed} --runs 1");
            }
            before(info);
        }));
    });
}

/// One episode.
struct Episode {
    tuning: Tuning,
    device: DeviceModel,
    devices: usize,
    frames: usize,
    pages: usize,
    tasks: usize,
    schedule: Schedule,
    seed: u64,
}

impl Episode {
    fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (preset, _) = Preset::ALL[random.usize(..Preset::ALL.len())];
        let frames = random.usize(6..=16);
        let schedule = match random.u8(..4) {
            0 => Schedule::Random { seed },
            preemptions => {
                let preemptions = usize::from(preemptions);
                Schedule::Bounded { seed, preemptions, points: random.u64(1000..20_000) }
            }
        };
        Self {
            tuning: shrunk(Tuning::of(preset), &mut random),
            device: if random.bool() { PMEM } else { OPTANE },
            devices: random.usize(1..=2),
            frames,
            pages: frames + random.usize(1..=16),
            tasks: random.usize(2..=3),
            schedule,
            seed,
        }
    }

    fn play(&self) {
        let cpus = self.tasks + 1;
        let shape = Shape { cpus, sockets: 1, interrupt_cpu: None };
        let mut machine = Machine::new(shape, &Costs::DEFAULT, self.schedule);
        let plan = NodePlan {
            cpus: Cpus { count: cpus, current: overspill_vcpu::cpu },
            frames: self.frames,
            process_pages: self.pages,
            processes: vec![(0..self.tasks).collect()],
            device: self.device,
            devices: self.devices,
            device_slots: 128,
            foreign: 0.0,
            sparse: false,
            tuning: self.tuning,
            servers: None,
        };
        let node = Rc::new(Node::new(&plan, &Arc::new(Shootdown::new(cpus)), self.seed));
        let running = Rc::new(Cell::new(self.tasks));
        for task in 0..self.tasks {
            let (node, running) = (node.clone(), running.clone());
            let (pages, seed) = (self.pages as u32, self.seed << 8 | task as u64);
            machine.spawn(format!("toucher {task}"), task, move || {
                touch_pages(&node, pages, seed);
                running.set(running.get() - 1);
                node.engine.wake_background();
            });
        }
        let reclaimed = node.clone();
        machine.spawn("reclaim", self.tasks, move || reclaim(&reclaimed, &running));
        machine.run();
        node.check();
    }
}

/// Shrinks batches and clusters to a few entries.
fn shrunk(tuning: Tuning, random: &mut fastrand::Rng) -> Tuning {
    let mut small = tuning;
    small.area.cluster_slots = 4;
    small.area.trunk_slots = 16;
    small.area.scan_limit_slots = 4;
    small.area.slot_batch = tuning.area.slot_batch.min(2);
    small.area.free_batch = tuning.area.free_batch.min(2);
    small.swap_cache_trunk_shift = tuning.swap_cache_trunk_shift.min(4);
    small.reclaim_batch_pages = random.usize(1..=4);
    small.lru_batch_pages = random.usize(1..=2);
    small.rotate_batch_pages = tuning.rotate_batch_pages.min(2);
    small.readahead_max_pages = tuning.readahead_max_pages.min(4);
    small
}

fn touch_pages(node: &Node, pages: u32, seed: u64) {
    let mut worker = Worker::new(&node.engine).expect("address space for a worker");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..ACCESSES {
        let page = PageNo(random.u32(..pages));
        let writes = random.bool();
        while node.space.touch(page, writes) == Touch::Missing {
            match node.engine.fault_in_place(&mut worker, page) {
                FaultOutcome::Mapped | FaultOutcome::Pending => {}
                outcome => panic!("{outcome:?}: {:?}", node.engine.last_error()),
            }
        }
    }
    worker.finish(&node.engine);
}

fn reclaim(node: &Node, running: &Cell<usize>) {
    let mut worker = Worker::new(&node.engine).expect("address space for a worker");
    while running.get() > 0 {
        node.engine.balance(&mut worker, || running.get() == 0);
    }
    worker.finish(&node.engine);
}
