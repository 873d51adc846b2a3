//! Random histories of two or three threads on mappings of several pages, from seeds.
//!
//! Whenever nothing is outstanding, what the pager would put at each page must be what is to be
//! read there. `OVERSPILL_SEED=n` replays one, `OVERSPILL_SEEDS=n` plays the first n. What fails is
//! shrunk.

use super::pager::{Step, World};
use super::pages::{Call, PAGES};
use fastrand::Rng;
use overspill_mutate::seeds;
use std::panic::AssertUnwindSafe;

/// Three seconds.
const USUAL: u64 = 20_000;
/// A history is long enough for each thread to make some calls, and short enough to be read.
const STEPS: usize = 120;

impl World {
    /// Picks a step, which may not be possible.
    fn pick(&self, rng: &mut Rng) -> Step {
        let page = rng.usize(0..PAGES);
        let thread = rng.usize(0..self.threads);
        match rng.u8(0..20) {
            0..3 => Step::Enter(thread, pick_call(rng)),
            3..8 => Step::GoOn(thread),
            8..11 => Step::Read,
            11 => Step::Settle,
            12 if self.candidate.is_some() => Step::Confirm,
            12 => Step::Register(self.mapping_at(page)),
            13 => Step::Bind(page),
            14..16 => {
                let call = rng.bool().then(|| (thread, pick_call(rng)));
                Step::Evict(page..PAGES.min(page + rng.usize(1..5)), call)
            }
            16..18 => Step::Fill(page),
            18 => Step::Write(thread, page),
            _ => Step::LookAtDoomed,
        }
    }
}

fn pick_call(rng: &mut Rng) -> Call {
    let (start, to) = (rng.usize(0..PAGES), rng.usize(0..PAGES));
    let pages = start..PAGES.min(start + rng.usize(1..5));
    match rng.u8(0..11) {
        0 => Call::Map(pages),
        1 => Call::FailToMapOver(pages),
        2 => Call::Unmap(pages),
        3..6 => {
            let len = if rng.bool() { pages.len() } else { rng.usize(1..=pages.len() + 2) };
            Call::Move { from: pages, to, len }
        }
        6 => Call::MoveAndStay(pages, to),
        7..9 => Call::DontNeed(pages),
        9 => Call::GrowInto(pages),
        _ => Call::Protect(pages),
    }
}

/// Plays random steps; returns them if something is wrong after the last.
fn play(seed: u64) -> Option<Vec<Step>> {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new(&mut rng);
    let mut history = Vec::new();
    while history.len() < STEPS {
        let step = world.pick(&mut rng);
        if world.may_take(&step) {
            history.push(step.clone());
            if what_is_wrong(&mut world, &step).is_some() {
                return Some(history);
            }
        }
    }
    None
}

fn what_is_wrong(world: &mut World, step: &Step) -> Option<String> {
    let take = AssertUnwindSafe(|| world.take(step).and_then(|()| world.check()));
    std::panic::catch_unwind(take).unwrap_or_else(|_| Err("the map panics".into())).err()
}

/// Plays those steps that can be taken; returns what is wrong after one, and which were taken.
fn replay(seed: u64, steps: &[Step]) -> Option<(String, Vec<Step>)> {
    let mut world = World::new(&mut Rng::with_seed(seed));
    let mut taken = Vec::new();
    for step in steps {
        if world.may_take(step) {
            taken.push(step.clone());
            if let Some(what) = what_is_wrong(&mut world, step) {
                return Some((what, taken));
            }
        }
    }
    None
}

/// Leaves out steps for as long as something is still wrong.
fn shrink(seed: u64, history: &[Step]) -> (String, Vec<Step>) {
    let (mut what, mut history) = replay(seed, history).expect("it was wrong before");
    let mut n = 0;
    while n < history.len() {
        let without = [&history[..n], &history[n + 1..]].concat();
        match replay(seed, &without) {
            Some(shorter) => ((what, history), n) = (shorter, 0),
            None => n += 1,
        }
    }
    (what, history)
}

#[test]
fn whatever_threads_do_every_page_is_found() {
    for seed in seeds(USUAL) {
        if let Some(history) = play(seed) {
            let (what, history) = shrink(seed, &history);
            panic!("OVERSPILL_SEED={seed}: {what} after {history:?}");
        }
    }
}
