//! Latency of touches.
//!
//! Owns: the buckets, percentiles, and the histogram in pmbench's format.
//! Invariants: a value is accurate to 1/64; everything above a minute counts as a minute.

use histogram::Histogram;
use std::fmt::Write;

/// 64 buckets between powers of two.
const GROUPING: u8 = 6;
const MAX_POWER: u8 = 36;

/// A touch that took longer found its page missing: a hit takes a tenth of it.
pub(crate) const FAULT_NS: u64 = 1000;

/// Latencies of touches.
#[derive(Clone)]
pub(crate) struct Latency(Histogram);

/// Buckets: the lower bound in nanoseconds, and the count.
pub(crate) type Buckets = Vec<(u64, u64)>;

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new(GROUPING, MAX_POWER).expect("constants are in range"))
    }
}

impl Latency {
    pub(crate) fn add(&mut self, ns: u64) {
        self.add_many(ns, 1);
    }

    fn add_many(&mut self, ns: u64, count: u64) {
        let ns = ns.min((1 << MAX_POWER) - 1);
        self.0.add(ns, count).expect("it is within the range");
    }

    pub(crate) fn add_all(&mut self, others: &Buckets) {
        others.iter().for_each(|&(ns, count)| self.add_many(ns, count));
    }

    pub(crate) fn buckets(&self) -> Buckets {
        let used = self.0.iter().filter(|bucket| bucket.count() > 0);
        used.map(|bucket| (bucket.start(), bucket.count())).collect()
    }
}

/// The percentiles that are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

impl Percentiles {
    /// Computes them over touches of at least `from_ns`; buckets are in order.
    pub(crate) fn of(buckets: &Buckets, from_ns: u64) -> Self {
        let meant = || buckets.iter().filter(|(ns, _)| *ns >= from_ns);
        let count: u64 = meant().map(|(_, count)| count).sum();
        let at = |quantile: f64| {
            let rank = (count as f64 * quantile).ceil() as u64;
            let mut seen = 0;
            let found = meant().find(|(_, count)| {
                seen += count;
                seen >= rank
            });
            found.map_or(0.0, |(ns, _)| *ns as f64 / 1e3)
        };
        Self { count, p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: at(1.0) }
    }
}

/// Formats the histogram as pmbench 0.9 does: a line per power of two nanoseconds, up to 2^23 with
/// sixteen parts each.
pub(crate) fn pmbench_text(buckets: &Buckets) -> String {
    let between = |from: u64, to: u64| -> u64 {
        let inside = buckets.iter().filter(|(ns, _)| (from..to).contains(ns));
        inside.map(|(_, count)| count).sum()
    };
    let mut text = format!("2^(00,08) ns: {}\n", between(0, 1 << 8));
    for power in 8..23 {
        let (start, step) = (1u64 << power, 1u64 << (power - 4));
        let part = |n| between(start + n * step, start + (n + 1) * step).to_string();
        let parts: Vec<String> = (0..16).map(part).collect();
        let all = between(start, 2 * start);
        let line = format!("2^({power:02},{:02}) ns: {all}  [{}]", power + 1, parts.join(", "));
        let _ = writeln!(text, "{line}");
    }
    for power in 23..30 {
        let _ = writeln!(text, "2^({power},{}) ns: {}", power + 1, between(1 << power, 2 << power));
    }
    let _ = writeln!(text, "2^(30,32) ns: {}", between(1 << 30, u64::MAX));
    let _ = writeln!(text, "Total samples: {}", between(0, u64::MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Buckets {
        let mut latency = Latency::default();
        values.into_iter().for_each(|ns| latency.add(ns));
        latency.buckets()
    }

    #[test]
    fn percentiles_are_those_of_all_or_of_faults_alone() {
        // A thousand hits, and faults of 2, 4, 6 ... 2000 µs.
        let hits = std::iter::repeat_n(80, 1000);
        let buckets = of(hits.chain((1..=1000).map(|n| n * 2000)));
        let all = Percentiles::of(&buckets, 0);
        assert_eq!((all.count, all.p50_us), (2000, 0.08));
        let faults = Percentiles::of(&buckets, FAULT_NS);
        assert_eq!(faults.count, 1000);
        let expected = [(faults.p50_us, 1000.0), (faults.p99_us, 1980.0), (faults.p999_us, 1998.0)];
        for (found, exact) in expected {
            assert!((found / exact - 1.0).abs() < 1.0 / 64.0, "{found}, not {exact}");
        }
        assert!(faults.p999_us <= faults.max_us);
        assert_eq!(Percentiles::of(&of([]), 0), Percentiles::default());
    }

    #[test]
    fn a_merged_histogram_is_that_of_all_values() {
        let mut merged = Latency::default();
        merged.add_all(&of([5, 70_000]));
        merged.add_all(&of([5, 900]));
        assert_eq!(merged.buckets(), of([5, 5, 900, 70_000]));
    }

    #[test]
    fn pmbench_text_has_its_lines_and_parts() {
        // 288 is in the third sixteenth of 256 to 511; 2^24 has no parts; a minute is last.
        let text = pmbench_text(&of([0, 255, 288, 1 << 24, 60_000_000_000]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "2^(00,08) ns: 2");
        let parts = "0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0";
        assert_eq!(lines[1], format!("2^(08,09) ns: 1  [{parts}]"));
        assert_eq!(lines[17], "2^(24,25) ns: 1");
        assert_eq!(lines[23], "2^(30,32) ns: 1");
        assert_eq!(lines[24], "Total samples: 5");
        assert_eq!(lines.len(), 25);
    }
}
