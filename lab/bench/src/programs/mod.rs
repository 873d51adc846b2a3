//! `programs`: real programs without a limit, under kernel swap and under `overspill run`.
//!
//! Owns: the order of the runs, and what the results are.
//! Invariants: the columns of a program take turns, and each round starts with another one. What a
//! program prints is the same in all of its runs, or the measurement ends: a wrong result has no
//! speed.
//! Not here: how a report looks ([`crate::report`]); devices and control groups
//! ([`crate::compare`]).

mod run;
mod table;

pub use run::{Figures, Outcome};
pub use table::{PROGRAMS, Program};

use crate::compare::child::{self, Interrupted};
use crate::compare::kernel::{self, Group, SwapDevice};
use crate::compare::undo::Undo;
use crate::compare::{Device, Place};
use crate::error::{BenchError, within};
use overspill::Bytes;
use overspill_report::Environment;
use run::{Pager, Runner};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Who pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Nobody: the program has all memory it wants.
    Plain,
    /// The kernel, for a control group.
    Kernel,
    /// `overspill run`.
    Run,
}

impl Side {
    /// All, with their names on command lines.
    pub const ALL: [(&'static str, Self); 3] =
        [("plain", Self::Plain), ("kernel", Self::Kernel), ("run", Self::Run)];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Run => "run",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Which programs.
    pub programs: Vec<Program>,
    /// Who pages.
    pub sides: Vec<Side>,
    /// Where to.
    pub devices: Vec<Device>,
    /// Runs of each.
    pub rounds: usize,
    /// Most seconds of a run.
    pub patience_seconds: u64,
    /// Unpacked sources of SQLite, if there are any.
    pub sqlite: Option<PathBuf>,
    /// What is run, and where; programs write there too.
    pub place: Place,
}

/// All programs, and the machine they ran on.
#[derive(Debug, Serialize)]
pub struct ProgramReport {
    /// The machine.
    pub environment: Environment,
    /// Runs of each.
    pub rounds: usize,
    /// What could not be measured here, and why.
    pub skipped: Vec<String>,
    /// One for each program.
    pub rows: Vec<ProgramRow>,
}

/// A program under all conditions.
#[derive(Debug, Serialize)]
pub struct ProgramRow {
    /// Its name.
    pub program: &'static str,
    /// The limit.
    pub memory_bytes: u64,
    /// One for each condition.
    pub cells: Vec<ProgramCell>,
}

/// The runs of a program under one condition.
#[derive(Debug, Serialize)]
pub struct ProgramCell {
    /// Who paged.
    pub side: Side,
    /// Where to; none without a pager.
    pub device: Option<Device>,
    /// Round by round.
    pub outcomes: Vec<Outcome>,
}

/// Runs the programs; `progress` gets a line about each at its start.
///
/// # Errors
/// [`BenchError::OutOfRange`], [`BenchError::OtherSwap`], [`BenchError::Left`],
/// [`BenchError::Interrupted`], [`BenchError::Differs`], and those of a run.
pub fn programs(
    options: &ProgramOptions,
    progress: &dyn Fn(&str),
) -> Result<ProgramReport, BenchError> {
    within("--rounds", options.rounds, 1..=1000)?;
    let interrupted = child::watch_signals()?;
    let mut measuring = Measuring { options, interrupted, progress, skipped: Vec::new() };
    let undo = measuring.undo()?;
    let mut rows = Vec::new();
    for program in &options.programs {
        match program.lacks(options.sqlite.as_deref()) {
            Some(lack) => measuring.skip(program.name, &lack),
            None => rows.push(measuring.row(program, undo.as_ref())?),
        }
    }
    let (rounds, skipped) = (options.rounds, measuring.skipped);
    Ok(ProgramReport { environment: Environment::read(), rounds, skipped, rows })
}

/// A condition.
struct Column {
    side: Side,
    device: Option<Device>,
    swap: Swap,
    outcomes: Vec<Outcome>,
}

/// What is swapped to.
enum Swap {
    Nothing,
    Kernel(SwapDevice),
    Own(String),
}

struct Measuring<'a> {
    options: &'a ProgramOptions,
    interrupted: Interrupted,
    progress: &'a dyn Fn(&str),
    skipped: Vec<String>,
}

impl Measuring<'_> {
    fn skip(&mut self, what: &str, reason: &str) {
        let line = format!("skipped: {what}: {reason}");
        (self.progress)(&line);
        self.skipped.push(line);
    }

    /// What the kernel's side makes is removed by this; none if it does not take part.
    fn undo(&mut self) -> Result<Option<Undo>, BenchError> {
        if !self.options.sides.contains(&Side::Kernel) {
            return Ok(None);
        }
        if let Some(areas) = kernel::other_swap() {
            return Err(BenchError::OtherSwap(areas));
        }
        if !rustix::process::geteuid().is_root() {
            self.skip("kernel", "control groups and swapon take root");
            return Ok(None);
        }
        Undo::begin().map(Some)
    }

    fn row(&mut self, program: &Program, undo: Option<&Undo>) -> Result<ProgramRow, BenchError> {
        (self.progress)(&format!("{}: {} rounds", program.name, self.options.rounds));
        let directory = tempfile::Builder::new()
            .prefix("overspill-programs.")
            .tempdir_in(&self.options.place.directory)
            .map_err(BenchError::system("make a directory for a program"))?;
        let group = undo.and_then(|undo| self.group(program, undo));
        let mut columns = self.columns(undo.filter(|_| group.is_some()));
        let patience = Duration::from_secs(self.options.patience_seconds);
        let (interrupted, sqlite) = (&self.interrupted, self.options.sqlite.as_deref());
        let runner = Runner { directory: directory.path(), sqlite, patience, interrupted };
        runner.prepare(program)?;
        let mut expected: Option<String> = None;
        for round in 0..self.options.rounds {
            let turns = columns.len();
            for turn in 0..turns {
                let column = &mut columns[(round + turn) % turns];
                let (outcome, printed) = self.run(program, column, group.as_ref(), &runner)?;
                column.outcomes.push(outcome);
                let Some(printed) = printed else { continue };
                let expected = expected.get_or_insert_with(|| printed.clone());
                if *expected != printed {
                    let (what, expected) = (column.described(program), expected.clone());
                    return Err(BenchError::Differs { what, printed, expected });
                }
            }
        }
        let cell = |Column { side, device, outcomes, .. }| ProgramCell { side, device, outcomes };
        let cells = columns.into_iter().map(cell).collect();
        Ok(ProgramRow { program: program.name, memory_bytes: program.limit().0, cells })
    }

    /// Runs it; what it printed is returned if it was done.
    fn run(
        &self,
        program: &Program,
        column: &Column,
        group: Option<&Group>,
        runner: &Runner<'_>,
    ) -> Result<(Outcome, Option<String>), BenchError> {
        match (&column.swap, group) {
            (Swap::Nothing, _) => runner.work(Pager::None),
            (Swap::Own(swap), _) => {
                let overspill = &self.options.place.overspill;
                runner.work(Pager::Run { overspill, memory: program.limit(), swap })
            }
            (Swap::Kernel(swap), group) => {
                let _on = swap.on()?;
                let group = group.expect("the kernel takes part");
                let killed_before = group.killed();
                let ended = runner.work(Pager::Kernel { group: &group.path });
                // One of several processes may have been killed, and the others gone on.
                if group.killed() > killed_before { Ok((Outcome::Killed, None)) } else { ended }
            }
        }
    }

    /// Makes a control group with the program's limit.
    fn group(&mut self, program: &Program, undo: &Undo) -> Option<Group> {
        let made = Group::new(undo, program.limit());
        made.map_err(|reason| self.skip("kernel", &reason)).ok()
    }

    /// Makes what each condition of a program needs, as far as that can be; `undo` is given if the
    /// kernel takes part.
    fn columns(&mut self, undo: Option<&Undo>) -> Vec<Column> {
        let mut columns = Vec::new();
        for &side in &self.options.sides {
            let mut add = |device, swap| {
                columns.push(Column { side, device, swap, outcomes: Vec::new() });
            };
            match side {
                Side::Plain => add(None, Swap::Nothing),
                Side::Run => self.options.devices.iter().for_each(|&device| {
                    let own = device.counterpart(SWAP, &self.options.place.directory);
                    add(Some(device), Swap::Own(own.expect("servers are no choice here")));
                }),
                Side::Kernel => {
                    for &device in self.options.devices.iter().filter(|_| undo.is_some()) {
                        let undo = undo.expect("just looked");
                        match SwapDevice::new(device, SWAP, &self.options.place, undo) {
                            Ok(swap) => add(Some(device), Swap::Kernel(swap)),
                            Err(why) => self.skip(&format!("kernel on {}", device.name()), &why),
                        }
                    }
                }
            }
        }
        columns
    }
}

impl Column {
    fn described(&self, program: &Program) -> String {
        let device = self.device.map_or("memory", Device::name);
        format!("{} ({}, {device})", program.name, self.side.name())
    }
}

/// Size of each device.
const SWAP: Bytes = Bytes(1 << 30);
