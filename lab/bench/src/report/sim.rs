//! Tables of simulations.

use super::text::table;
use super::{Rows, figure, row};
use overspill_sim::{ExperimentReport, Figure, Plan, RunReport, Sample, SweepReport};
use std::collections::BTreeSet;

/// Locks shown of each run.
const LOCKS_SHOWN: usize = 10;

/// Formats the results of `sim run`.
pub fn sim_text(report: &RunReport) -> String {
    let head = format!("virtual time, seed {}\n", report.seed);
    std::iter::once(head).chain(report.experiments.iter().map(experiment_text)).collect()
}

fn experiment_text(experiment: &ExperimentReport) -> String {
    let ExperimentReport { name, about, source, before_name, after_name, .. } = experiment;
    let mut text = format!("\n== {name}\n{about}: {before_name} -> {after_name}\n");
    text += &format!("{}\n\n", plan_line(&experiment.plan));
    text += &table(&figure_rows(&experiment.figures));
    for (side, sample) in [("before", &experiment.before), ("after", &experiment.after)] {
        text += &format!("\n{side}\n{}", table(&lock_rows(sample)));
    }
    text + &format!("published: {source}\n")
}

/// Describes the machine in a sentence.
pub(super) fn plan_line(plan: &Plan) -> String {
    let Plan { cpus, sockets, nodes, threads, frames, devices, device_slots, .. } = plan;
    let what = if plan.processes { "processes" } else { "threads" };
    format!(
        "{threads} {what} on {cpus} CPUs in {sockets} sockets; {nodes} memory nodes of {frames} pages, \
         {} times as many touched; of each node {devices} x {}, {device_slots} slots; {} s counted",
        plan.working_set, plan.device.name, plan.seconds
    )
}

/// Returns published and simulated figures side by side.
pub(super) fn figure_rows(figures: &[Figure]) -> Rows {
    let heads = ["", "published", "", "", "simulated", "", "", "mark", ""];
    let mut rows = vec![row(heads)];
    rows.extend(figures.iter().map(|line| {
        let told = |value: Option<f64>| value.map(figure).unwrap_or_default();
        let holds = line.holds.map_or("", |holds| if holds { "yes" } else { "NO" });
        vec![
            format!("{}, {}", line.what, line.unit),
            told(line.published_before),
            told(line.published_after),
            line.claimed.to_owned(),
            figure(line.before),
            figure(line.after),
            change(line),
            line.mark.clone(),
            holds.to_owned(),
        ]
    }));
    rows
}

fn change(line: &Figure) -> String {
    let percent = line.change_percent();
    if percent.is_finite() { format!("{percent:+.1} %") } else { String::new() }
}

/// Returns the most expensive locks of a run.
pub(super) fn lock_rows(sample: &Sample) -> Rows {
    let heads =
        ["lock", "taken in", "CPU time %", "taken/s", "contended %", "hold ns", "longest wait µs"];
    let mut rows = vec![row(heads)];
    rows.extend(sample.locks.iter().take(LOCKS_SHOWN).map(|lock| {
        let figures = [
            lock.share_percent,
            lock.acquisitions_per_s,
            lock.contended_percent,
            lock.hold_ns,
            lock.wait_max_us,
        ];
        let names = [lock.class.clone(), lock.path.to_owned()];
        names.into_iter().chain(figures.map(figure)).collect()
    }));
    rows
}

/// Formats the results of `sim sweep`.
pub fn sweep_text(report: &SweepReport) -> String {
    format!(
        "virtual time, seed {}, {} s counted in each run\n\naccesses per second, by {}\n{}\n{}",
        report.seed,
        report.seconds,
        report.over.name(),
        table(&score_rows(report)),
        table(&point_rows(report))
    )
}

/// Returns the presets of a sweep, in order.
pub(super) fn sweep_presets(report: &SweepReport) -> Vec<&'static str> {
    let mut seen = BTreeSet::new();
    report.points.iter().map(|point| point.preset).filter(|&preset| seen.insert(preset)).collect()
}

/// Returns the values of a sweep, in order.
pub(super) fn sweep_values(report: &SweepReport) -> Vec<f64> {
    let first = report.points.first().map_or("", |point| point.preset);
    report.points.iter().filter(|point| point.preset == first).map(|point| point.value).collect()
}

/// Returns a row for each preset, with a column for each value.
pub(super) fn score_rows(report: &SweepReport) -> Rows {
    let values = sweep_values(report);
    let heads = values.iter().map(|value| value.to_string());
    let mut rows = vec![std::iter::once(String::new()).chain(heads).collect()];
    rows.extend(sweep_presets(report).into_iter().map(|preset| {
        let points = report.points.iter().filter(|point| point.preset == preset);
        let scores = points.map(|point| figure(point.sample.score));
        std::iter::once(preset.to_owned()).chain(scores).collect()
    }));
    rows
}

/// Returns a row for each run, with where its time goes.
pub(super) fn point_rows(report: &SweepReport) -> Rows {
    let heads = [
        "preset",
        report.over.name(),
        "swap-in GB/s",
        "fault p50 µs",
        "p99 µs",
        "busiest server %",
        "locks %",
        "worst lock",
        "%",
        "bytes/slot",
    ];
    let mut rows = vec![row(heads)];
    rows.extend(report.points.iter().map(|point| {
        let (lock, share) = point.worst_lock().unwrap_or_default();
        vec![
            point.preset.to_owned(),
            point.value.to_string(),
            figure(point.sample.swap_in_gb_per_s),
            figure(point.sample.fault_p50_us),
            figure(point.sample.fault_p99_us),
            point.sample.server_percent.map(figure).unwrap_or_default(),
            figure(point.sample.locks_percent),
            lock,
            figure(share),
            figure(point.metadata_bytes_per_slot),
        ]
    }));
    rows
}
