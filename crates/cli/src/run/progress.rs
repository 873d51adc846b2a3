//! A line that says what a long run is doing, for `--progress`.
//!
//! Invariants: on a terminal nothing of it stays; elsewhere all of it, so there it is written ever
//! more rarely.
//! Not here: making room for what the program itself writes to the terminal. Its lines and this one
//! overwrite each other, which is why one has to ask for it.

use super::now::Now;
use crate::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use overspill::Bytes;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// How often it is written anew on a terminal.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// And in a log, where each line is twice as long after the one before, at most.
const LOG_PERIOD_MAX: Duration = Duration::from_secs(60);

/// What has been counted until a moment.
#[derive(Clone, Copy, Default, Debug)]
struct Counted {
    at: Duration,
    pages_in: u64,
    pages_out: u64,
    waited: Duration,
}

/// The line. Dropping it takes it off the terminal.
#[derive(Debug)]
pub(super) struct ProgressLine {
    /// None in a log.
    bar: Option<ProgressBar>,
    begun: Instant,
    last: Counted,
    pause: Duration,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{wide_msg}").expect("a template that is known");
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
        });
        Self { bar, begun: Instant::now(), last: Counted::default(), pause: PERIOD }
    }

    /// Writes it anew; returns when next.
    pub(super) fn show(&mut self, now: &Now) -> Duration {
        let counted = Counted {
            at: self.begun.elapsed(),
            pages_in: now.summary.pages_in,
            pages_out: now.summary.pages_out,
            waited: now.stalls.some,
        };
        let rates = rates(std::mem::replace(&mut self.last, counted), counted);
        let time = indicatif::FormattedDuration(counted.at);
        let Now { memory, swap, .. } = now;
        let line = format!("{time}: {memory}, swap {swap}; {rates}");
        if let Some(bar) = &self.bar {
            bar.set_message(format!("overspill {line}"));
            bar.tick();
        } else {
            say::line(line);
            self.pause = (2 * self.pause).min(LOG_PERIOD_MAX);
        }
        self.pause
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
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
