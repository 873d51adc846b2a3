//! A line about a run that hardly does anything but wait.
//!
//! Owns: when it is said: once, when threads have waited for pages most of a minute.
//! Not here: how long they wait (`overspill_run::Stalls`), which limit would do (`enough`).

use super::enough::half_wait;
use overspill::{Bytes, Summary};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Of the time since the last look.
const MOST: f64 = 0.75;

/// What was known a minute ago.
pub(super) struct Waiting {
    since: Instant,
    waited: Duration,
    is_told: bool,
    /// The most that the limit can become.
    memory_max: Bytes,
}

impl Waiting {
    pub(super) fn new(now: Instant, memory_max: Bytes) -> Self {
        Self { since: now, waited: Duration::ZERO, is_told: false, memory_max }
    }

    /// Returns the line, if it is time to say it. Asks for the rest only then.
    pub(super) fn look(
        &mut self,
        (now, waited): (Instant, Duration),
        summary: impl FnOnce() -> Summary,
    ) -> Option<String> {
        if self.is_told || now - self.since < MINUTE {
            return None;
        }
        let more = waited.saturating_sub(std::mem::replace(&mut self.waited, waited));
        let time = now - std::mem::replace(&mut self.since, now);
        self.is_told = more.as_secs_f64() > time.as_secs_f64() * MOST;
        self.is_told.then(|| line(&summary(), self.memory_max))
    }
}

fn line(summary: &Summary, memory_max: Bytes) -> String {
    let run = std::process::id();
    let then = match half_wait(summary) {
        Some(half) if half <= memory_max => format!(
            "with {half} it would wait half as long: `overspill set {run} --memory {half:#}`"
        ),
        Some(half) => format!("with --memory {half:#} it would wait half as long"),
        None => format!("`overspill set {run} --memory` gives it more"),
    };
    format!("this run waits for swap most of the time; {then}; `overspill top` shows it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_of_a_minute_that_was_waited_through() {
        let begun = Instant::now();
        let mut waiting = Waiting::new(begun, Bytes(128 << 20));
        let mut at = |second, waited| {
            let [second, waited] = [second, waited].map(Duration::from_secs);
            let refaults_left = vec![(0, 7), (64 << 20, 0)];
            let summary = Summary { memory_bytes: 32 << 20, refaults_left, ..Summary::default() };
            waiting.look((begun + second, waited), || summary)
        };
        assert_eq!(at(59, 59), None);
        // Of the first minute 40 s, of the second 50.
        assert_eq!(at(60, 40), None);
        assert_eq!(at(90, 70), None);
        let line = at(120, 90).unwrap();
        assert!(line.contains("with 96 MiB it would wait half as long"), "{line}");
        assert!(line.contains("--memory 96MiB`"), "{line}");
        assert_eq!(at(500, 400), None);
    }
}
