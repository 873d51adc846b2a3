//! Reports as self-contained HTML pages with plots.

mod compare;
mod sim;

pub use compare::compare_html;
pub use sim::{sim_html, sweep_html, sweep_svg};

use super::{
    Rows, ablate_conditions, exactly, experiment_title, hit_rate_rows, lock_rows, metric_rows,
    policy_conditions, policy_rows, published_rows, slot_conditions, slot_rows,
};
use crate::sample::SCORE_PER_CPU;
use crate::{AblateReport, DeviceState, Experiment, PolicyReport, SideReport, SlotReport, SlotRow};
use maud::{Markup, PreEscaped, html};
use overspill_report::page::page;
use overspill_report::plot::{Series, Spread, bars, lines};
use std::collections::BTreeSet;

/// Formats the results of `ablate`.
pub fn ablate_html(report: &AblateReport) -> String {
    let body = html! {
        h2 { "Score: what each mechanism changes" }
        (PreEscaped(change_plot(&report.experiments)))
        p.note {
            "Accesses per second of CPU time, in per cent of those without the mechanism. Bars are "
            "medians; lines go from the smallest to the largest run."
        }
        @for experiment in &report.experiments { (experiment_section(experiment)) }
    };
    page("Mechanisms off and on", &report.environment, &ablate_conditions(report), &body)
}

/// Formats the results of `slots`.
pub fn slots_html(report: &SlotReport) -> String {
    let body = html! {
        @for state in [DeviceState::Fresh, DeviceState::NinetyPercentFull] {
            h2 { (state.name()) }
            (PreEscaped(slot_plot(report, state)))
        }
        (table(&slot_rows(report)))
    };
    page("Slots allocated and freed", &report.environment, &slot_conditions(report), &body)
}

/// Formats the results of `policy`.
pub fn policy_html(report: &PolicyReport) -> String {
    let body = html! {
        (PreEscaped(hit_rate_plot(report)))
        (table(&hit_rate_rows(report)))
        p.note {
            "Share of touches that cost no page read from swap. MIN knows the future; nobody can do "
            "better. The engine reads ahead, and so does the kernel but from zram: a touch that finds "
            "a page read ahead did not wait, and is no hit either."
        }
        @for workload in &report.workloads {
            h2 id=(&workload.workload) { (&workload.workload) }
            p { (&workload.about) ": " (workload.set_pages) " pages" }
            (table(&policy_rows(workload)))
        }
    };
    page("Replacement policies", &report.environment, &policy_conditions(report), &body)
}

fn experiment_section(experiment: &Experiment) -> Markup {
    html! {
        h2 id=(experiment.mechanism) { (experiment.mechanism) }
        p { (experiment_title(experiment)) }
        (PreEscaped(lock_plot(experiment)))
        (table(&metric_rows(experiment)))
        @if !experiment.published.is_empty() {
            (table(&published_rows(experiment)))
            p.note { "from " (experiment.source) }
        }
        details {
            summary { "Locks" }
            h3 { "before" }
            (table(&lock_rows(&experiment.before)))
            h3 { "after" }
            (table(&lock_rows(&experiment.after)))
        }
    }
}

fn table(rows: &Rows) -> Markup {
    html! {
        table {
            @for (n, row) in rows.iter().enumerate() {
                tr { @for cell in row { @if n == 0 { th { (cell) } } @else { td { (cell) } } } }
            }
        }
    }
}

fn change_plot(experiments: &[Experiment]) -> String {
    let names: Vec<String> = experiments.iter().map(|e| e.mechanism.to_owned()).collect();
    let change = |experiment: &Experiment| {
        let (before, after) = (score(&experiment.before), score(&experiment.after));
        let percent = |score: f64| 100.0 * (score / before.median - 1.0);
        Spread { median: percent(after.median), min: percent(after.min), max: percent(after.max) }
    };
    let values = experiments.iter().map(change).collect();
    bars(
        "score per CPU, change in %",
        &names,
        &[Series { name: "with the mechanism".into(), values }],
    )
}

fn score(side: &SideReport) -> Spread {
    side.metrics
        .iter()
        .find(|metric| metric.name == SCORE_PER_CPU)
        .expect("every side has it")
        .spread
}

/// Plots, as published, the share of CPU time that each class of locks costs.
fn lock_plot(experiment: &Experiment) -> String {
    let sides = [("before", &experiment.before), ("after", &experiment.after)];
    let classes: BTreeSet<&String> =
        sides.iter().flat_map(|(_, side)| &side.locks).map(|lock| &lock.class).collect();
    let share = |side: &SideReport, class: &String| {
        let lock = side.locks.iter().find(|lock| lock.class == *class);
        let percent = lock.map_or(0.0, |lock| lock.cpu_share_percent);
        Spread { median: percent, min: percent, max: percent }
    };
    let series = sides.map(|(name, side)| Series {
        name: name.into(),
        values: classes.iter().map(|class| share(side, class)).collect(),
    });
    let names: Vec<String> = classes.iter().map(|&class| class.clone()).collect();
    bars("waiting, % of CPU time", &names, &series)
}

fn slot_plot(report: &SlotReport, state: DeviceState) -> String {
    let rows: Vec<&SlotRow> = report.rows.iter().filter(|row| row.state == state).collect();
    let threads: BTreeSet<usize> = rows.iter().map(|row| row.threads).collect();
    let mut presets: Vec<&str> = rows.iter().map(|row| row.preset).collect();
    let mut seen = BTreeSet::new();
    presets.retain(|&preset| seen.insert(preset));
    let series: Vec<Series> = presets.iter().map(|&preset| slot_series(&rows, preset)).collect();
    let threads: Vec<String> = threads.iter().map(|n| format!("{n} threads")).collect();
    lines("million slots/s", &threads, &series)
}

fn hit_rate_plot(report: &PolicyReport) -> String {
    let names: Vec<String> = report.workloads.iter().map(|w| w.workload.clone()).collect();
    let policies = report.workloads.first().map_or(0, |workload| workload.policies.len());
    let series = (0..policies).map(|n| {
        let rows = report.workloads.iter().map(|workload| &workload.policies[n]);
        let values = rows.clone().map(|row| exactly(row.hit_rate_percent)).collect();
        Series { name: rows.map(|row| row.policy.clone()).next().unwrap_or_default(), values }
    });
    bars("hit rate, %", &names, &series.collect::<Vec<_>>())
}

fn slot_series(rows: &[&SlotRow], preset: &str) -> Series {
    let mut of_preset: Vec<&&SlotRow> = rows.iter().filter(|row| row.preset == preset).collect();
    of_preset.sort_by_key(|row| row.threads);
    let values = of_preset.iter().map(|row| row.mega_slots_per_s).collect();
    Series { name: preset.to_owned(), values }
}
