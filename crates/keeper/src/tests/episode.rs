//! An episode: a keeper over guests in ordinary memory, with everything that can happen to them in
//! an order that a seed decides.
//!
//! Owns: the keeper's threads as steps of one thread, and when what is called.
//! Invariants: what a guest reads is what it has written, in whatever order; see
//! [`twin`](super::twin). When nothing is asked for any more all is served, and when all have ended
//! nothing is left of them.
//! Not here: the threads themselves (`keeper`), the kernel.

use super::pausing::set_others;
use super::twin::{Habits, Telling, Twin, TwinFront, World};
use crate::serve::leaving::Stays;
use crate::serve::shared::{KeeperParts, Shared};
use overspill_agent::Barrier;
use overspill_area::{AreaConfig, AreaNo, AreaTuning, Preset, SlotTable, SwapArea};
use overspill_base::Bytes;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_device::faulty::{FaultPlan, Faults, Faulty};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{SwapDevice, SwapKind};
use overspill_engine::{Swap, Tuning, Worker};
use overspill_guest::Vpn;
use std::sync::Mutex;

/// Pages of the limit at first, and the most.
pub(super) const LIMIT_PAGES: u64 = 64;
pub(super) const LIMIT_MAX_PAGES: u64 = 256;
const SWAP_PAGES: u64 = 4096;
/// Steps of an episode, and those in which all that was begun must have ended.
pub(super) const STEPS: u32 = 3000;
const LAST_STEPS: u32 = 200_000;
/// How often it is tried to find all threads of a guest out of its gate, and steps between two
/// tries.
const STANDING_TRIES: u32 = 100;
const STEPS_BETWEEN: u32 = 5;
/// The number of the first guest.
pub(super) const FIRST: u64 = 1;

/// Small, so that batches and windows are often full.
const TUNING: Tuning = Tuning {
    reclaim_batch_pages: 8,
    lru_batch_pages: 2,
    readahead_max_pages: 8,
    fault_around_pages: 4,
    swap_cache_trunk_shift: 4,
    rotate_batch_pages: 2,
    ..Tuning::of(Preset::Modern)
};

const AREA: AreaConfig = AreaConfig {
    tuning: AreaTuning::of(Preset::Modern),
    cpus: 2,
    rotational: false,
    discard: false,
};

pub(super) const USUAL: Habits = Habits {
    threads: 3,
    spaces_max: 1,
    pages_max: 200,
    interruptions_max: 3,
    busy_per_mille: 20,
    ends_per_mille: 0,
    moves_at_forks: false,
    telling: Telling::Kernel,
};

/// Everybody who may tell.
pub(super) const TELLING: [Telling; 4] = [
    Telling::Kernel,
    Telling::Letters,
    Telling::Signals(Barrier::Guard),
    Telling::Signals(Barrier::NoAccess),
];

pub(super) type Lines = std::sync::Arc<Mutex<Vec<String>>>;

/// Prints how to replay a failure, what was under way, and what the keeper has said.
struct Replay(u64, std::sync::Arc<World>, Lines);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(seed, world, lines) = self;
            eprintln!("replay with OVERSPILL_SEED={seed}; {:?}", lines.lock());
            eprintln!("under way:\n{}", world.describe());
        }
    }
}

pub(super) struct Episode {
    pub(super) shared: std::sync::Arc<Shared>,
    pub(super) worker: Worker,
    pub(super) world: std::sync::Arc<World>,
    pub(super) front: Arc<TwinFront>,
    pub(super) random: fastrand::Rng,
    pub(super) lines: Lines,
    pub(super) plan: Arc<FaultPlan>,
    _replay: Replay,
}

/// Memory as swap, which fails as is planned.
fn ram(plan: &Arc<FaultPlan>) -> Swap {
    let kind = SwapKind::Ram { size: Bytes::of_pages(SWAP_PAGES) };
    let ram = FileDevice::open(&kind.into(), &OpenOptions::default()).unwrap();
    let slots = SlotTable::on_heap(ram.info().slots_max, AREA, &ram.info().reserved);
    let device = Arc::new(Faulty::new(Arc::new(ram), plan.clone()));
    Swap { area: SwapArea::new(AreaNo(0), slots, AREA), device, priority: 0 }
}

/// What a small keeper is made of, that says everything to `lines`.
pub(super) fn keeper_parts(
    front: &Arc<TwinFront>,
    lines: &Lines,
    plan: &Arc<FaultPlan>,
) -> KeeperParts {
    let told = lines.clone();
    KeeperParts {
        memory: Bytes::of_pages(LIMIT_PAGES),
        memory_max: Bytes::of_pages(LIMIT_MAX_PAGES),
        swaps: vec![ram(plan)],
        stats: Stats::on_heap(),
        arrivals: None,
        tuning: TUNING,
        front: front.clone(),
        report: Box::new(move |line| told.lock().unwrap().push(line.into())),
    }
}

/// What the thread that reads letters does, and the front for it.
fn read_letters(shared: &Shared, front: &TwinFront) {
    shared.read_all_letters();
    while let Some((birth, fetched)) = front.take_birth() {
        shared.fetched(birth.parent, birth.fork, fetched);
    }
}

impl Episode {
    pub(super) fn new(habits: Habits, seed: u64) -> Self {
        let (world, front) = (World::new(habits, seed), Arc::new(TwinFront::default()));
        let lines = Lines::default();
        let plan = Arc::new(FaultPlan::new(Faults::default()));
        let shared = Shared::new(keeper_parts(&front, &lines, &plan)).unwrap();
        let shared = std::sync::Arc::new(shared);
        let others = (std::sync::Arc::downgrade(&shared), front.clone(), world.clone());
        set_others(move || {
            let (shared, front, world) = &others;
            world.run_one();
            shared.upgrade().iter().for_each(|shared| read_letters(shared, front));
        });
        let worker = Worker::new(&shared.engine).unwrap();
        let random = fastrand::Rng::with_seed(seed);
        let _replay = Replay(seed, world.clone(), lines.clone());
        let episode = Self { shared, worker, world, front, random, lines, plan, _replay };
        episode.attach(FIRST, &episode.world.twin(0));
        episode
    }

    pub(super) fn attach(&self, number: u64, twin: &Twin) {
        self.front.know(number, twin.clone());
        let attached = twin.attached(&format!("process {number:x}"));
        let letters = twin.letters();
        self.shared.add(number, attached, letters.as_ref()).unwrap();
    }

    /// The same after some steps.
    pub(super) fn lived(habits: Habits, seed: u64) -> Self {
        let mut episode = Self::new(habits, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode
    }

    /// One step of some thread of the keeper, or of the guests.
    pub(super) fn step(&mut self) {
        let guests = self.shared.all_guests();
        let guest = self.random.choice(&guests).cloned();
        let Some(guest) = guest else {
            self.world.run_one();
            return;
        };
        match self.random.u32(0..100) {
            0..40 => _ = self.world.run_one(),
            40..66 => _ = self.shared.serve(&mut self.worker, &guest),
            66..75 => self.shared.settle(&mut self.worker, &guest),
            75..81 => _ = self.shared.survey(&guest),
            81..87 => self.shared.care_for_one(&mut self.worker, &guest),
            87..89 => self.worker.finish(&self.shared.engine),
            89 => self.reclaim(),
            90..95 => self.read_letters(),
            _ => self.attach_a_child(),
        }
    }

    /// What the thread does that reclaims in the background.
    pub(super) fn reclaim(&mut self) {
        self.shared.engine.make_room(&mut self.worker, 8);
    }

    pub(super) fn read_letters(&self) {
        read_letters(&self.shared, &self.front);
    }

    pub(super) fn attach_a_child(&mut self) {
        if let Some((number, twin)) = self.front.take_born(self.random.usize(0..100))
            && !twin.has_ended()
        {
            match twin.may_attach() {
                true => self.attach(number, &twin),
                false => self.front.put_back(number, twin),
            }
        }
    }

    pub(super) fn change_limit(&mut self) {
        let pages = self.random.u64(LIMIT_PAGES / 2..LIMIT_MAX_PAGES);
        self.shared.set_limit(Bytes::of_pages(pages));
    }

    pub(super) fn steps_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..LAST_STEPS {
            self.step();
            if is_done(self) {
                return;
            }
        }
        panic!("something waits for ever");
    }

    /// As the front does, which goes on with its other things where that cannot be now.
    pub(super) fn let_go(&mut self, number: u64) {
        let mut from = Some(Vpn(0));
        while let Some(next) = from {
            from = self.shared.bring_some(&mut self.worker, number, next).unwrap();
            (0..20).for_each(|_| self.step());
        }
        self.stand_still_and_go(number);
    }

    pub(super) fn stand_still_and_go(&mut self, number: u64) -> bool {
        self.try_to_let_go(number).unwrap()
    }

    pub(super) fn try_to_let_go(&mut self, number: u64) -> Result<bool, Stays> {
        // A gate in which somebody is cannot be opened.
        let may_go = (0..STANDING_TRIES).any(|_| {
            let stands = self.stands(number);
            (0..STEPS_BETWEEN).filter(|_| !stands).for_each(|_| self.step());
            stands
        });
        let is_gone = if may_go { self.shared.let_go(&mut self.worker, number) } else { Ok(false) };
        match (is_gone, self.shared.guest(number)) {
            (Ok(true), _) => self.front.twin(number).detach(),
            (_, Some(guest)) => guest.threads.walk_on(),
            (_, None) => {}
        }
        is_gone
    }

    /// True if nobody is in a gate of a guest, of which nobody goes on then.
    fn stands(&self, number: u64) -> bool {
        let guest = self.shared.guest(number);
        guest.is_none_or(|guest| guest.letters.lock().is_none() || guest.threads.stand_still())
    }

    /// Lets all end what they do, and reads everything.
    pub(super) fn read_all(&mut self) {
        self.world.calm();
        self.steps_until(|this| this.world.is_calm());
        self.world.touch_all();
        self.steps_until(|this| this.world.is_calm());
        self.worker.finish(&self.shared.engine);
        assert_eq!(self.shared.engine.check(), Ok(()));
    }

    /// Ends all guests, and looks what is left of them.
    pub(super) fn end(mut self) {
        self.world.end_all();
        self.steps_until(|this| {
            let guests = this.shared.all_guests();
            guests.iter().filter(|guest| guest.is_over()).for_each(|guest| guest.ended());
            guests.is_empty()
        });
        self.worker.finish(&self.shared.engine);
        self.shared.engine.drain();
        assert_eq!(self.shared.engine.check(), Ok(()));
        assert_eq!(self.shared.engine.used_frames(), 0);
        assert_eq!(self.shared.engine.areas().get(AreaNo(0)).used_slots(), 0);
    }

    pub(super) fn assert_quiet(&self) {
        self.assert_says_only("nothing");
    }

    pub(super) fn assert_says_only(&self, end: &str) {
        let lines = self.lines.lock().unwrap().clone();
        assert!(lines.iter().all(|line| line.ends_with(end)), "{lines:?}");
    }
}
