//! What a pager has counted, for people and for `--stats`.

use crate::refaults;
use histogram::Histogram;
use overspill_base::Bytes;
use overspill_base::stats::{Event, Stats};
use serde::Serialize;
use std::collections::BTreeMap;

/// Latency of faults, from message to answer, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultLatency {
    /// The median; to within 1/16.
    pub median_ns: u64,
    /// The 99th percentile; to within 1/16.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// All together.
    pub sum_ns: u64,
    /// How many faults took no longer than a power of two in ns, and longer than the one before:
    /// pairs of the power and the number, up to the last that is not 0.
    pub histogram: Vec<(u64, u64)>,
}

/// Everything counted so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The limit.
    pub memory_bytes: u64,
    /// Faults served.
    pub faults: u64,
    /// Pages read from swap.
    pub pages_in: u64,
    /// Pages written to swap.
    pub pages_out: u64,
    /// Pages whose content was lost: by a device, or because it was nowhere. Touching one raises
    /// SIGBUS.
    pub pages_lost: u64,
    /// The most that was in use at a time, in memory or in swap; 0 if all was in memory always.
    /// What is in swap is estimated from samples, up to some thousand pages exactly.
    pub in_use_bytes_max: u64,
    /// What paged programs hold now that counts and cannot leave memory: what they have written of
    /// their files' private mappings, and what they lock.
    pub unevictable_bytes: u64,
    /// How many pages came back to memory, and how many would have with so much more of it: pairs
    /// of bytes, in order, and pages. An estimate; of a large program by samples.
    pub refaults_left: Vec<(u64, u64)>,
    /// Latency of faults.
    pub fault_latency: FaultLatency,
    /// Every counter by its name in `/proc/vmstat`.
    pub counters: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Adds up the counters of several pagers, each held to `memory`.
    pub fn of(memory: Bytes, stats: &[Stats]) -> Self {
        let total = |event| stats.iter().map(|s| s.get(event)).sum::<u64>();
        let counters = Event::ALL.iter().map(|&(event, name)| (name, total(event))).collect();
        let bytes = |pages: fn(&Stats) -> u64| Bytes::of_pages(stats.iter().map(pages).sum()).0;
        Self {
            memory_bytes: memory.0,
            faults: total(Event::pgfault),
            pages_in: total(Event::pswpin),
            pages_out: total(Event::pswpout),
            pages_lost: total(Event::pages_lost),
            in_use_bytes_max: bytes(Stats::in_use_pages_max),
            unevictable_bytes: bytes(Stats::unevictable_pages),
            refaults_left: sum_of(stats, Stats::refault_distances)
                .iter()
                .flat_map(refaults::left)
                .collect(),
            fault_latency: latency(stats),
            counters,
        }
    }
}

fn sum_of(stats: &[Stats], histogram: impl Fn(&Stats) -> Histogram) -> Option<Histogram> {
    stats.iter().map(histogram).reduce(|sum, next| sum.wrapping_add(&next).unwrap_or(sum))
}

fn latency(stats: &[Stats]) -> FaultLatency {
    let max_ns = stats.iter().map(Stats::fault_latency_max_ns).max().unwrap_or(0);
    let all = sum_of(stats, Stats::fault_latencies);
    let quantile = |q: f64| {
        let histogram = all.as_ref()?;
        let total: u64 = histogram.iter().map(|bucket| bucket.count()).sum();
        let rank = (total as f64 * q).ceil() as u64;
        let mut seen = 0;
        histogram
            .iter()
            .find(|bucket| {
                seen += bucket.count();
                rank > 0 && seen >= rank
            })
            .map(|bucket| bucket.end().min(max_ns))
    };
    FaultLatency {
        median_ns: quantile(0.5).unwrap_or(0),
        p99_ns: quantile(0.99).unwrap_or(0),
        max_ns,
        sum_ns: stats.iter().map(Stats::fault_latency_sum_ns).sum(),
        histogram: all.as_ref().map(by_powers).unwrap_or_default(),
    }
}

/// Sums of buckets up to each power of two; a bucket's bounds do not cross one.
fn by_powers(histogram: &Histogram) -> Vec<(u64, u64)> {
    let mut counts = [0; 64];
    for bucket in histogram.iter() {
        let power = u64::BITS - bucket.end().leading_zeros();
        counts[(power as usize).min(63)] += bucket.count();
    }
    let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    (0..used).map(|power| (1 << power, counts[power])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_all_pagers_together() {
        let (a, b) = (Stats::on_heap(), Stats::on_heap());
        (0..99).for_each(|_| a.fault_latency(1_000));
        b.fault_latency(1_000_000);
        b.add(Event::pswpin, 5);
        let summary = Summary::of(Bytes(4096), &[a, b]);
        assert_eq!(summary.pages_in, 5);
        let FaultLatency { median_ns, p99_ns, max_ns, sum_ns, histogram } = summary.fault_latency;
        assert!((1_000..1_070).contains(&median_ns) && (1_000..1_070).contains(&p99_ns));
        assert_eq!((max_ns, sum_ns), (1_000_000, 1_099_000));
        let counted: Vec<_> = histogram.iter().copied().filter(|pair| pair.1 > 0).collect();
        assert_eq!(counted, [(1024, 99), (1 << 20, 1)]);
    }

    #[test]
    fn nothing_counted_is_all_zeros() {
        let none = Summary::of(Bytes(0), &[Stats::on_heap()]);
        assert_eq!(none.fault_latency, FaultLatency::default());
    }
}
