//! The page about one run of a program: what happened when.
//!
//! Invariants: a plot has a point for each time between two samples; what is counted is drawn as
//! its change in that time.

use crate::environment::Environment;
use crate::map::ArrivalMap;
use crate::page::page;
use crate::plot::{Axes, Curve, Scale, curves};
use crate::samples::RunSample;
use httpdate::fmt_http_date;
use maud::{Markup, PreEscaped, html};
use overspill_base::PAGE_SIZE;
use std::time::{Duration, SystemTime};

/// A run that has ended.
#[derive(Clone, Debug)]
pub struct RunTimeline {
    /// What the program is called.
    pub program: String,
    /// The program and its arguments.
    pub command: String,
    /// When it ended.
    pub ended: SystemTime,
    /// What it took, how it ended, and which limits would do.
    pub verdict: Vec<String>,
    /// The other lines of the summary.
    pub details: Vec<String>,
    /// What other limits would cost, a line each.
    pub other_limits: Vec<String>,
    /// From the start to the end.
    pub samples: Vec<RunSample>,
    /// Which memory came when.
    pub arrivals: ArrivalMap,
}

const MIB: f64 = (1 << 20) as f64;

/// Formats what happened when.
pub fn run_html(run: &RunTimeline) -> String {
    let seconds = run.samples.last().map_or(0.0, |sample| sample.seconds);
    // Of a clock that was set meanwhile nothing is expected.
    let begun = run.ended.checked_sub(Duration::from_secs_f64(seconds));
    let begun = begun.filter(|at| *at >= SystemTime::UNIX_EPOCH).unwrap_or(run.ended);
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let (begun, samples) = (fmt_http_date(begun), run.samples.len());
    let conditions = format!("{begun}, on {host}; {seconds:.1} s, {samples} samples");
    let body = html! {
        p { code { (run.command) } }
        @for line in &run.verdict { p { strong { (line) } } }
        ul { @for line in &run.details { li { (line) } } }
        @if !run.other_limits.is_empty() { pre { (run.other_limits.join("\n")) } }
        @if run.samples.len() > 1 { (plots(&run.samples)) }
        @else { p.note { "The run was too short for plots." } }
        @if !run.arrivals.is_empty() { (run.arrivals.section()) }
    };
    page(&format!("A run of {}", run.program), &Environment::read(), &conditions, &body)
}

pub(crate) fn plots(samples: &[RunSample]) -> Markup {
    let level = |name, value: fn(&RunSample) -> u64| Curve {
        name,
        points: samples.iter().map(|it| (it.seconds, value(it) as f64 / MIB)).collect(),
    };
    let rate = |name, per: f64, value: fn(&RunSample) -> u64| Curve {
        name,
        points: samples.windows(2).map(|pair| rate_of(pair, value, per)).collect(),
    };
    let page_mib = MIB / PAGE_SIZE as f64;
    let parts = [
        (
            "Memory",
            "MiB",
            "",
            vec![
                level("limit", |it| it.memory_limit_bytes),
                level("used", |it| it.memory_used_bytes),
            ],
        ),
        ("Swap in use", "MiB", "", vec![level("swap", |it| it.swap_used_bytes)]),
        (
            "Read and written",
            "MiB a second",
            "",
            vec![
                rate("read from swap", page_mib, |it| it.pages_in),
                rate("written to swap", page_mib, |it| it.pages_out),
            ],
        ),
        (
            "Pressure",
            "% of time",
            "As in the kernel's PSI: in \u{201c}some\u{201d} of the time a thread waits for a page; in the \
             \u{201c}full\u{201d} time none of the others can run meanwhile. Looked at 20 times a second, and averaged over two.",
            vec![
                Curve { name: "some", points: pressure(samples, |it| it.stall_some_ns) },
                Curve { name: "full", points: pressure(samples, |it| it.stall_full_ns) },
            ],
        ),
        (
            "Threads that wait for a page, on average",
            "threads",
            "The time of all faults in each second. At 1, one thread of the program does nothing \
             but wait, or several take turns; a program with one thread stands still as long.",
            vec![rate("waiting", 1e9, |it| it.fault_ns)],
        ),
        ("Faults", "a second", "", vec![rate("faults", 1.0, |it| it.faults)]),
        (
            "Processes",
            "alive",
            "",
            vec![Curve {
                name: "processes",
                points: samples.iter().map(|it| (it.seconds, it.processes as f64)).collect(),
            }],
        ),
    ];
    html! {
        @for (title, unit, note, lines) in &parts {
            h2 { (title) " (most: " (most(lines)) " " (unit) ")" }
            (PreEscaped(curves(&axes(unit), lines)))
            @if !note.is_empty() { p.note { (note) } }
        }
    }
}

fn axes(unit: &'static str) -> Axes {
    Axes { size: (900, 220), x: ("seconds", Scale::Linear), y: (unit, Scale::Linear) }
}

/// The change between two samples in a second, in the middle between them.
fn rate_of(pair: &[RunSample], value: fn(&RunSample) -> u64, per: f64) -> (f64, f64) {
    let seconds = (pair[1].seconds - pair[0].seconds).max(1e-6);
    let change = value(&pair[1]).saturating_sub(value(&pair[0])) as f64;
    ((pair[0].seconds + pair[1].seconds) / 2.0, change / seconds / per)
}

/// Time over which pressure is averaged: what is looked at now and then is known only over some.
const PRESSURE_SECONDS: f64 = 2.0;

/// The part of the time before each sample that was spent in a stall, in per cent.
pub(crate) fn pressure(samples: &[RunSample], stall_ns: fn(&RunSample) -> u64) -> Vec<(f64, f64)> {
    let mut first = 0;
    let mut points = Vec::new();
    for now in samples {
        while now.seconds - samples[first].seconds > PRESSURE_SECONDS {
            first += 1;
        }
        let (_, part) = rate_of(&[samples[first], *now], stall_ns, 1e7);
        points.push((now.seconds, part.min(100.0)));
    }
    points
}

/// The highest point of all curves.
fn most(curves: &[Curve]) -> String {
    let points = curves.iter().flat_map(|curve| &curve.points);
    match points.map(|point| point.1).fold(0.0, f64::max) {
        most if most < 10.0 && most.fract() != 0.0 => format!("{most:.1}"),
        most => format!("{most:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_drawn_as_its_change() {
        let at = |seconds, pages_in| RunSample { seconds, pages_in, ..RunSample::default() };
        let (time, rate) = rate_of(&[at(1.0, 100), at(3.0, 600)], |it| it.pages_in, 1.0);
        assert_eq!((time, rate), (2.0, 250.0));
    }

    #[test]
    fn pressure_is_averaged_and_never_more_than_all() {
        let at = |n: u32, stall_some_ns| RunSample {
            seconds: f64::from(n) / 2.0,
            stall_some_ns,
            ..RunSample::default()
        };
        // Every other half second, and then more than there was.
        let half = |n| at(n, u64::from(n / 2) * 500_000_000);
        let samples: Vec<_> = (0..=8).map(half).chain([at(9, 100_000_000_000)]).collect();
        let points = pressure(&samples, |it| it.stall_some_ns);
        assert_eq!(points[0], (0.0, 0.0));
        assert_eq!(points[8], (4.0, 50.0));
        assert_eq!(points[9].1, 100.0);
    }

    #[test]
    fn a_page_escapes_what_it_shows_and_has_a_plot_for_each_part() {
        let samples = (0..5).map(|n| RunSample {
            seconds: f64::from(n),
            memory_used_bytes: 1 << 20,
            ..RunSample::default()
        });
        let run = RunTimeline {
            program: "sort".into(),
            command: "sort <x>".into(),
            ended: SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30),
            verdict: vec!["memory 64 MiB".into()],
            details: vec!["7 pages in".into()],
            other_limits: vec!["  80 MiB".into()],
            samples: samples.collect(),
            arrivals: ArrivalMap::default(),
        };
        let page = run_html(&run);
        assert!(page.contains("sort &lt;x&gt;") && page.contains("memory 64 MiB"));
        assert!(page.contains("A run of sort") && page.contains("Sat, 10 Jan 2004"), "{page}");
        assert!(page.contains("<strong>memory 64 MiB"), "{page}");
        assert!(page.contains("<pre>  80 MiB</pre>"), "{page}");
        assert_eq!(page.matches("<svg").count(), 7);
        let short = run_html(&RunTimeline { samples: Vec::new(), ..run });
        assert!(short.contains("too short"));
    }
}
