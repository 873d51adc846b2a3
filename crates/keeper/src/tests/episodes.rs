//! Episodes: a keeper over guests in ordinary memory, with everything that can happen to them in an
//! order that a seed decides.
//!
//! Owns: the keeper's threads as steps of one thread, and when what is called.
//! Invariants: what a guest reads is what it has written, in whatever order; see
//! [`twin`](super::twin). When nothing is asked for any more all is served, and when all have ended
//! nothing is left of them.
//! Not here: the threads themselves (`keeper`), the kernel.

use super::twin::{Habits, PLACE, Twin, TwinFront, World};
use crate::serve::shared::{KeeperParts, Shared};
use overspill_agent::gate::letter;
use overspill_area::{AreaConfig, AreaNo, AreaTuning, Preset, SlotTable, SwapArea};
use overspill_base::Bytes;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_device::faulty::{FaultPlan, Faults, Faulty};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{SwapDevice, SwapKind};
use overspill_engine::{Swap, Tuning, Worker};
use overspill_guest::Vpn;
use overspill_guest::userfault::Userfault;
use overspill_mutate::seeds;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Pages of the limit at first, and the most.
const LIMIT_PAGES: u64 = 64;
const LIMIT_MAX_PAGES: u64 = 256;
const SWAP_PAGES: u64 = 4096;
/// Steps of an episode, and those in which all that was begun must have ended.
const STEPS: u32 = 3000;
const LAST_STEPS: u32 = 200_000;
/// The number of the first guest.
const FIRST: u64 = 1;

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
    forks_by_letters: false,
};

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

struct Episode {
    shared: Shared,
    worker: Worker,
    world: std::sync::Arc<World>,
    front: Arc<TwinFront>,
    random: fastrand::Rng,
    lines: Lines,
    plan: Arc<FaultPlan>,
    habits: Habits,
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

impl Episode {
    fn new(habits: Habits, seed: u64) -> Self {
        let (world, front) = (World::new(habits, seed), Arc::new(TwinFront::default()));
        let lines = Lines::default();
        let plan = Arc::new(FaultPlan::new(Faults::default()));
        let shared = Shared::new(keeper_parts(&front, &lines, &plan)).unwrap();
        let worker = Worker::new(&shared.engine).unwrap();
        let random = fastrand::Rng::with_seed(seed);
        let _replay = Replay(seed, world.clone(), lines.clone());
        let episode = Self { shared, worker, world, front, random, lines, plan, habits, _replay };
        episode.attach(FIRST, &episode.world.twin(0));
        episode
    }

    /// The children of one with letters write theirs where it does.
    fn attach(&self, number: u64, twin: &Twin) {
        self.front.know(number, twin.clone());
        let letters = (number == FIRST && self.habits.forks_by_letters).then(|| twin.letters());
        let attached = twin.attached(&format!("process {number:x}"));
        self.shared.add(number, attached, letters.as_ref()).unwrap();
    }

    /// One step of some thread of the keeper, or of the guests.
    fn step(&mut self) {
        let guests = self.shared.all_guests();
        let guest = self.random.choice(&guests).cloned();
        let Some(guest) = guest else { return };
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
    fn reclaim(&mut self) {
        self.shared.engine.make_room(&mut self.worker, 8);
    }

    fn read_letters(&self) {
        self.shared.read_all_letters();
        while let Some((birth, fetched)) = self.front.take_birth() {
            self.shared.fetched(birth.parent, birth.fork, fetched);
        }
    }

    fn attach_a_child(&mut self) {
        if let Some((number, twin)) = self.front.take_born(self.random.usize(0..100))
            && !twin.has_ended()
        {
            self.attach(number, &twin);
        }
    }

    fn change_limit(&mut self) {
        let pages = self.random.u64(LIMIT_PAGES / 2..LIMIT_MAX_PAGES);
        self.shared.set_limit(Bytes::of_pages(pages));
    }

    fn steps_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..LAST_STEPS {
            self.step();
            if is_done(self) {
                return;
            }
        }
        panic!("something waits for ever");
    }

    /// As the front does, which goes on with its other things where that cannot be now.
    fn let_go(&mut self, number: u64) {
        let mut from = Some(Vpn(0));
        while let Some(next) = from {
            from = self.shared.bring_some(&mut self.worker, number, next).unwrap();
            (0..20).for_each(|_| self.step());
        }
        self.stand_still_and_go(number);
    }

    fn stand_still_and_go(&mut self, number: u64) -> bool {
        self.shared.guest(number).unwrap().threads.stand_still();
        let is_gone = self.shared.let_go(&mut self.worker, number).unwrap();
        if !is_gone {
            self.shared.guest(number).unwrap().threads.walk_on();
        }
        is_gone
    }

    /// Lets all end what they do, and reads everything.
    fn read_all(&mut self) {
        self.world.calm();
        self.steps_until(|this| this.world.is_calm());
        self.world.touch_all();
        self.steps_until(|this| this.world.is_calm());
        self.worker.finish(&self.shared.engine);
        assert_eq!(self.shared.engine.check(), Ok(()));
    }

    /// Ends all guests, and looks what is left of them.
    fn end(mut self) {
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

    fn assert_quiet(&self) {
        self.assert_says_only("nothing");
    }

    fn assert_says_only(&self, end: &str) {
        let lines = self.lines.lock().unwrap().clone();
        assert!(lines.iter().all(|line| line.ends_with(end)), "{lines:?}");
    }
}

#[test]
fn a_guest_reads_what_it_has_written() {
    for seed in seeds(60) {
        let mut episode = Episode::new(USUAL, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

#[test]
fn a_family_reads_what_it_has_written() {
    for seed in seeds(60) {
        let mut episode = Episode::new(Habits { spaces_max: 6, ends_per_mille: 5, ..USUAL }, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

/// The kernel tells of no fork, and a child has neither marks nor registrations.
#[test]
fn a_family_that_tells_of_its_forks_reads_what_it_has_written() {
    let habits = Habits { spaces_max: 6, ends_per_mille: 5, forks_by_letters: true, ..USUAL };
    for seed in seeds(60) {
        let mut episode = Episode::new(habits, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

/// Messages come late: where a child has what its parent was moving is not known then. It is ended
/// if it misses a page of that, but reads no other one.
#[test]
fn who_is_forked_in_the_middle_of_a_move_reads_nothing_else() {
    let habits = Habits { spaces_max: 6, moves_at_forks: true, ..USUAL };
    for seed in seeds(60) {
        let mut episode = Episode::new(habits, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode.read_all();
        episode.assert_says_only("is out, and lost");
        episode.end();
    }
}

#[test]
fn a_limit_changes_while_guests_go_on() {
    for seed in seeds(30) {
        let mut episode = Episode::new(Habits { spaces_max: 3, ..USUAL }, seed);
        for step in 0..STEPS {
            episode.step();
            if step % 200 == 0 {
                episode.change_limit();
            }
        }
        episode.read_all();
        episode.assert_quiet();
        episode.end();
    }
}

/// Who touches what cannot be read is ended, and nobody reads anything else.
#[test]
fn what_a_device_loses_nobody_reads() {
    for seed in seeds(40) {
        let mut episode = Episode::new(Habits { spaces_max: 4, ..USUAL }, seed);
        episode.plan.set(Faults { seed, read_failures_per_mille: 5, ..Faults::default() });
        (0..STEPS).for_each(|_| episode.step());
        episode.plan.set(Faults::default());
        episode.read_all();
        episode.end();
    }
}

/// It would be taken for new together with its neighbour, and read as zeros.
#[test]
fn a_mark_that_nobody_knows_of_is_a_lost_page() {
    let mut episode = Episode::new(Habits { threads: 1, ..USUAL }, 0);
    episode.world.calm();
    let guest = episode.shared.guest(FIRST).unwrap();
    episode.steps_until(|_| guest.hold().map.believed().next().is_some());
    episode.world.twin(0).mark(&PLACE.start.plus(1).run(1)).unwrap();
    episode.world.touch(PLACE.start);
    episode.steps_until(|this| this.world.is_calm());
    episode.assert_quiet();
    episode.world.touch(PLACE.start.plus(1));
    episode.steps_until(|this| this.world.is_calm());
    assert!(episode.lines.lock().unwrap()[0].ends_with("is out, and lost"));
    assert!(guest.is_over());
}

/// Nothing is known any more of what it has: it is ended, and said to be. The others go on.
#[test]
fn who_has_no_agent_any_more_is_ended() {
    for seed in seeds(20) {
        let mut episode = Episode::new(Habits { spaces_max: 3, ..USUAL }, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode.world.twin(0).lose_agent();
        episode.steps_until(|this| this.world.twin(0).has_ended());
        episode.read_all();
        episode.assert_says_only("1 pages moved of 0");
        episode.end();
    }
}

/// What was brought back is not paged any more, and what comes of it neither.
#[test]
fn a_guest_that_is_let_go_has_all_its_pages() {
    for seed in seeds(30) {
        let mut episode = Episode::new(USUAL, seed);
        (0..STEPS).for_each(|_| episode.step());
        episode.shared.set_limit(Bytes::of_pages(LIMIT_MAX_PAGES));
        while episode.shared.guest(FIRST).is_some() {
            episode.let_go(FIRST);
        }
        episode.assert_quiet();
        assert!(episode.shared.all_guests().is_empty());
    }
}

/// Who lets go is also who attaches to children, which may have all frames before that.
#[test]
fn who_is_let_go_waits_for_no_frames() {
    for seed in seeds(3) {
        let mut episode = Episode::new(Habits { spaces_max: 6, ..USUAL }, seed);
        (0..STEPS).for_each(|_| episode.step());
        let writes_fail = Faults { write_failures_per_mille: 1000, ..Faults::default() };
        episode.plan.set(writes_fail);
        episode.shared.set_limit(Bytes::of_pages(1));
        let begun = Instant::now();
        assert!(!episode.stand_still_and_go(FIRST));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        episode.shared.set_limit(Bytes::of_pages(LIMIT_MAX_PAGES));
        while episode.shared.guest(FIRST).is_some() {
            episode.let_go(FIRST);
        }
    }
}

#[test]
fn who_is_about_to_filter_its_calls_is_told_of_once() {
    let mut episode = Episode::new(Habits { forks_by_letters: true, ..USUAL }, 0);
    episode.read_letters();
    assert_eq!(episode.front.take_wishes(), []);
    episode.world.wish_out();
    (0..2).for_each(|_| episode.read_letters());
    assert_eq!(episode.front.take_wishes(), [FIRST]);
    (0..STEPS).for_each(|_| episode.step());
    episode.read_all();
}

/// A guest may write anything.
#[test]
fn every_letter_has_an_answer() {
    let mut episode = Episode::new(Habits { forks_by_letters: true, ..USUAL }, 0);
    let (unknown, not_now) = (-i64::from(libc::ENOSYS), -i64::from(libc::EAGAIN));
    let everything = [0, u64::MAX, 7, 0];
    for (kind, arguments, expected) in [
        (99, everything, unknown),
        (letter::FAULT, everything, unknown),
        (letter::LOOK, everything, unknown),
        (letter::CHANGE, everything, unknown),
        (letter::KEPT, everything, 0),
        (letter::OUT, everything, 0),
        // Nobody has asked for such a fork, and there is no such child.
        (letter::FORKED, [77, 0, 0, 0], not_now),
        (letter::BORN, [78, u64::MAX, 3, 0], not_now),
        (letter::BORN, [79, 1, u64::MAX, 0], not_now),
    ] {
        let sent = episode.world.send(kind, arguments);
        episode.read_letters();
        assert_eq!(episode.world.take_answer(sent), Some(expected), "{kind} {arguments:?}");
    }
    let guest = episode.shared.guest(FIRST).unwrap();
    let is_awaited = |fork| guest.letters.lock().as_ref().unwrap().awaits_birth(fork);
    assert!([77, 78, 79].iter().all(|fork| !is_awaited(*fork)), "nothing is kept of them");
    (0..STEPS).for_each(|_| episode.step());
    episode.read_all();
}

/// Each takes memory of the keeper's.
#[test]
fn forks_that_are_asked_for_without_end_are_refused() {
    let mut episode = Episode::new(Habits { forks_by_letters: true, threads: 1, ..USUAL }, 0);
    episode.world.calm();
    let fork = || {
        let sent = episode.world.send(letter::FORK, [0; 4]);
        episode.read_letters();
        episode.world.take_answer(sent).unwrap()
    };
    let forks: Vec<i64> = (0..2000).map(|_| fork()).collect();
    let refused = forks.iter().filter(|answer| **answer < 0).count();
    assert!(refused > 900, "{refused}");
    for fork in forks.into_iter().filter(|answer| *answer > 0) {
        let sent = episode.world.send(letter::FORKED, [fork as u64, 0, 0, 0]);
        episode.read_letters();
        assert!(episode.world.take_answer(sent).is_some());
    }
    episode.read_all();
}
