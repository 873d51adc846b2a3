//! A line on the terminal that says what a long run is doing, for `--progress`.
//!
//! Invariants: nothing is written unless standard error is a terminal, and nothing of it stays.
//! Not here: making room for what the program itself writes to the terminal. Its lines and this one
//! overwrite each other, which is why one has to ask for it.

use super::beside::beside;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use overspill::Bytes;
use overspill::session::Overview;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);

/// What has been counted until a moment.
#[derive(Clone, Copy)]
struct Counted {
    at: Duration,
    pages_in: u64,
    pages_out: u64,
    waited: Duration,
}

/// Runs `work`; the line is there meanwhile.
pub(super) fn shown<R>(overview: &Overview, work: impl FnOnce() -> R) -> R {
    if !stderr().is_terminal() {
        return work();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("a template that is known"));
    let begun = Instant::now();
    let mut last = counted(overview, begun);
    let look = || {
        let now = counted(overview, begun);
        bar.set_message(line(overview, std::mem::replace(&mut last, now), now));
        bar.tick();
        PERIOD
    };
    let result = beside(PERIOD, look, work);
    bar.finish_and_clear();
    result
}

fn counted(overview: &Overview, begun: Instant) -> Counted {
    let (summary, waited) = (overview.summary(), overview.stall_time().some);
    let (pages_in, pages_out) = (summary.pages_in, summary.pages_out);
    Counted { at: begun.elapsed(), pages_in, pages_out, waited }
}

fn line(overview: &Overview, before: Counted, now: Counted) -> String {
    let memory: u64 = overview.processes().map(|process| process.memory.0).sum();
    let swap: u64 = overview.devices().map(|device| device.used.0).sum();
    format!(
        "overspill {}: {}, swap {}; {}",
        indicatif::FormattedDuration(now.at),
        Bytes(memory),
        Bytes(swap),
        rates(before, now)
    )
}

fn rates(before: Counted, now: Counted) -> String {
    let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
    let rate = |now: u64, before: u64| {
        let pages = now.saturating_sub(before) as f64 / seconds;
        Bytes::of_pages(pages as u64)
    };
    let waited = now.waited.saturating_sub(before.waited).as_secs_f64() / seconds;
    format!(
        "waits {:.0}%; in {}/s, out {}/s",
        waited.min(1.0) * 100.0,
        rate(now.pages_in, before.pages_in),
        rate(now.pages_out, before.pages_out)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_since_the_line_before() {
        let at = |seconds, pages_in, pages_out, waited| {
            let [at, waited] = [seconds, waited].map(Duration::from_secs_f64);
            Counted { at, pages_in, pages_out, waited }
        };
        let words = rates(at(1.0, 256, 0, 0.5), at(3.0, 768, 1024, 1.0));
        assert_eq!(words, "waits 25%; in 1 MiB/s, out 2 MiB/s");
    }
}
