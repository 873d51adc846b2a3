//! What stays of a run that goes on.

use super::places::Places;
use super::plan::Plan;
use super::watching::Pressure;
use overspill::{Bytes, memory};
use std::time::Instant;

/// What stays of a run that goes on.
pub(super) struct Kept {
    pub(super) command: Vec<String>,
    pub(super) memory_max: Bytes,
    pub(super) started: Instant,
    pub(super) swaps: Places,
    pub(super) pressure: Pressure,
    /// Whether it says nothing but what has failed.
    pub(super) quiet: bool,
    /// The limit, when it began; `None` if that is not known to be the limit of all of the program
    /// all the time.
    pub(super) memory: Option<Bytes>,
    /// As of [`memory::oom_kills`], then.
    pub(super) oom_kills: u64,
}

impl Kept {
    pub(super) fn new(plan: &Plan, command: Vec<String>, is_known: bool) -> Self {
        Self {
            command,
            memory: is_known.then_some(plan.memory),
            memory_max: plan.memory_max,
            started: Instant::now(),
            swaps: Places::new(plan.swaps.clone()),
            pressure: Pressure::default(),
            quiet: plan.quiet,
            oom_kills: memory::oom_kills(),
        }
    }
}
