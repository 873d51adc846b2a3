//! Reports: aligned tables for people, JSON for programs, an HTML page with plots.
//!
//! Owns: how figures are written. Invariants: all three have the same figures, under the same
//! names.
//! Not here: measuring.

mod compare;
pub mod html;
mod programs;
mod sim;
mod text;

pub use compare::{compare_histograms, compare_text};
pub use programs::programs_text;
pub use sim::{sim_text, sweep_text};
pub use text::{ablate_text, footprint_text, lock_cost_text, policy_text, slots_text};

use crate::sample::Summary;
use crate::slots::CountedSlots;
use overspill_report::plot::Spread;
use serde::Serialize;

/// Formats a report as JSON.
pub fn json<T: Serialize>(report: &T) -> String {
    serde_json::to_string_pretty(report).expect("reports have string keys and finite numbers")
}

/// Formats a figure with four digits, or as many as it has before the point.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        x if x < 1.0 => 3,
        x if x < 10.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Formats the median with its range.
fn spread(spread: &Spread) -> String {
    let Spread { median, min, max } = *spread;
    if min == max {
        return figure(median);
    }
    format!("{} [{}..{}]", figure(median), figure(min), figure(max))
}

/// Formats how much the second is above the first, marked if the rounds' ranges overlap.
fn change(before: &Spread, after: &Spread) -> String {
    if before.median == 0.0 {
        return String::new();
    }
    let percent = 100.0 * (after.median / before.median - 1.0);
    let sure = before == after || before.is_apart_from(after);
    let unsure = if sure { "" } else { " ?" };
    format!("{percent:+.1} %{unsure}")
}

fn name_and_unit(summary: &Summary) -> String {
    if summary.unit.is_empty() {
        summary.name.into()
    } else {
        format!("{}, {}", summary.name, summary.unit)
    }
}

/// Rows of text; the first has the headings.
type Rows = Vec<Vec<String>>;

/// Returns the metrics of an experiment's two sides.
fn metric_rows(experiment: &crate::Experiment) -> Rows {
    let (before, after) = (&experiment.before, &experiment.after);
    let mut rows = vec![row(["", "before", "after", "change"])];
    for (b, a) in before.metrics.iter().zip(&after.metrics) {
        rows.push(vec![
            name_and_unit(b),
            spread(&b.spread),
            spread(&a.spread),
            change(&b.spread, &a.spread),
        ]);
    }
    rows.extend(counted_rows(&before.counted, &after.counted));
    rows
}

/// Returns what is the same on every machine and in every round.
fn counted_rows(before: &CountedSlots, after: &CountedSlots) -> Rows {
    let per = |name: &str, b: Option<f64>, a: Option<f64>| {
        let change = b.zip(a).map(|(b, a)| change(&exactly(b), &exactly(a)));
        vec![name.to_owned(), per_lock(b), per_lock(a), change.unwrap_or_default()]
    };
    vec![
        per("slots per area lock, counted", before.slots_per_lock, after.slots_per_lock),
        per("frees per area lock, counted", before.frees_per_lock, after.frees_per_lock),
        per("same trunk of two CPUs, counted", Some(before.same_trunk), Some(after.same_trunk)),
    ]
}

fn per_lock(slots: Option<f64>) -> String {
    slots.map_or_else(|| "no lock".to_owned(), figure)
}

fn exactly(value: f64) -> Spread {
    Spread { median: value, min: value, max: value }
}

/// Returns the locks of a side, as published: CPU time spent waiting per class.
fn lock_rows(side: &crate::SideReport) -> Rows {
    let heads = [
        "lock",
        "taken/s",
        "contended %",
        "CPU time %",
        "wait ms",
        "longest wait µs",
        "longest hold µs",
    ];
    let mut rows = vec![row(heads)];
    for lock in &side.locks {
        let figures = [
            lock.acquisitions_per_s,
            lock.contended_percent,
            lock.cpu_share_percent,
            lock.wait_ms,
            lock.wait_max_us,
            lock.hold_max_us,
        ];
        rows.push(std::iter::once(lock.class.clone()).chain(figures.map(figure)).collect());
    }
    rows
}

fn published_rows(experiment: &crate::Experiment) -> Rows {
    let mut rows = vec![row(["published", "before", "after", "claimed", "recomputed"])];
    rows.extend(experiment.published.iter().map(|published| {
        row([
            published.what,
            published.before,
            published.after,
            published.claimed,
            published.recomputed,
        ])
    }));
    rows
}

fn slot_rows(report: &crate::SlotReport) -> Rows {
    let heads = [
        "preset",
        "device",
        "threads",
        "Mslots/s",
        "Mslots/CPU s",
        "slots/lock",
        "frees/lock",
        "same trunk",
    ];
    let mut rows = vec![row(heads)];
    rows.extend(report.rows.iter().map(|line| {
        vec![
            line.preset.to_owned(),
            line.state.name().to_owned(),
            line.threads.to_string(),
            spread(&line.mega_slots_per_s),
            figure(line.mega_slots_per_cpu_s.median),
            per_lock(line.counted.slots_per_lock),
            per_lock(line.counted.frees_per_lock),
            figure(line.counted.same_trunk),
        ]
    }));
    rows
}

/// Returns hit rates side by side: a row for each workload, a column for each policy.
fn hit_rate_rows(report: &crate::PolicyReport) -> Rows {
    let names = report.workloads.first().into_iter().flat_map(|workload| &workload.policies);
    let heads = names.map(|row| row.policy.clone());
    let mut rows = vec![std::iter::once("hit rate, %".to_owned()).chain(heads).collect()];
    rows.extend(report.workloads.iter().map(|workload| {
        let rates = workload.policies.iter().map(|row| figure(row.hit_rate_percent));
        std::iter::once(workload.workload.clone()).chain(rates).collect()
    }));
    rows
}

/// Returns all counts of one trace.
fn policy_rows(workload: &crate::WorkloadReport) -> Rows {
    let mut rows = vec![row([
        "policy",
        "hit rate, %",
        "refaults",
        "waits",
        "waits per 100",
        "soft faults",
        "hot set left, %",
    ])];
    rows.extend(workload.policies.iter().map(|row| {
        vec![
            row.policy.clone(),
            figure(row.hit_rate_percent),
            row.refaults.to_string(),
            row.waits.to_string(),
            figure(100.0 * row.waits as f64 / row.touches as f64),
            row.soft_faults.to_string(),
            row.survival_percent.map_or_else(String::new, figure),
        ]
    }));
    rows
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Describes the run in a sentence.
fn ablate_conditions(report: &crate::AblateReport) -> String {
    let shape = report.shape;
    format!(
        "{} threads, {} runs of each side in turn, {} s each; {} pages touched (80 % reads), {} in memory, device in RAM of {} slots",
        report.threads,
        report.rounds,
        report.seconds,
        shape.working_set_pages,
        shape.frames,
        shape.device_slots
    )
}

fn slot_conditions(report: &crate::SlotReport) -> String {
    format!(
        "medians of {} runs of {} s, presets in turn; area of {} slots",
        report.rounds, report.seconds, report.area_slots
    )
}

fn policy_conditions(report: &crate::PolicyReport) -> String {
    format!(
        "{} pages of memory; {} touches after all pages were filled, the first quarter not counted; {}",
        report.memory_pages, report.touches, report.kernel
    )
}

fn experiment_title(experiment: &crate::Experiment) -> String {
    let pattern = match experiment.pattern {
        crate::Pattern::Random => "random",
        crate::Pattern::Sequential => "sequential",
    };
    let (before, after) = (&experiment.before.name, &experiment.after.name);
    format!("{before} -> {after}; {} device, {pattern} access", experiment.state.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_count() {
        let table =
            [(0.0, "0"), (0.1234, "0.123"), (3.456, "3.46"), (34.56, "34.6"), (3456.7, "3457")];
        for (value, text) in table {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_change_within_the_spread_is_marked() {
        let before = Spread { median: 100.0, min: 90.0, max: 110.0 };
        let near = Spread { median: 105.0, min: 95.0, max: 115.0 };
        let far = Spread { median: 150.0, min: 140.0, max: 160.0 };
        assert_eq!(change(&before, &near), "+5.0 % ?");
        assert_eq!(change(&before, &far), "+50.0 %");
        assert_eq!(change(&exactly(0.0), &far), "");
    }
}
