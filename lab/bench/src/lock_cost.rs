//! `locks`: cost of an uncontended lock, counted and uncounted.

use overspill_base::sync::{LockClass, Mutex, count_locks};
use overspill_report::Environment;
use overspill_report::plot::Spread;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Nanoseconds for locking and unlocking.
#[derive(Debug, Serialize)]
pub struct LockCostReport {
    /// The machine.
    pub environment: Environment,
    /// Lock and unlock pairs in each run.
    pub repetitions: u32,
    /// Runs of each.
    pub rounds: usize,
    /// `std::sync::Mutex`, with poisoning checked as in ours.
    pub std_ns: Spread,
    /// `base::sync::Mutex`, counting off.
    pub uncounted_ns: Spread,
    /// `base::sync::Mutex`, counting on.
    pub counted_ns: Spread,
}

const REPETITIONS: u32 = 2_000_000;
const ROUNDS: usize = 5;

/// Measures the three in turn, for several rounds.
pub fn lock_costs() -> LockCostReport {
    let plain = std::sync::Mutex::new(0u64);
    let ours = Mutex::new(LockClass::Control, 0u64);
    let mut costs = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        costs[0].push(ns_each(|| *plain.lock().unwrap_or_else(|e| e.into_inner()) += 1));
        costs[1].push(ns_each(|| *ours.lock() += 1));
        count_locks(true);
        costs[2].push(ns_each(|| *ours.lock() += 1));
        count_locks(false);
    }
    black_box((plain, ours));
    let [std_ns, uncounted_ns, counted_ns] = costs.map(|costs| Spread::of(costs.into_iter()));
    LockCostReport {
        environment: Environment::read(),
        repetitions: REPETITIONS,
        rounds: ROUNDS,
        std_ns,
        uncounted_ns,
        counted_ns,
    }
}

fn ns_each(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..REPETITIONS).for_each(|_| f());
    start.elapsed().as_nanos() as f64 / f64::from(REPETITIONS)
}
