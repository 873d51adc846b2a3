//! What a run answers to `overspill stats` while it goes on.
//!
//! Invariants: names are those of the report at the end ([`super::report`]), where both say the
//! same.

use super::program::Program;
use super::report::{Device, SCHEMA};
use overspill::Summary;
use overspill::session::{Answers, Overview};
use serde::Serialize;
use std::time::Instant;

#[derive(Serialize)]
struct Live<'a> {
    schema: u32,
    /// The number of this `overspill run`.
    run: u32,
    command: &'a [String],
    wall_seconds: f64,
    memory_bytes: u64,
    /// What all processes have of that.
    memory_used_bytes: u64,
    processes: Vec<Process>,
    summary: Summary,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Process {
    process: i32,
    memory_bytes: u64,
}

/// Answers from now on.
///
/// # Errors
/// A line about why `overspill stats` will not find the run, which goes on all the same.
pub(super) fn answer(program: &Program, overview: Overview) -> Result<Answers, String> {
    let (command, begun) = (program.words(), Instant::now());
    let started = Answers::start(move || text(&command, begun, &overview));
    started.map_err(|error| format!("`overspill stats` will not find this run: {error}"))
}

fn text(command: &[String], begun: Instant, overview: &Overview) -> String {
    let summary = overview.summary();
    let processes: Vec<_> = overview
        .processes()
        .map(|state| Process { process: state.process, memory_bytes: state.memory.0 })
        .collect();
    let live = Live {
        schema: SCHEMA,
        run: std::process::id(),
        command,
        wall_seconds: begun.elapsed().as_secs_f64(),
        memory_bytes: summary.memory_bytes,
        memory_used_bytes: processes.iter().map(|process| process.memory_bytes).sum(),
        processes,
        devices: overview.devices().map(Device::new).collect(),
        summary,
    };
    serde_json::to_string_pretty(&live).expect("names and numbers") + "\n"
}
