//! What other limits would cost, for `--plan`.
//!
//! Owns: which limits are told of, and how that is worded.
//! Known errors: docs/prediction.md measures them. Nothing is known of limits below the run's own.
//! Not here: how many pages come back with more memory ([`Summary::refaults_left`]).

use super::enough::round_up;
use overspill::{Bytes, Summary};
use std::time::Duration;

/// Limits between the run's own and the one with which nothing is swapped.
const BETWEEN: u64 = 4;

/// What is known of a run.
pub(super) struct Cost<'a> {
    pub(super) summary: &'a Summary,
    pub(super) wall: Duration,
    pub(super) waiting: Duration,
    /// With which nothing would be swapped.
    pub(super) enough: Bytes,
}

/// Returns a line for each limit that is worth one.
pub(super) fn lines(cost: &Cost<'_>) -> Vec<String> {
    let left = &cost.summary.refaults_left;
    let memory = cost.summary.memory_bytes;
    if cost.enough.0 <= memory {
        let half = Bytes(round_up(cost.enough.0 / 2));
        let why = "what less memory would cost is known of a run that swaps";
        return vec![format!("{why}: try --plan with --memory {half:#}")];
    }
    let all = left.first().map_or(0, |&(_, all)| all);
    let step = (cost.enough.0 - memory) / (BETWEEN + 1);
    // Where nothing came back, nothing is known of what lies between.
    let between = if all > 0 { BETWEEN } else { 0 };
    let more = (0..=between).map(|n| n * step);
    let row = |more: u64| {
        let part = left
            .iter()
            .rev()
            .find(|&&(bytes, _)| bytes <= more)
            .map_or(1.0, |&(_, pages)| pages as f64 / all as f64);
        let waiting = cost.waiting.mul_f64(part);
        let wall = (cost.wall.saturating_sub(cost.waiting) + waiting).as_secs_f64();
        let (limit, waiting) = (Bytes(round_up(memory + more)).to_string(), waiting.as_secs_f64());
        format!("  {limit:>9}  {wall:8.2} s, {waiting:.2} s of it waiting")
    };
    let heading = "what other limits would cost, about:".to_owned();
    let wall = cost.wall.saturating_sub(cost.waiting).as_secs_f64();
    let last = format!("  {:>9}  {wall:8.2} s, nothing swapped", cost.enough.to_string());
    std::iter::once(heading).chain(more.map(row)).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn more_memory_costs_less_time() {
        let refaults_left = vec![(0, 100), (20 * MIB, 60), (60 * MIB, 10), (90 * MIB, 0)];
        let summary = Summary { memory_bytes: 64 * MIB, refaults_left, ..Summary::default() };
        let (wall, waiting) = (Duration::from_secs(5), Duration::from_secs(4));
        let cost = |summary, enough| Cost { summary, wall, waiting, enough: Bytes(enough) };
        let expected = [
            "what other limits would cost, about:",
            "     64 MiB      5.00 s, 4.00 s of it waiting",
            "     84 MiB      3.40 s, 2.40 s of it waiting",
            "    104 MiB      3.40 s, 2.40 s of it waiting",
            "    124 MiB      1.40 s, 0.40 s of it waiting",
            "    144 MiB      1.40 s, 0.40 s of it waiting",
            "    164 MiB      1.00 s, nothing swapped",
        ];
        assert_eq!(lines(&cost(&summary, 164 * MIB)), expected);
        let once = Summary { memory_bytes: 64 * MIB, ..Summary::default() };
        assert_eq!(lines(&cost(&once, 164 * MIB)).len(), 3);
        let unswapped = Summary { memory_bytes: 64 * MIB, ..Summary::default() };
        let said = lines(&cost(&unswapped, 40 * MIB));
        assert!(said[0].ends_with("with --memory 20MiB"), "{said:?}");
    }
}
