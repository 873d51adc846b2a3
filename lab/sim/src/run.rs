//! `run`: simulates the published experiments.
//!
//! Owns: the report. Invariants: it does not depend on the machine it was made on.
//! Not here: how it is written (`overspill-bench`).

use crate::error::{SimError, within};
use crate::experiments;
use crate::machine::Plan;
use crate::marks::Figure;
use crate::sample::Sample;
use overspill_vcpu::Costs;
use serde::Serialize;

/// What to run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Names of presets; if empty, all.
    pub presets: Vec<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Virtual seconds counted, instead of the preset's own.
    pub seconds: Option<f64>,
}

/// The simulated experiments.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Seed of the random numbers.
    pub seed: u64,
    /// One for each preset.
    pub experiments: Vec<ExperimentReport>,
}

/// One simulated experiment.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentReport {
    /// Its name.
    pub name: &'static str,
    /// The mechanism.
    pub about: &'static str,
    /// Where it was published.
    pub source: &'static str,
    /// The machine.
    pub plan: Plan,
    /// The engine without it.
    pub before_name: &'static str,
    /// The engine with it.
    pub after_name: &'static str,
    /// Published and simulated figures.
    pub figures: Vec<Figure>,
    /// Everything about the run without it.
    pub before: Sample,
    /// Everything about the run with it.
    pub after: Sample,
}

impl RunReport {
    /// Returns true if every mark holds.
    pub fn marks_hold(&self) -> bool {
        let mut figures = self.experiments.iter().flat_map(|experiment| &experiment.figures);
        figures.all(|figure| figure.holds != Some(false))
    }
}

/// Simulates both sides of the experiments; `progress` gets a line about each at its end.
///
/// # Errors
/// [`SimError`].
pub fn run(options: &RunOptions, progress: &dyn Fn(&str)) -> Result<RunReport, SimError> {
    let mut chosen = Vec::new();
    for name in &options.presets {
        chosen.push(experiments::find(name)?);
    }
    if chosen.is_empty() {
        chosen = experiments::all();
    }
    if let Some(seconds) = options.seconds {
        within("--seconds", seconds, 0.001..=3600.0)?;
        chosen.iter_mut().for_each(|experiment| experiment.plan.seconds = seconds);
    }
    let reports = chosen.into_iter().map(|experiment| {
        let plan = experiment.plan;
        let side = |tuning| plan.run(tuning, &Costs::DEFAULT, options.seed);
        let start = std::time::Instant::now();
        let (before, after) = (side(experiment.before.1)?, side(experiment.after.1)?);
        let took = start.elapsed().as_secs_f64();
        let virtual_s = before.machine_s + after.machine_s;
        progress(&format!(
            "{}: {took:.1} s for {virtual_s:.2} virtual seconds, {:.1} s each",
            experiment.name,
            took / virtual_s
        ));
        Ok(ExperimentReport {
            name: experiment.name,
            about: experiment.about,
            source: experiment.source,
            before_name: experiment.before.0,
            after_name: experiment.after.0,
            figures: (experiment.figures)(&before, &after),
            plan,
            before,
            after,
        })
    });
    Ok(RunReport { seed: options.seed, experiments: reports.collect::<Result<_, _>>()? })
}
