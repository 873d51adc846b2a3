//! The form of what a run answers while it goes on.
//!
//! Invariants: names are those of the report at the end ([`super::report`]), where both say the
//! same.
//! Not here: who asks, and what can be asked (`crate::runs`).

use super::report::{Device, Stalls};
use overspill::Summary;
use serde::Serialize;
use std::fmt::Display;

#[derive(Serialize)]
pub(super) struct Live<'a> {
    pub(super) schema: u32,
    /// The number of this `overspill run`.
    pub(super) run: u32,
    pub(super) command: &'a [String],
    pub(super) wall_seconds: f64,
    #[serde(flatten)]
    pub(super) stalls: Stalls,
    pub(super) memory_bytes: u64,
    /// The most that the limit can be raised to.
    pub(super) memory_bytes_max: u64,
    /// What all processes have of the limit.
    pub(super) memory_used_bytes: u64,
    /// What they have had above the limit for longer than a moment.
    pub(super) over_limit_bytes: u64,
    /// Whether its processes are about to be let go.
    pub(super) lets_go: bool,
    /// Whether they were, so that there is no limit now.
    pub(super) has_let_go: bool,
    pub(super) processes: Vec<Process>,
    pub(super) summary: Summary,
    pub(super) devices: Vec<Device>,
}

#[derive(Serialize)]
pub(super) struct Process {
    pub(super) process: i32,
    pub(super) memory_bytes: u64,
    /// Number of devices that it swaps to.
    pub(super) devices: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Changed {
    Set { memory_bytes: u64, memory_bytes_before: u64 },
    Added { device: String },
    Leaving { area: usize },
    LetsGo { lets_go: bool },
    Refused { refused: String },
}

pub(super) fn json(answer: &impl Serialize) -> String {
    serde_json::to_string_pretty(answer).expect("names and numbers") + "\n"
}

pub(super) fn refused(error: &dyn Display) -> Changed {
    Changed::Refused { refused: error.to_string() }
}
