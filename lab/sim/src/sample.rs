//! Counts of a run, and figures computed from them.
//!
//! Owns: the counts at a moment, and the figures in which the kernel's results were published.
//! Invariants: the share of a lock is the time that tasks spent waiting for it, of all time that
//! tasks were on CPUs: what a profile of cycles shows, as waiters spin. Counts of nodes are added
//! up, not averaged: every node has its own locks.
//! Not here: the published figures (`experiments`).

use histogram::Histogram;
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::LockClass;
use overspill_base::work::Path;
use overspill_base::{PAGE_SIZE, clock};
use overspill_vcpu::{Tally, tally, usage};
use serde::Serialize;

/// Values are accurate to 1/64, up to a minute.
const LATENCY_GROUPING: u8 = 6;
const LATENCY_MAX: u8 = 36;

/// How long pages were missing.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new(LATENCY_GROUPING, LATENCY_MAX).expect("constants are in range"))
    }

    pub(crate) fn add(&mut self, ns: u64) {
        self.0.increment(ns.min((1 << LATENCY_MAX) - 1)).expect("within its range");
    }

    /// Returns the microseconds below which this share of them lies.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        let bucket = self.0.quantile_bucket(quantile).expect("a quantile is within 0 to 1");
        bucket.map_or(0.0, |bucket| (bucket.start() + bucket.end()) as f64 / 2e3)
    }
}

/// All counters, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    at_ns: u64,
    busy_ns: u64,
    accesses: u64,
    events: Vec<u64>,
    servers_ns: Vec<u64>,
    locks: Vec<(LockClass, Path, Tally)>,
}

impl Reading {
    pub(crate) fn now(accesses: u64, stats: &[&Stats], servers_ns: Vec<u64>) -> Self {
        let event = |&(event, _): &(Event, _)| stats.iter().map(|stats| stats.get(event)).sum();
        let paths = |class| Path::ALL.iter().map(move |&(path, _)| (class, path));
        let locks = LockClass::ALL.into_iter().flat_map(paths);
        Self {
            at_ns: clock::now_ns(),
            busy_ns: usage().busy_ns,
            accesses,
            events: Event::ALL.iter().map(event).collect(),
            servers_ns,
            locks: locks.map(|(c, p)| (c, p, tally(c as u8, p as u8))).collect(),
        }
    }

    /// What the busiest server has been asked to do since `first`, of what it could have done.
    fn busiest_server_percent(&self, first: &Self) -> Option<f64> {
        let worked =
            self.servers_ns.iter().zip(&first.servers_ns).map(|(last, first)| last - first);
        worked.max().map(|ns| 100.0 * ns as f64 / (self.at_ns - first.at_ns).max(1) as f64)
    }

    fn events(&self, event: Event) -> f64 {
        self.events[event as usize] as f64
    }
}

/// A class of locks, on one path.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct LockShare {
    /// Its class.
    pub class: String,
    /// The function of Linux that takes it there; empty if it has no name.
    pub path: &'static str,
    /// Share of the CPU time of all tasks spent waiting for it, in per cent.
    pub share_percent: f64,
    /// Times taken, per second.
    pub acquisitions_per_s: f64,
    /// Share of these that had to wait, in per cent.
    pub contended_percent: f64,
    /// The longest wait, in microseconds, since the machine started.
    pub wait_max_us: f64,
    /// Average hold, in nanoseconds.
    pub hold_ns: f64,
}

/// Round-trip times of packets, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ping {
    /// The shortest.
    pub min_ms: f64,
    /// The mean.
    pub avg_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// ping's mdev: the standard deviation.
    pub mdev_ms: f64,
}

impl Ping {
    /// Computes them from at least one packet.
    pub(crate) fn of(pings_ns: &[u64]) -> Self {
        let n = pings_ns.len() as f64;
        let ms = || pings_ns.iter().map(|&ns| ns as f64 / 1e6);
        let avg_ms = ms().sum::<f64>() / n;
        let variance = ms().map(|ms| ms * ms).sum::<f64>() / n - avg_ms * avg_ms;
        Self {
            min_ms: ms().fold(f64::MAX, f64::min),
            avg_ms,
            max_ms: ms().fold(0.0, f64::max),
            mdev_ms: variance.max(0.0).sqrt(),
        }
    }
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Sample {
    /// Virtual seconds since the machine started, all phases.
    pub machine_s: f64,
    /// Accesses per second of all threads: pmbench's score.
    pub score: f64,
    /// Pages read from devices, GB (10^9 bytes) per second.
    pub swap_in_gb_per_s: f64,
    /// Pages written to devices, likewise.
    pub swap_out_gb_per_s: f64,
    /// Faults that had to read, per access.
    pub fault_ratio: f64,
    /// Median time that pages were missing, in microseconds.
    pub fault_p50_us: f64,
    /// The 99th percentile.
    pub fault_p99_us: f64,
    /// Share of the time that the busiest server works, in per cent; none without servers.
    pub server_percent: Option<f64>,
    /// What ping would print, if there are packets.
    pub ping: Option<Ping>,
    /// All locks' share of CPU time, in per cent.
    pub locks_percent: f64,
    /// Locks, the most expensive first.
    pub locks: Vec<LockShare>,
}

impl Sample {
    pub(crate) fn between(
        first: &Reading,
        last: &Reading,
        latencies: &Latencies,
        ping: Option<Ping>,
    ) -> Self {
        let seconds = (last.at_ns - first.at_ns) as f64 / 1e9;
        let busy_ns = (last.busy_ns - first.busy_ns) as f64;
        let events = |event| last.events(event) - first.events(event);
        // On a collapsed system nothing may happen between two readings.
        let per_s = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let gb_per_s = |event| per_s(events(event) * PAGE_SIZE as f64 / 1e9);
        let accesses = (last.accesses - first.accesses) as f64;
        let pairs = last.locks.iter().zip(&first.locks);
        let mut locks: Vec<LockShare> = pairs
            .map(|(last, first)| LockShare::between(first, last, seconds, busy_ns))
            .filter(|lock| lock.acquisitions_per_s > 0.0)
            .collect();
        locks.sort_by(|a, b| b.share_percent.total_cmp(&a.share_percent));
        Self {
            machine_s: last.at_ns as f64 / 1e9,
            score: per_s(accesses),
            swap_in_gb_per_s: gb_per_s(Event::pswpin),
            swap_out_gb_per_s: gb_per_s(Event::pswpout),
            fault_ratio: events(Event::pgmajfault) / accesses.max(1.0),
            fault_p50_us: latencies.quantile_us(0.5),
            fault_p99_us: latencies.quantile_us(0.99),
            server_percent: last.busiest_server_percent(first),
            ping,
            locks_percent: locks.iter().map(|lock| lock.share_percent).sum(),
            locks,
        }
    }

    /// Returns the share of a class of locks on a path, in per cent; on all paths if none is given.
    pub fn share(&self, class: LockClass, path: Option<Path>) -> f64 {
        let (class, name) = (format!("{class:?}"), path.map(Path::name));
        let of =
            |lock: &&LockShare| lock.class == class && name.is_none_or(|name| lock.path == name);
        self.locks.iter().filter(of).map(|lock| lock.share_percent).sum()
    }
}

impl Sample {
    /// Returns how often per second a lock of a class is taken on a path.
    pub fn rate(&self, class: LockClass, path: Path) -> f64 {
        let class = format!("{class:?}");
        let of = |lock: &&LockShare| lock.class == class && lock.path == path.name();
        self.locks.iter().filter(of).map(|lock| lock.acquisitions_per_s).sum()
    }
}

type Counted = (LockClass, Path, Tally);

impl LockShare {
    fn between(first: &Counted, last: &Counted, seconds: f64, busy_ns: f64) -> Self {
        let (class, path, tally) = *last;
        let before = first.2;
        let acquisitions = (tally.acquisitions - before.acquisitions) as f64;
        let contended = (tally.contended - before.contended) as f64;
        let per = |n: f64| if acquisitions > 0.0 { n / acquisitions } else { 0.0 };
        Self {
            class: format!("{class:?}"),
            path: path.name(),
            share_percent: 100.0 * (tally.wait_ns - before.wait_ns) as f64 / busy_ns,
            acquisitions_per_s: acquisitions / seconds,
            contended_percent: 100.0 * per(contended),
            wait_max_us: tally.wait_max_ns as f64 / 1e3,
            hold_ns: per((tally.hold_ns - before.hold_ns) as f64),
        }
    }
}
