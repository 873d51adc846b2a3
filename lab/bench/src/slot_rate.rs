//! `slots`: how fast slots are allocated and freed, without I/O.
//!
//! Owns: the threads that do it.
//! Invariants: locks are not counted while slots are timed; slots per acquisition come from the
//! counted replay of [`crate::slots`]. Presets alternate within a round.
//! Not here: what slots are for.

use crate::cpus::become_cpu;
use crate::cpus::cpu_time;
use crate::error::{BenchError, within};
use crate::slots::{self, ASK_SLOTS, CountedSlots, DeviceState};
use overspill_area::{AreaTuning, Preset, SwapAreas, SwapEntry};
use overspill_report::Environment;
use overspill_report::plot::Spread;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct SlotOptions {
    /// Numbers of threads, each run separately.
    pub threads: Vec<usize>,
    /// Seconds of one run.
    pub seconds: f64,
    /// Runs of each combination.
    pub rounds: usize,
    /// Slots of the area.
    pub area_slots: u32,
}

/// Every preset on every device with every number of threads.
#[derive(Debug, Serialize)]
pub struct SlotReport {
    /// The machine.
    pub environment: Environment,
    /// Seconds of each run.
    pub seconds: f64,
    /// Runs of each combination.
    pub rounds: usize,
    /// Slots of the area.
    pub area_slots: u32,
    /// A row for each combination.
    pub rows: Vec<SlotRow>,
}

/// One preset on one device with one number of threads.
#[derive(Debug, Serialize)]
pub struct SlotRow {
    /// The preset.
    pub preset: &'static str,
    /// State of the device before the run.
    pub state: DeviceState,
    /// Threads, each a CPU of its own.
    pub threads: usize,
    /// Millions of slots allocated, and as many freed, per second.
    pub mega_slots_per_s: Spread,
    /// The same per second of CPU time.
    pub mega_slots_per_cpu_s: Spread,
    /// The locks that this takes.
    pub counted: CountedSlots,
}

/// Slots a thread holds; random ones of them are freed.
const HELD_SLOTS: usize = 256;
const STATES: [DeviceState; 2] = [DeviceState::Fresh, DeviceState::NinetyPercentFull];
const THREADS_MAX: usize = 64;

/// Runs all combinations; `progress` gets a line from time to time.
///
/// # Errors
/// [`BenchError::OutOfRange`].
pub fn slot_rates(
    options: &SlotOptions,
    progress: &dyn Fn(&str),
) -> Result<SlotReport, BenchError> {
    options.threads.iter().try_for_each(|&n| within("--threads", n, 1..=THREADS_MAX))?;
    within("--seconds", options.seconds, 0.01..=3600.0)?;
    within("--rounds", options.rounds, 1..=1000)?;
    let mut rows = Vec::new();
    for state in STATES {
        for &threads in &options.threads {
            progress(&format!("{} device, {threads} threads: all presets", state.name()));
            rows.extend(all_presets(state, threads, options));
        }
    }
    Ok(SlotReport {
        environment: Environment::read(),
        seconds: options.seconds,
        rounds: options.rounds,
        area_slots: options.area_slots,
        rows,
    })
}

fn all_presets(state: DeviceState, threads: usize, options: &SlotOptions) -> Vec<SlotRow> {
    let mut rates = Preset::ALL.map(|_| Vec::new());
    for _ in 0..options.rounds {
        for ((preset, _), rates) in Preset::ALL.into_iter().zip(&mut rates) {
            rates.push(rate(AreaTuning::of(preset), state, threads, options));
        }
    }
    let row = |((preset, name), rates): ((Preset, &'static str), Vec<Rate>)| SlotRow {
        preset: name,
        state,
        threads,
        mega_slots_per_s: Spread::of(rates.iter().map(|rate| rate.per_s)),
        mega_slots_per_cpu_s: Spread::of(rates.iter().map(|rate| rate.per_cpu_s)),
        counted: slots::counted(AreaTuning::of(preset), options.area_slots, threads, state),
    };
    Preset::ALL.into_iter().zip(rates).map(row).collect()
}

/// Millions of slots exchanged.
struct Rate {
    per_s: f64,
    per_cpu_s: f64,
}

/// Measures how fast `threads` threads exchange slots of their own area.
fn rate(tuning: AreaTuning, state: DeviceState, threads: usize, options: &SlotOptions) -> Rate {
    let areas = slots::single(options.area_slots, tuning, threads);
    slots::prepare(&areas, state, &mut fastrand::Rng::with_seed(threads as u64));
    let (stop, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    let (start, cpu_start) = (Instant::now(), cpu_time());
    std::thread::scope(|s| {
        for cpu in 0..threads {
            let (areas, stop, exchanged) = (&areas, &stop, &exchanged);
            s.spawn(move || exchanged.fetch_add(exchange_until(stop, areas, cpu), Relaxed));
        }
        std::thread::sleep(Duration::from_secs_f64(options.seconds));
        stop.store(true, Relaxed);
    });
    let mega_slots = exchanged.load(Relaxed) as f64 / 1e6;
    Rate {
        per_s: mega_slots / start.elapsed().as_secs_f64(),
        per_cpu_s: mega_slots / (cpu_time() - cpu_start).as_secs_f64(),
    }
}

/// Exchanges slots at least once: on a busy machine a thread may not run before it is stopped.
fn exchange_until(stop: &AtomicBool, areas: &SwapAreas, cpu: usize) -> u64 {
    become_cpu(cpu);
    let mut random = fastrand::Rng::with_seed(cpu as u64);
    let mut held: Vec<SwapEntry> = Vec::with_capacity(HELD_SLOTS);
    slots::take(areas, cpu, HELD_SLOTS, &mut held);
    let mut exchanged = 0;
    loop {
        for _ in 0..ASK_SLOTS.min(held.len()) {
            slots::give(areas, cpu, held.swap_remove(random.usize(..held.len())));
        }
        exchanged += slots::take(areas, cpu, ASK_SLOTS, &mut held) as u64;
        if stop.load(Relaxed) {
            return exchanged;
        }
    }
}
