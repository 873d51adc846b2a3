//! `ablate`: each mechanism off and on.
//!
//! Owns: the order of the runs.
//! Invariants: the two sides of an experiment alternate, and which one goes first alternates too,
//! so that a machine that slows down slows both; every run has a fresh engine.
//! Not here: what the sides are ([`crate::mechanisms`]).

use crate::error::{BenchError, within};
use crate::machine::{Machine, Shape};
use crate::mechanisms::{self, Mechanism, Published, Side};
use crate::sample::{LockSummary, Sample, Summary, summarise, summarise_locks};
use crate::slots::{self, CountedSlots, DeviceState};
use crate::workload::{self, Pattern, Workload};
use overspill_report::Environment;
use serde::Serialize;
use std::time::Duration;

/// What to run.
#[derive(Clone, Debug)]
pub struct AblateOptions {
    /// Names of mechanisms; if empty, all.
    pub mechanisms: Vec<String>,
    /// Threads, each a CPU of its own to the engine.
    pub threads: usize,
    /// Seconds of one run.
    pub seconds: f64,
    /// Runs of each side.
    pub rounds: usize,
    /// How large everything is.
    pub shape: Shape,
}

/// All experiments, and the machine they ran on.
#[derive(Debug, Serialize)]
pub struct AblateReport {
    /// The machine.
    pub environment: Environment,
    /// Threads of each run.
    pub threads: usize,
    /// Seconds timed in each run.
    pub seconds: f64,
    /// Runs of each side.
    pub rounds: usize,
    /// Sizes.
    pub shape: Shape,
    /// One per mechanism.
    pub experiments: Vec<Experiment>,
}

/// One mechanism, off and on.
#[derive(Debug, Serialize)]
pub struct Experiment {
    /// The name of its switch.
    pub mechanism: &'static str,
    /// The state of the device.
    pub state: DeviceState,
    /// How the threads access.
    pub pattern: Pattern,
    /// Without it.
    pub before: SideReport,
    /// With it.
    pub after: SideReport,
    /// Where its figures were published.
    pub source: &'static str,
    /// The published figures.
    pub published: &'static [Published],
}

/// One engine, over all rounds.
#[derive(Debug, Serialize)]
pub struct SideReport {
    /// Its name.
    pub name: String,
    /// Medians and spreads.
    pub metrics: Vec<Summary>,
    /// Locks, the most expensive first.
    pub locks: Vec<LockSummary>,
    /// The counted replay of slot allocation.
    pub counted: CountedSlots,
}

/// Returns the names of all mechanisms, in the order they run.
pub fn mechanism_names() -> Vec<&'static str> {
    mechanisms::all().iter().map(|mechanism| mechanism.name).collect()
}

/// Most threads: each has a queue and memory of its own.
const THREADS_MAX: usize = 256;

/// Runs the experiments; `progress` gets a line about each at its start.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::Unknown`], and the errors of a run.
pub fn ablate(
    options: &AblateOptions,
    progress: &dyn Fn(&str),
) -> Result<AblateReport, BenchError> {
    within("--threads", options.threads, 1..=THREADS_MAX)?;
    within("--seconds", options.seconds, 0.05..=3600.0)?;
    within("--rounds", options.rounds, 1..=1000)?;
    let mut experiments = Vec::new();
    for mechanism in chosen(&options.mechanisms)? {
        progress(&format!("{}: {} rounds of both sides", mechanism.name, options.rounds));
        experiments.push(experiment(&mechanism, options)?);
    }
    Ok(AblateReport {
        environment: Environment::read(),
        threads: options.threads,
        seconds: options.seconds,
        rounds: options.rounds,
        shape: options.shape,
        experiments,
    })
}

fn chosen(names: &[String]) -> Result<Vec<Mechanism>, BenchError> {
    let all = mechanisms::all();
    let unknown = names.iter().find(|name| all.iter().all(|mechanism| mechanism.name != *name));
    if let Some(name) = unknown {
        return Err(BenchError::unknown("mechanism", name, mechanism_names().into_iter()));
    }
    let wanted =
        |mechanism: &Mechanism| names.is_empty() || names.iter().any(|n| n == mechanism.name);
    Ok(all.into_iter().filter(wanted).collect())
}

fn experiment(mechanism: &Mechanism, options: &AblateOptions) -> Result<Experiment, BenchError> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let mut sides = [(&mechanism.before, &mut before), (&mechanism.after, &mut after)];
        if round % 2 == 1 {
            sides.reverse();
        }
        for (side, samples) in sides {
            samples.push(run(side, mechanism, options, round)?);
        }
    }
    Ok(Experiment {
        before: side_report(&mechanism.before, mechanism.state, &before, options),
        after: side_report(&mechanism.after, mechanism.state, &after, options),
        mechanism: mechanism.name,
        state: mechanism.state,
        pattern: mechanism.pattern,
        source: mechanism.source,
        published: mechanism.published,
    })
}

fn run(
    side: &Side,
    mechanism: &Mechanism,
    options: &AblateOptions,
    round: usize,
) -> Result<Sample, BenchError> {
    let machine = Machine::new(options.shape, side.tuning, options.threads, mechanism.state)?;
    let workload = Workload {
        threads: options.threads,
        pattern: mechanism.pattern,
        time: Duration::from_secs_f64(options.seconds),
        seed: round as u64,
    };
    workload::run(&machine, workload)
}

fn side_report(
    side: &Side,
    state: DeviceState,
    samples: &[Sample],
    options: &AblateOptions,
) -> SideReport {
    let (slots, cpus) = (options.shape.device_slots, options.threads);
    SideReport {
        name: side.name.clone(),
        metrics: summarise(samples),
        locks: summarise_locks(samples),
        counted: slots::counted(side.tuning.area, slots, cpus, state),
    }
}
