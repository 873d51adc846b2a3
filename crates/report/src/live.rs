//! Pages about runs that go on, which keep themselves up to date.
//!
//! Owns: the list of runs and the page of one.
//! Invariants: what is shown is in the page; a page asks nobody but its own server, for itself.
//! What others chose is escaped.
//! Rejected: plots drawn in the browser: code that this project would have to test in each, and a
//! second picture of what reports show.

use crate::memory_map::MemoryMap;
use crate::page::live_page;
use crate::run::{plots, pressure};
use crate::samples::RunSample;
use maud::{Markup, html};
use overspill_base::Bytes;

/// A run that goes on.
#[derive(Clone, Debug)]
pub struct LiveRun<'a> {
    /// Its number.
    pub run: u32,
    /// Its program, without arguments, which may be secret.
    pub program: &'a str,
    /// Its limit, in words.
    pub limit: String,
    /// In order; at least one.
    pub samples: &'a [RunSample],
}

impl LiveRun<'_> {
    fn now(&self) -> &RunSample {
        self.samples.last().expect("there is one")
    }

    /// What is read in a second, over the last seconds.
    fn bytes_in(&self) -> Bytes {
        let now = self.now();
        let recent = |it: &&RunSample| now.seconds - it.seconds <= RATE_SECONDS;
        let before = self.samples.iter().find(recent).unwrap_or(now);
        let seconds = (now.seconds - before.seconds).max(1.0);
        let pages = now.pages_in.saturating_sub(before.pages_in) as f64 / seconds;
        Bytes::of_pages(pages as u64)
    }

    /// The part of the last seconds in which it waited, in per cent.
    fn waits(&self) -> f64 {
        pressure(self.samples, |it| it.stall_some_ns).last().map_or(0.0, |&(_, part)| part)
    }
}

/// Over which a rate is averaged.
const RATE_SECONDS: f64 = 5.0;

/// Formats all runs.
pub fn runs_html(runs: &[LiveRun<'_>]) -> String {
    let body = html! {
        @if runs.is_empty() { p { "No run goes on: start one with " code { "overspill run -- PROGRAM" } "." } }
        @else {
            table {
                tr { @for name in ["run", "program", "time", "limit", "used", "swap", "waits", "in/s"] { th { (name) } } }
                @for run in runs { (row(run)) }
            }
            p.note { "A run's name leads to its plots and to the map of its memory." }
        }
        p.note { "The same for Prometheus: " a href="metrics" { "metrics" } "." }
    };
    live_page("Runs", &body)
}

fn row(run: &LiveRun<'_>) -> Markup {
    let now = run.now();
    html! {
        tr {
            td { a href=(format!("run/{}", run.run)) { (run.run) } }
            td { a href=(format!("run/{}", run.run)) { (run.program) } }
            td { (time(now.seconds)) }
            td { (run.limit) }
            td { (Bytes(now.memory_used_bytes)) }
            td { (Bytes(now.swap_used_bytes)) }
            td { (format!("{:.0} %", run.waits())) }
            td { (run.bytes_in()) }
        }
    }
}

/// Formats one, with the memory of those of its processes that may be looked at.
pub fn live_html(run: &LiveRun<'_>, maps: &[MemoryMap]) -> String {
    let now = run.now();
    let all = 1e-7 * now.stall_some_ns as f64 / now.seconds.max(1e-3);
    let body = html! {
        p { a href="../" { "All runs" } }
        table {
            tr { td { "time" } td { (time(now.seconds)) } }
            tr { td { "limit" } td { (run.limit) } }
            tr { td { "in memory" } td { (Bytes(now.memory_used_bytes)) } }
            tr { td { "in swap" } td { (Bytes(now.swap_used_bytes)) } }
            tr { td { "waits for swap" } td { (format!("{:.0} % now, {all:.0} % of all its time", run.waits())) } }
            tr { td { "read from swap" } td { (run.bytes_in()) " a second" } }
            tr { td { "processes" } td { (now.processes) } }
        }
        @if !maps.is_empty() { h2 { "Where its memory is" } }
        @for map in maps { (map.section()) }
        @if run.samples.len() > 1 { (plots(run.samples)) }
    };
    live_page(&format!("Run {}: {}", run.run, run.program), &body)
}

fn time(seconds: f64) -> String {
    let seconds = seconds as u64;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<RunSample> {
        let at = |n: u64| RunSample {
            seconds: n as f64,
            memory_used_bytes: 3 << 20,
            pages_in: 256 * n,
            stall_some_ns: n * 500_000_000,
            ..RunSample::default()
        };
        (0..20).map(at).collect()
    }

    #[test]
    fn pages_show_what_a_run_does_and_escape_its_name() {
        let samples = samples();
        let run = LiveRun { run: 42, program: "<sort>", limit: "64 MiB".into(), samples: &samples };
        let mut map = MemoryMap::new("sort 43".into());
        map.note(0..256, true);
        let (list, one) = (runs_html(std::slice::from_ref(&run)), live_html(&run, &[map]));
        for words in ["href=\"run/42\"", "&lt;sort&gt;", "0:00:19", "64 MiB", "50 %", "1 MiB"] {
            assert!(list.contains(words), "{words}: {list}");
        }
        for words in ["&lt;sort&gt;", "50 % of all", "sort 43: 1 MiB in memory", "<svg"] {
            assert!(one.contains(words), "{words}: {one}");
        }
        for page in [&list, &one] {
            assert!(!page.contains("<sort>"));
            let outside = |part: &str| part.starts_with("//") || part.starts_with("http");
            assert!(!page.split("src=\"").skip(1).any(outside), "{page}");
        }
        assert!(runs_html(&[]).contains("No run goes on"));
    }
}
