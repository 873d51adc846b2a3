//! What a run has answered, read.
//!
//! Invariants: what is not known is skipped, as docs/stats.md asks readers to.

use super::Question;
use crate::error::Error;
use overspill::Bytes;
use overspill_run::Run;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A run, as it was a moment ago.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Seen {
    /// The number of its `overspill run`.
    pub(super) run: u32,
    pub(super) command: Vec<String>,
    pub(super) wall_seconds: f64,
    #[serde(default)]
    pub(super) stall_some_seconds: f64,
    #[serde(default)]
    pub(super) stall_full_seconds: f64,
    pub(super) memory_bytes: u64,
    pub(super) memory_bytes_max: u64,
    pub(super) memory_used_bytes: u64,
    #[serde(default)]
    pub(super) lets_go: bool,
    #[serde(default)]
    pub(super) has_let_go: bool,
    pub(super) processes: Vec<SeenProcess>,
    pub(super) devices: Vec<SeenDevice>,
    pub(super) summary: SeenSummary,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenProcess {
    pub(super) process: i32,
    pub(super) memory_bytes: u64,
    pub(super) devices: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenDevice {
    pub(super) area: usize,
    pub(super) leaving: bool,
    pub(super) name: String,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenSummary {
    pub(super) faults: u64,
    pub(super) pages_in: u64,
    pub(super) pages_out: u64,
    pub(super) pages_lost: u64,
    pub(super) fault_latency: SeenLatency,
    pub(super) counters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SeenLatency {
    pub(super) sum_ns: u64,
    /// Pairs of a time in ns and of how many faults took no longer than that and longer than the
    /// pair before, in order.
    pub(super) histogram: Vec<(u64, u64)>,
}

impl Seen {
    /// All runs that answer.
    pub(super) fn all() -> Result<Vec<Self>, Error> {
        let runs = Run::all().map_err(Error::Runs)?;
        Ok(runs.into_iter().filter_map(Self::of).collect())
    }

    /// A run, if it goes on.
    pub(super) fn of(run: Run) -> Option<Self> {
        serde_json::from_str(&Question::Look.ask(run).ok()?).ok()
    }

    /// What it has of all its devices.
    pub(super) fn swap_used_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.used_bytes).sum()
    }

    /// Its limit, in words.
    pub(super) fn limit(&self) -> String {
        match self.has_let_go {
            true => "let go".into(),
            false => Bytes(self.memory_bytes).to_string(),
        }
    }

    /// Its program and arguments.
    pub(super) fn words(&self) -> String {
        self.command.join(" ")
    }

    /// A counter, 0 if there is none of that name.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.summary.counters.get(name).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn of_a_test() -> Self {
        let answer = serde_json::json!({
            "schema": 1, "run": 42, "command": ["sort", "x"], "wall_seconds": 2.5, "new": [1, 2],
            "stall_some_seconds": 1.5, "stall_full_seconds": 0.5,
            "memory_bytes": 1 << 26, "memory_bytes_max": 1 << 28, "memory_used_bytes": 1 << 25,
            "processes": [{"process": 43, "memory_bytes": 1 << 25, "devices": 2}],
            "devices": [
                {"area": 0, "leaving": false, "name": "ram", "capacity_bytes": 1 << 20, "used_bytes": 4096, "notes": []},
                {"area": 1, "leaving": false, "name": "/var/tmp", "capacity_bytes": 1 << 30, "used_bytes": 4096, "notes": []},
            ],
            "summary": {
                "faults": 2000, "pages_in": 7, "pages_out": 1234, "pages_lost": 0,
                "fault_latency": {"median_ns": 1, "sum_ns": 200_000, "histogram": [[1024, 10], [4096, 90]]},
                "counters": {"pswpin": 7, "swap_ra": 4, "swap_ra_hit": 3},
            },
        });
        serde_json::from_value(answer).unwrap()
    }
}
