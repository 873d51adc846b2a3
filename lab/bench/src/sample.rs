//! What is measured in a run, and how several runs become one figure.
//!
//! Owns: the metrics with their names and units, medians and spreads.
//! Invariants: a metric has the same name in every run, table and file. A median is printed with
//! the smallest and the largest run; if the ranges of two sides overlap, they are not told apart.
//! Not here: drawing.

use crate::cpus::cpu_time;
use histogram::Histogram;
use overspill_base::PAGE_SIZE;
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::{LockClass, LockStats, lock_table};
use overspill_report::plot::Spread;
use serde::Serialize;
use std::ops::Sub;
use std::time::{Duration, Instant};

/// Counters at one moment, or their growth between two.
pub(crate) struct Reading {
    at: Instant,
    elapsed: Duration,
    /// Of all threads; does not run while other programs have the CPUs.
    cpu_time: Duration,
    accesses: u64,
    events: Vec<u64>,
    locks: Vec<(LockClass, LockStats)>,
}

impl Reading {
    pub(crate) fn now(accesses: u64, stats: &Stats) -> Self {
        Self {
            at: Instant::now(),
            elapsed: Duration::ZERO,
            cpu_time: cpu_time(),
            accesses,
            // Indexed by number, in the order of declaration.
            events: Event::ALL.iter().map(|&(event, _)| stats.get(event)).collect(),
            locks: lock_table(),
        }
    }

    fn event(&self, event: Event) -> f64 {
        self.events[event as usize] as f64
    }

    fn lock(&self, class: LockClass) -> LockStats {
        let found = self.locks.iter().find(|(known, _)| *known == class);
        found.expect("the table has every class").1
    }

    fn per_second(&self, n: f64) -> f64 {
        n / self.elapsed.as_secs_f64()
    }
}

impl Sub for Reading {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        let events = self.events.iter().zip(&earlier.events);
        let locks = self.locks.iter().zip(&earlier.locks);
        Self {
            at: self.at,
            elapsed: self.at - earlier.at,
            cpu_time: self.cpu_time - earlier.cpu_time,
            accesses: self.accesses - earlier.accesses,
            events: events.map(|(now, then)| now - then).collect(),
            locks: locks.map(|(now, then)| (now.0, now.1 - then.1)).collect(),
        }
    }
}

/// The growth in each phase.
pub(crate) struct Phases {
    /// Locks uncounted.
    pub(crate) timed: Reading,
    /// Locks counted.
    pub(crate) counted: Reading,
}

/// Latency of work that swapping interrupts, as ping prints it, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Ping {
    min: f64,
    avg: f64,
    max: f64,
    mdev: f64,
}

impl Ping {
    pub(crate) fn of(pings_ns: &[u64]) -> Self {
        let n = pings_ns.len().max(1) as f64;
        let us = || pings_ns.iter().map(|&ns| ns as f64 / 1e3);
        let avg = us().sum::<f64>() / n;
        let variance = us().map(|us| us * us).sum::<f64>() / n - avg * avg;
        Self {
            min: us().min_by(f64::total_cmp).unwrap_or(0.0),
            avg,
            max: us().max_by(f64::total_cmp).unwrap_or(0.0),
            mdev: variance.max(0.0).sqrt(),
        }
    }
}

/// One figure of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// One class of locks in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LockRow {
    class: LockClass,
    values: [f64; LOCK_COLUMNS],
}

const LOCK_COLUMNS: usize = 6;

/// All results of one run.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) metrics: Vec<Metric>,
    pub(crate) locks: Vec<LockRow>,
}

/// The published score: accesses per second.
const SCORE: &str = "score";
/// Accesses per second of CPU time, which does not depend on other programs on the machine.
pub(crate) const SCORE_PER_CPU: &str = "score per CPU";

impl Sample {
    pub(crate) fn new(threads: usize, phases: &Phases, latency: &Histogram, ping: Ping) -> Self {
        let cpu_ns = threads as f64 * phases.timed.elapsed.as_nanos() as f64;
        let classes = LockClass::ALL.iter();
        let rows = classes.map(|&class| LockRow::new(class, phases, cpu_ns));
        let mut metrics = throughput(&phases.timed, cpu_ns);
        metrics.extend(latencies(latency));
        metrics.extend(ping_metrics(ping));
        metrics.extend(ratios(&phases.counted));
        Self { metrics, locks: rows.filter(LockRow::was_used).collect() }
    }
}

fn metric(name: &'static str, unit: &'static str, value: f64) -> Metric {
    Metric { name, unit, value }
}

fn throughput(timed: &Reading, cpu_ns: f64) -> Vec<Metric> {
    let (pages_in, pages_out) = (timed.event(Event::pswpin), timed.event(Event::pswpout));
    let mb = |pages: f64| timed.per_second(pages * PAGE_SIZE as f64 / 1e6);
    let waited: u64 = timed.locks.iter().map(|(_, stats)| stats.wait_ns).sum();
    vec![
        metric(SCORE, "accesses/s", timed.per_second(timed.accesses as f64)),
        metric(SCORE_PER_CPU, "accesses/s of CPU time", per_cpu_second(timed)),
        metric("swap-in", "MB/s", mb(pages_in)),
        metric("swap-in pages", "pages/s", timed.per_second(pages_in)),
        metric("swap-out", "MB/s", mb(pages_out)),
        metric("swap-out pages", "pages/s", timed.per_second(pages_out)),
        metric("waiting for locks", "% of CPU time", 100.0 * waited as f64 / cpu_ns),
    ]
}

fn per_cpu_second(timed: &Reading) -> f64 {
    timed.accesses as f64 / timed.cpu_time.as_secs_f64()
}

fn latencies(latency: &Histogram) -> Vec<Metric> {
    let at = |quantile: f64| {
        let bucket = latency.quantile_bucket(quantile).expect("quantiles are within 0 to 1");
        bucket.map_or(0.0, |bucket| bucket.end() as f64 / 1e3)
    };
    let quantiles =
        [("fault p50", 0.5), ("fault p99", 0.99), ("fault p99.9", 0.999), ("fault max", 1.0)];
    quantiles.map(|(name, quantile)| metric(name, "µs", at(quantile))).into()
}

fn ping_metrics(ping: Ping) -> [Metric; 4] {
    [
        metric("ping min", "µs", ping.min),
        metric("ping avg", "µs", ping.avg),
        metric("ping max", "µs", ping.max),
        metric("ping mdev", "µs", ping.mdev),
    ]
}

/// Returns what does not depend on the number of real CPUs.
fn ratios(counted: &Reading) -> [Metric; 3] {
    let per = |n: f64, of: f64| if of > 0.0 { n / of } else { 0.0 };
    let (rotated, pages_in) = (counted.event(Event::pgrotated), counted.event(Event::pswpin));
    let lru = counted.lock(LockClass::Lru).acquisitions as f64;
    [
        metric("LRU locks per rotated page", "", per(lru, rotated)),
        metric(
            "rotation locks per rotated page",
            "",
            per(counted.event(Event::lru_rotate_locks), rotated),
        ),
        metric(
            "read ahead for nothing",
            "% of pages read",
            100.0 * per(counted.event(Event::swap_ra_wasted), pages_in),
        ),
    ]
}

impl LockRow {
    fn new(class: LockClass, phases: &Phases, cpu_ns: f64) -> Self {
        let (timed, counted) = (phases.timed.lock(class), phases.counted.lock(class));
        let contended = counted.contended as f64 / counted.acquisitions.max(1) as f64;
        let values = [
            phases.counted.per_second(counted.acquisitions as f64),
            100.0 * contended,
            100.0 * timed.wait_ns as f64 / cpu_ns,
            timed.wait_ns as f64 / 1e6,
            counted.wait_max_ns as f64 / 1e3,
            counted.hold_max_ns as f64 / 1e3,
        ];
        Self { class, values }
    }

    fn was_used(&self) -> bool {
        self.values.iter().any(|&value| value > 0.0)
    }
}

/// A metric over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: &'static str,
    /// Its unit; empty for a ratio.
    pub unit: &'static str,
    /// Its values.
    #[serde(flatten)]
    pub spread: Spread,
}

/// A class of locks over all rounds, as medians.
#[derive(Clone, Debug, Serialize)]
pub struct LockSummary {
    /// Its name in `base::sync`.
    pub class: String,
    /// Times taken, per second.
    pub acquisitions_per_s: f64,
    /// Share of these that had to wait, in per cent.
    pub contended_percent: f64,
    /// Share of the CPU time of all threads spent waiting, in per cent.
    pub cpu_share_percent: f64,
    /// Total milliseconds waited.
    pub wait_ms: f64,
    /// The longest wait, in microseconds.
    pub wait_max_us: f64,
    /// The longest hold, in microseconds.
    pub hold_max_us: f64,
}

/// Summarises the metrics of all rounds.
pub(crate) fn summarise(rounds: &[Sample]) -> Vec<Summary> {
    let summary = |(n, metric): (usize, &Metric)| Summary {
        name: metric.name,
        unit: metric.unit,
        spread: Spread::of(rounds.iter().map(|round| round.metrics[n].value)),
    };
    rounds[0].metrics.iter().enumerate().map(summary).collect()
}

/// Summarises the locks of all rounds, the most expensive first.
pub(crate) fn summarise_locks(rounds: &[Sample]) -> Vec<LockSummary> {
    let classes = LockClass::ALL.into_iter();
    let mut rows: Vec<LockSummary> =
        classes.filter_map(|class| summarise_lock(class, rounds)).collect();
    rows.sort_by(|a, b| b.cpu_share_percent.total_cmp(&a.cpu_share_percent));
    rows
}

fn summarise_lock(class: LockClass, rounds: &[Sample]) -> Option<LockSummary> {
    let rows: Vec<&LockRow> =
        rounds.iter().flat_map(|round| &round.locks).filter(|row| row.class == class).collect();
    rows.first()?;
    let median = |n: usize| Spread::of(rows.iter().map(|row| row.values[n])).median;
    Some(LockSummary {
        class: format!("{class:?}"),
        acquisitions_per_s: median(0),
        contended_percent: median(1),
        cpu_share_percent: median(2),
        wait_ms: median(3),
        wait_max_us: median(4),
        hold_max_us: median(5),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_prints_what_ping_prints() {
        // 1 and 3 µs: mean 2, mean square 5, so mdev is the root of 5 - 4.
        assert_eq!(Ping::of(&[1000, 3000]), Ping { min: 1.0, avg: 2.0, max: 3.0, mdev: 1.0 });
        assert_eq!(Ping::of(&[]), Ping::default());
    }
}
