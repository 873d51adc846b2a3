//! What the kernel counts for the whole machine.
//!
//! Invariants: counters are read before and after a sample, while nothing else of ours runs.
//! Not here: attributing them. On a machine that does other things they are too high.

use std::fs;
use std::ops::Sub;

/// Counters at one moment, or their growth between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Pages that the kernel wrote to swap and read from it.
    pub(super) pages_swapped: u64,
    /// Interrupts from one CPU to another: TLB shootdowns, function calls, rescheduling.
    pub(super) interrupts: u64,
}

impl Counters {
    pub(super) fn now() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        Self {
            pages_swapped: pages_swapped(&read("/proc/vmstat")),
            interrupts: interrupts(&read("/proc/interrupts")),
        }
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            pages_swapped: self.pages_swapped - earlier.pages_swapped,
            interrupts: self.interrupts - earlier.interrupts,
        }
    }
}

fn pages_swapped(vmstat: &str) -> u64 {
    let lines = vmstat.lines().filter_map(|line| line.split_once(' '));
    let swapped = lines.filter(|(name, _)| ["pswpin", "pswpout"].contains(name));
    swapped.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
}

fn interrupts(table: &str) -> u64 {
    let between_cpus = |line: &&str| {
        let name = line.trim_start();
        ["TLB:", "CAL:", "RES:", "IPI"].iter().any(|start| name.starts_with(start))
    };
    let lines = table.lines().filter(between_cpus);
    lines
        .flat_map(|line| line.split_whitespace().skip(1).map_while(|n| n.parse::<u64>().ok()))
        .sum()
}

/// Seconds for which CPUs of the machine were busy since it started.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&stat) as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// All but idle, waiting for a disk, and stolen; time of guests is in that of user programs.
fn busy_ticks(stat: &str) -> u64 {
    let cpus = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = cpus.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().filter_map(|&kind| ticks.get(kind)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        assert_eq!(pages_swapped("pgpgin 9\npswpin 3\npswpout 4\npswpin_x 5\n"), 7);
        let table = "       CPU0  CPU1\nLOC: 100 100  Local timer interrupts\n\
                     RES:  1 2  Rescheduling interrupts\nTLB: 30 40   TLB shootdowns\n";
        assert_eq!(interrupts(table), 73);
        assert_eq!(busy_ticks("cpu  1 2 3 400 500 6 7 800 0 0\ncpu0 1 1 1\n"), 19);
    }
}
