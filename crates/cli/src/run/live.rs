//! What a run answers while it goes on.
//!
//! Invariants: names are those of the report at the end ([`super::report`]), where both say the
//! same.
//! Not here: who asks, and what can be asked (`crate::runs`).

use super::program::Program;
use super::report::{Device, SCHEMA, Stalls};
use crate::runs::Question;
use overspill::session::{Answers, Overview, ProcessState, RunLimit, RunSwaps, Supervisor};
use overspill::{Bytes, Summary};
use serde::Serialize;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

#[derive(Serialize)]
pub(super) struct Live<'a> {
    pub(super) schema: u32,
    /// The number of this `overspill run`.
    pub(super) run: u32,
    pub(super) command: &'a [String],
    pub(super) wall_seconds: f64,
    /// None where it is not known.
    #[serde(flatten)]
    pub(super) stalls: Option<Stalls>,
    pub(super) memory_bytes: u64,
    /// The most that the limit can be raised to.
    pub(super) memory_bytes_max: u64,
    /// What all processes have of the limit.
    pub(super) memory_used_bytes: u64,
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

/// A run, and how it can be changed.
struct Asked {
    command: Vec<String>,
    begun: Instant,
    overview: Overview,
    limit: RunLimit,
    swaps: Arc<RunSwaps>,
}

/// Answers from now on.
///
/// # Errors
/// A line about why `overspill stats` will not find the run, which goes on all the same.
pub(super) fn answer(program: &Program, supervisor: &Supervisor) -> Result<Answers, String> {
    let asked = Asked {
        command: program.words(),
        begun: Instant::now(),
        overview: supervisor.overview(),
        limit: supervisor.limit(),
        swaps: supervisor.swaps(),
    };
    let started = Answers::start(move |question| match Question::of(question) {
        Question::Look => json(&asked.look()),
        Question::Detach => json(&refused(&"a pager is in the program, and cannot leave it")),
        Question::SetMemory(limit) => json(&asked.set(limit)),
        Question::AddSwap(place) => json(&asked.add(&place)),
        Question::RemoveSwap(name) => json(&asked.remove(&name)),
    });
    started.map_err(|error| format!("`overspill stats` will not find this run: {error}"))
}

pub(super) fn json(answer: &impl Serialize) -> String {
    serde_json::to_string_pretty(answer).expect("names and numbers") + "\n"
}

pub(super) fn refused(error: &dyn Display) -> Changed {
    Changed::Refused { refused: error.to_string() }
}

impl Asked {
    fn set(&self, memory: Bytes) -> Changed {
        let before = self.limit.get();
        match self.limit.set(memory) {
            Ok(()) => Changed::Set { memory_bytes: memory.0, memory_bytes_before: before.0 },
            Err(error) => refused(&error),
        }
    }

    fn remove(&self, name: &str) -> Changed {
        let area = self.swaps.remove(name);
        area.map_or_else(|error| refused(&error), |area| Changed::Leaving { area })
    }

    fn add(&self, place: &str) -> Changed {
        match place.parse().map(|spec| self.swaps.add(&spec)) {
            Ok(Ok(device)) => Changed::Added { device },
            Ok(Err(error)) => refused(&error),
            Err(error) => refused(&error),
        }
    }

    fn look(&self) -> Live<'_> {
        let summary = self.overview.summary();
        let processes: Vec<_> = self
            .overview
            .processes()
            .map(|ProcessState { process, memory, devices }| Process {
                process,
                memory_bytes: memory.0,
                devices,
            })
            .collect();
        Live {
            schema: SCHEMA,
            run: std::process::id(),
            command: &self.command,
            wall_seconds: self.begun.elapsed().as_secs_f64(),
            stalls: Some(Stalls::new(self.overview.stall_time())),
            memory_bytes: summary.memory_bytes,
            memory_bytes_max: self.limit.most().0,
            lets_go: false,
            has_let_go: false,
            memory_used_bytes: processes.iter().map(|process| process.memory_bytes).sum(),
            processes,
            devices: self.overview.devices().map(Device::new).collect(),
            summary,
        }
    }
}
