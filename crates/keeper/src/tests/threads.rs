//! A keeper with all its threads, over guests in ordinary memory.
//!
//! Owns: a thread that lets the guests run, and attaches to their children.
//! Not here: orders that a seed decides (`episodes`).

use super::episode::{Lines, USUAL, keeper_parts};
use super::twin::{Habits, TwinFront, World};
use crate::keeper::Keeper;
use overspill_base::Bytes;
use overspill_base::sync::Arc;
use overspill_device::faulty::{FaultPlan, Faults};
use overspill_mutate::seeds;
use std::time::{Duration, Instant};

/// How long guests run, and how long all may take that they have begun.
const RUN: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);

struct Family {
    keeper: Keeper,
    world: std::sync::Arc<World>,
    front: Arc<TwinFront>,
    lines: Lines,
}

impl Family {
    fn new(seed: u64) -> Self {
        let habits = Habits { spaces_max: 5, ends_per_mille: 2, ..USUAL };
        let (world, front) = (World::new(habits, seed), Arc::new(TwinFront::default()));
        let lines = Lines::default();
        let plan = Arc::new(FaultPlan::new(Faults::default()));
        let keeper = Keeper::start(keeper_parts(&front, &lines, &plan)).unwrap();
        let family = Self { keeper, world, front, lines };
        family.attach(1, 0);
        family
    }

    fn attach(&self, number: u64, space: usize) {
        let twin = self.world.twin(space);
        self.front.know(number, twin.clone());
        self.keeper.shared.add(number, twin.attached("a guest"), None).unwrap();
    }

    /// Lets the guests run, and attaches to children.
    fn go_on(&self) {
        if !self.world.run_one() {
            std::thread::sleep(Duration::from_micros(100));
        }
        if let Some((number, twin)) = self.front.take_born(0)
            && !twin.has_ended()
        {
            self.keeper.shared.add(number, twin.attached("a child"), None).unwrap();
        }
    }

    fn until(&self, is_done: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_done() {
            self.go_on();
            let waits = || format!("{:?} {}", self.lines.lock(), self.world.describe());
            assert!(start.elapsed() < PATIENCE, "something waits for ever: {}", waits());
        }
    }
}

#[test]
fn a_family_is_paged_by_threads() {
    for seed in seeds(3) {
        let family = Family::new(seed);
        let start = Instant::now();
        family.until(|| start.elapsed() > RUN / 2);
        family.keeper.set_memory(Bytes::of_pages(200));
        family.until(|| start.elapsed() > RUN);
        family.keeper.set_memory(Bytes::of_pages(64));
        family.world.calm();
        family.until(|| family.world.is_calm());
        family.world.touch_all();
        family.until(|| family.world.is_calm());
        assert_eq!(*family.lines.lock().unwrap(), Vec::<String>::new());
        family.world.end_all();
        family
            .keeper
            .shared
            .all_guests()
            .iter()
            .for_each(|guest| family.keeper.ended(guest.number));
        family.until(|| family.keeper.is_deserted());
        assert_eq!(family.keeper.engine().used_frames(), 0);
    }
}
