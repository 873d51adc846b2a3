//! What `overspill top` has seen: the runs, their last minutes, and what is selected.
//!
//! Invariants: rates are of the time between two looks at a run; a run that was seen once has none.
//! The selection follows its run, not its line.

use crate::runs::seen::Seen;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Looks that are kept of a run.
const HISTORY: usize = 240;

/// What runs are sorted by, the most first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Order {
    Waits,
    #[default]
    Faults,
    Memory,
    Time,
    /// By number, lowest first.
    Number,
}

/// The time over which pressure is averaged, as in `avg10` of the kernel's.
const PRESSURE_TIME: Duration = Duration::from_secs(10);

/// Time in which threads wait for pages, as in PSI: its part of all time, or its sum in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pressure {
    /// One of them at least.
    pub(super) some: f64,
    /// And none can run.
    pub(super) full: f64,
}

impl Pressure {
    fn total(seen: &Seen) -> Self {
        Self { some: seen.stall_some_seconds, full: seen.stall_full_seconds }
    }
}

/// Events in a second, between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) faults: f64,
    pub(super) pages_in: f64,
    pub(super) pages_out: f64,
}

/// A run and its last minutes.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) seen: Seen,
    at: Instant,
    /// The last first.
    pub(super) rates: VecDeque<Rates>,
    /// Faults by their time, since the look before.
    pub(super) latencies: Vec<(u64, u64)>,
    /// When it was looked at in the last [`PRESSURE_TIME`], and how long it had waited by then; the
    /// last first.
    waited: VecDeque<(Instant, Pressure)>,
}

impl Watched {
    fn new(seen: Seen, at: Instant) -> Self {
        let waited = VecDeque::from([(at, Pressure::total(&seen))]);
        Self { seen, at, rates: VecDeque::new(), latencies: Vec::new(), waited }
    }

    fn look(&mut self, seen: Seen, at: Instant) {
        let seconds = at.duration_since(self.at).as_secs_f64().max(1e-3);
        let (now, before) = (&seen.summary, &self.seen.summary);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        self.rates.push_front(Rates {
            faults: rate(now.faults, before.faults),
            pages_in: rate(now.pages_in, before.pages_in),
            pages_out: rate(now.pages_out, before.pages_out),
        });
        self.rates.truncate(HISTORY);
        let old: BTreeMap<u64, u64> = before.fault_latency.histogram.iter().copied().collect();
        let more = |&(ns, count): &(u64, u64)| {
            (ns, count.saturating_sub(old.get(&ns).copied().unwrap_or(0)))
        };
        self.latencies = now.fault_latency.histogram.iter().map(more).collect();
        (self.seen, self.at) = (seen, at);
        let recent = |then: Instant| at.duration_since(then) <= PRESSURE_TIME;
        self.waited.retain(|&(then, _)| recent(then));
        self.waited.push_front((at, Pressure::total(&self.seen)));
    }

    /// Over the last [`PRESSURE_TIME`].
    pub(super) fn pressure(&self) -> Pressure {
        let ends = self.waited.front().zip(self.waited.back());
        ends.map_or(Pressure::default(), |(&(now, last), &(then, first))| {
            let seconds = now.duration_since(then).as_secs_f64().max(1e-3);
            let part = |last: f64, first: f64| ((last - first) / seconds).clamp(0.0, 1.0);
            Pressure { some: part(last.some, first.some), full: part(last.full, first.full) }
        })
    }

    /// Between the last two looks.
    pub(super) fn rate(&self) -> Rates {
        self.rates.front().copied().unwrap_or_default()
    }

    /// The part of the pages read ahead that was used, of all so far.
    pub(super) fn ahead_used(&self) -> Option<f64> {
        let (hit, all) = (self.seen.counter("swap_ra_hit"), self.seen.counter("swap_ra"));
        (all > 0).then(|| hit as f64 / all as f64)
    }
}

/// All that is shown.
#[derive(Debug, Default)]
pub(super) struct State {
    runs: Vec<Watched>,
    order: Order,
    /// The number of the selected run.
    selected: Option<u32>,
    pub(super) helps: bool,
    /// The number of a run that is to be ended, if that is meant.
    ends: Option<u32>,
    /// The last answer to a key.
    pub(super) said: Option<String>,
}

impl State {
    /// Takes over what was seen: runs that are new, go on, or have ended.
    pub(super) fn look(&mut self, seen: Vec<Seen>, at: Instant) {
        let mut before: BTreeMap<u32, Watched> =
            self.runs.drain(..).map(|watched| (watched.seen.run, watched)).collect();
        let watched = seen.into_iter().map(|seen| match before.remove(&seen.run) {
            Some(mut watched) => {
                watched.look(seen, at);
                watched
            }
            None => Watched::new(seen, at),
        });
        self.runs = watched.collect();
        if self.to_end().is_none() {
            self.ends = None;
        }
        self.sort(self.order);
    }

    /// The runs, in order.
    pub(super) fn runs(&self) -> &[Watched] {
        &self.runs
    }

    /// The line of the selected run.
    pub(super) fn line(&self) -> Option<usize> {
        let selected = self.selected?;
        self.runs.iter().position(|watched| watched.seen.run == selected)
    }

    /// The selected run, or the first.
    pub(super) fn watched(&self) -> Option<&Watched> {
        self.runs.get(self.line().unwrap_or(0))
    }

    /// What was last seen of it.
    pub(super) fn selected(&self) -> Option<&Seen> {
        self.watched().map(|watched| &watched.seen)
    }

    /// Moves the selection by lines.
    pub(super) fn select(&mut self, by: isize) {
        let last = self.runs.len().saturating_sub(1);
        let line = self.line().unwrap_or(0).saturating_add_signed(by).min(last);
        self.selected = self.runs.get(line).map(|watched| watched.seen.run);
        self.said = None;
    }

    pub(super) fn sort(&mut self, order: Order) {
        self.order = order;
        let most_first = |value: f64| -value;
        let key = |watched: &Watched| match order {
            Order::Waits => most_first(watched.pressure().some),
            Order::Faults => most_first(watched.rate().faults),
            Order::Memory => most_first(watched.seen.memory_used_bytes as f64),
            Order::Time => most_first(watched.seen.wall_seconds),
            Order::Number => f64::from(watched.seen.run),
        };
        self.runs
            .sort_by(|a, b| key(a).total_cmp(&key(b)).then_with(|| a.seen.run.cmp(&b.seen.run)));
    }

    /// Whether the next key is an answer, or only closes the help.
    pub(super) fn asks(&self) -> bool {
        self.helps || self.ends.is_some()
    }

    /// Asks whether the selected run is to be ended.
    pub(super) fn ask_to_end(&mut self) {
        self.ends = self.selected().map(|seen| seen.run);
    }

    /// The run of which it is asked, while it is there.
    pub(super) fn to_end(&self) -> Option<&Seen> {
        let mut seen = self.runs.iter().map(|watched| &watched.seen);
        seen.find(|seen| Some(seen.run) == self.ends)
    }

    /// Asks no more; returns the number of the run.
    pub(super) fn answer_end(&mut self) -> Option<u32> {
        self.ends.take()
    }

    pub(super) fn say(&mut self, words: String) {
        self.said = Some(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn seen(run: u32, faults: u64) -> Seen {
        let mut seen = Seen::of_a_test();
        (seen.run, seen.summary.faults) = (run, faults);
        seen.summary.fault_latency.histogram = vec![(1024, faults), (2048, 7)];
        seen
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let (mut state, start) = (State::default(), Instant::now());
        state.look(vec![seen(1, 1000)], start);
        assert_eq!(state.watched().unwrap().rate(), Rates::default());
        state.look(vec![seen(1, 2000)], start + Duration::from_secs(2));
        assert_eq!(state.watched().unwrap().rate().faults, 500.0);
        assert_eq!(state.watched().unwrap().latencies, [(1024, 1000), (2048, 0)]);
    }

    #[test]
    fn the_selection_follows_its_run() {
        let (mut state, start) = (State::default(), Instant::now());
        state.look(vec![seen(1, 0), seen(2, 0), seen(3, 0)], start);
        state.select(1);
        assert_eq!(state.selected().unwrap().run, 2);
        state.look(vec![seen(1, 0), seen(2, 900), seen(4, 0)], start + Duration::from_secs(1));
        assert_eq!(state.line(), Some(0), "it has the most faults now");
        state.select(isize::MAX);
        assert_eq!(state.selected().unwrap().run, 4);
        state.look(vec![seen(1, 0)], start + Duration::from_secs(2));
        assert_eq!(state.selected().unwrap().run, 1, "what was selected has ended");
        state.look(Vec::new(), start + Duration::from_secs(3));
        assert!(state.selected().is_none());
        state.select(-1);
    }
}
