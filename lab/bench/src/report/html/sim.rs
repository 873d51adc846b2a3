//! Simulations as HTML pages with plots.

use super::super::exactly;
use super::super::sim::{figure_rows, lock_rows, plan_line, point_rows, score_rows, sweep_presets};
use super::{page, table};
use maud::{Markup, PreEscaped, html};
use overspill_report::plot::{Axes, Curve, Scale, Series, bars, curves};
use overspill_sim::{ExperimentReport, RunReport, Sample, SweepReport};
use std::collections::BTreeSet;

/// Locks below this share of CPU time on both sides are not drawn.
const SHARE_DRAWN: f64 = 0.5;
const SIZE: (u32, u32) = (900, 420);

/// Formats the results of `sim run`.
pub fn sim_html(report: &RunReport) -> String {
    let body = html! {
        h2 { "Published and simulated: what each mechanism changes" }
        (PreEscaped(change_plot(report)))
        @for experiment in &report.experiments { (section(experiment)) }
    };
    page("Published experiments in virtual time", &"virtual CPUs", &seed_line(report.seed), &body)
}

fn seed_line(seed: u64) -> String {
    format!("seed {seed}; the same seed gives the same figures")
}

fn section(experiment: &ExperimentReport) -> Markup {
    let ExperimentReport { name, about, source, before_name, after_name, .. } = experiment;
    html! {
        h2 id=(name) { (name) }
        p { (about) ": " (before_name) " → " (after_name) br; (plan_line(&experiment.plan)) }
        (table(&figure_rows(&experiment.figures)))
        (PreEscaped(lock_plot(experiment)))
        details {
            summary { "Locks" }
            h3 { "before" } (table(&lock_rows(&experiment.before)))
            h3 { "after" } (table(&lock_rows(&experiment.after)))
        }
        p.note { "published: " (source) }
    }
}

/// Plots the first figure of each experiment, in per cent.
fn change_plot(report: &RunReport) -> String {
    let names: Vec<String> = report.experiments.iter().map(|e| e.name.to_owned()).collect();
    let change = |e: &ExperimentReport| exactly(100.0 * (e.after.score / e.before.score - 1.0));
    let finite = |e: &&ExperimentReport| e.before.score > 0.0;
    let kept: Vec<&ExperimentReport> = report.experiments.iter().filter(finite).collect();
    let names: Vec<String> =
        names.into_iter().filter(|name| kept.iter().any(|e| e.name == name)).collect();
    let values = kept.into_iter().map(change).collect();
    bars("score, change in %", &names, &[Series { name: "simulated".into(), values }])
}

fn lock_plot(experiment: &ExperimentReport) -> String {
    let sides = [("before", &experiment.before), ("after", &experiment.after)];
    let name = |class: &str, path: &str| if path.is_empty() { class } else { path }.to_owned();
    let all = sides.iter().flat_map(|(_, sample)| &sample.locks);
    let drawn = all.filter(|lock| lock.share_percent >= SHARE_DRAWN);
    let names: BTreeSet<String> = drawn.map(|lock| name(&lock.class, lock.path)).collect();
    let share = |sample: &Sample, wanted: &String| {
        let locks = sample.locks.iter().filter(|lock| name(&lock.class, lock.path) == *wanted);
        exactly(locks.map(|lock| lock.share_percent).sum())
    };
    let series = sides.map(|(side, sample)| Series {
        name: side.into(),
        values: names.iter().map(|name| share(sample, name)).collect(),
    });
    bars("waiting, % of CPU time", &names.into_iter().collect::<Vec<_>>(), &series)
}

/// Formats the results of `sim sweep`.
pub fn sweep_html(report: &SweepReport) -> String {
    let body = html! {
        (PreEscaped(sweep_svg(report)))
        (table(&score_rows(report)))
        (table(&point_rows(report)))
    };
    let title = format!("Scaling by {}", report.over.name());
    page(&title, &"virtual CPUs", &seed_line(report.seed), &body)
}

/// Plots a sweep, as SVG only.
pub fn sweep_svg(report: &SweepReport) -> String {
    let curve = |preset: &'static str| {
        let points = report.points.iter().filter(|point| point.preset == preset);
        let points = points.map(|point| (point.value, point.sample.score / 1e6)).collect();
        Curve { name: preset, points }
    };
    let all: Vec<Curve> = sweep_presets(report).into_iter().map(curve).collect();
    let positive = report.points.iter().all(|point| point.value > 0.0);
    let x = if positive { Scale::Logarithmic } else { Scale::Linear };
    let axes =
        Axes { size: SIZE, x: (report.over.name(), x), y: ("million accesses/s", Scale::Linear) };
    curves(&axes, &all)
}
