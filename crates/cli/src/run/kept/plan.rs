//! What a kept run was asked for.
//!
//! Owns: its limit, places and outputs, resolved. What cannot work is refused here.
//! Not here: the program, or the process.

use super::super::output::OutputFile;
use super::super::report::{Report, limits_of};
use super::super::timeline::Watched;
use super::super::{memory_bytes, notes, page_of};
use crate::args::{MemoryLimit, OutputArgs, PlaceArgs};
use crate::error::Error;
use crate::installed::{self, SERVER};
use crate::runs::RunExporter;
use crate::say;
use overspill::session::{swaps_or_default, usual_most};
use overspill::{Bytes, OpenOptions, SwapSpec, check_limit, doctor};
use overspill_run::{KeeperOptions, KeeperProcess};
use rustix::process::Pid;

/// A run with everything resolved.
pub(super) struct Plan {
    pub(super) memory: Bytes,
    pub(super) memory_max: Bytes,
    pub(super) swaps: Vec<SwapSpec>,
    options: OpenOptions,
    stats: Option<OutputFile>,
    report: Option<OutputFile>,
    metrics: Option<RunExporter>,
    pub(super) progress: bool,
    pub(super) quiet: bool,
}

impl Plan {
    /// Resolves the arguments, and refuses what cannot work.
    pub(super) fn resolve(
        (memory, memory_max): (MemoryLimit, Option<MemoryLimit>),
        places: PlaceArgs,
        output: OutputArgs,
    ) -> Result<Self, Error> {
        let memory = memory_bytes(memory)?;
        check_limit(memory)?;
        let memory_max = memory_max.map(memory_bytes).transpose()?;
        let memory_max =
            memory_max.unwrap_or_else(|| usual_most(memory, doctor::memory_available()));
        if memory > memory_max {
            return Err(overspill::Error::LimitAboveMost(memory, memory_max).into());
        }
        Ok(Self {
            memory,
            memory_max,
            swaps: swaps_or_default(places.swap)?,
            options: OpenOptions { swap_size: places.swap_size, force: places.force },
            stats: output.stats.map(OutputFile::create).transpose()?,
            report: output.report.map(OutputFile::create).transpose()?,
            metrics: output.metrics.as_deref().map(RunExporter::start).transpose()?,
            progress: output.progress,
            quiet: output.quiet,
        })
    }

    /// Lines for the user, unless none are wanted.
    pub(super) fn say(&self, lines: impl IntoIterator<Item = String>) {
        if !self.quiet {
            lines.into_iter().for_each(say::line);
        }
    }

    pub(super) fn say_notes(&self) {
        self.say(notes::of_memory(self.memory, doctor::memory_available()));
        self.say(notes::of_swap_size(self.options.swap_size, &self.swaps));
    }

    pub(super) fn other_child(&self) -> Option<Pid> {
        Pid::from_raw(self.metrics.as_ref()?.process() as i32)
    }

    /// Starts the keeper, which opens all places.
    pub(super) fn start_keeper(&self) -> Result<KeeperProcess, Error> {
        let options = KeeperOptions {
            memory: self.memory,
            memory_max: self.memory_max,
            swaps: self.swaps.clone(),
            options: self.options,
            server: installed::program(SERVER)?,
            records_arrivals: self.report.is_some(),
        };
        let say = Box::new(|line: &str| say::line(line));
        let (keeper, areas) = KeeperProcess::start(options, say)?;
        self.say(areas.iter().flat_map(|area| limits_of(&area.name, &area.notes)));
        Ok(keeper)
    }

    /// True if what happens when is to be shown at the end.
    pub(super) fn wants_report(&self) -> bool {
        self.report.is_some()
    }

    /// Says where metrics are served.
    pub(super) fn say_metrics(&self) {
        self.say(self.metrics.iter().map(|metrics| format!("serving {}", metrics.address())));
    }

    /// Says what happened, and writes what was asked for.
    pub(super) fn tell(mut self, (command, report): (&[String], &Report), watched: Watched) {
        self.say(report.lines());
        let stats = self.stats.take().map(|file| file.write_with(|out| report.write_json(out)));
        let page = self.report.take().map(|file| page_of(command, report, watched, file));
        [stats, page].into_iter().flatten().filter_map(Result::err).for_each(say::line);
    }
}
