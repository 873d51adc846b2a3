//! What a kept run was asked for.
//!
//! Owns: its limit, places and outputs, resolved. What cannot work is refused here.
//! Not here: the program, or the process.

use super::notes;
use super::output::OutputFile;
use super::program::name_of;
use super::report::{Report, limits_of};
use super::timeline;
use super::watching::{Watched, Wishes};
use crate::args::{OutputArgs, PlaceArgs};
use crate::error::Error;
use crate::installed::{self, SERVER};
use crate::runs::{RunExporter, serving};
use crate::say;
use overspill::memory::MemoryLimit;
use overspill::{Bytes, OpenOptions, SwapSpec, check_limit, memory, swaps_or_default};
use overspill_report::touches::bytes_of;
use overspill_report::{RunTimeline, run_html};
use overspill_run::{KeeperOptions, KeeperProcess};
use rustix::process::Pid;
use std::time::SystemTime;

/// A run with everything resolved.
pub(super) struct Plan {
    pub(super) memory: Bytes,
    pub(super) memory_max: Bytes,
    pub(super) swaps: Vec<SwapSpec>,
    options: OpenOptions,
    stats: Option<OutputFile>,
    pub(super) touches: Option<OutputFile>,
    report: Option<OutputFile>,
    metrics: Option<RunExporter>,
    pub(super) progress: bool,
    tells_other_limits: bool,
    pub(super) quiet: bool,
}

impl Plan {
    /// Resolves the arguments, and refuses what cannot work.
    pub(super) fn resolve(
        (memory, memory_max): (MemoryLimit, Option<MemoryLimit>),
        places: PlaceArgs,
        output: OutputArgs,
    ) -> Result<Self, Error> {
        let memory = memory.bytes();
        check_limit(memory)?;
        let memory_max = memory_max.map(MemoryLimit::bytes);
        let memory_max = memory_max.unwrap_or_else(|| usual_most(memory, memory::total()));
        if memory > memory_max {
            return Err(Error::LimitAboveMost(memory, memory_max));
        }
        Ok(Self {
            memory,
            memory_max,
            swaps: swaps_or_default(places.swap)?,
            options: OpenOptions { swap_size: places.swap_size, force: places.force },
            stats: output.stats.map(OutputFile::create).transpose()?,
            touches: None,
            report: output.report.map(OutputFile::create).transpose()?,
            metrics: output.metrics.as_deref().map(RunExporter::start).transpose()?,
            progress: output.progress,
            tells_other_limits: output.plan,
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
        self.say(notes::of_memory(self.memory, &self.swaps, memory::total()));
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
            page_by_page: self.touches.is_some(),
            records_arrivals: self.report.is_some() || self.touches.is_some(),
        };
        let say = Box::new(|line: &str| say::line(line));
        let (keeper, areas) = KeeperProcess::start(options, say)?;
        self.say(areas.iter().flat_map(|area| limits_of(&area.name, &area.notes)));
        Ok(keeper)
    }

    /// What is to be looked at while it goes on.
    pub(super) fn wishes(&self) -> Wishes {
        Wishes {
            progress: self.progress,
            waits_within: (!self.quiet).then_some(self.memory_max),
            timeline: self.report.is_some(),
            touches: self.touches.is_some(),
        }
    }

    /// Says where metrics are served.
    pub(super) fn say_metrics(&self) {
        self.say(self.metrics.iter().map(|metrics| serving(metrics.address())));
    }

    /// Says what happened, and writes what was asked for.
    pub(super) fn tell(mut self, (command, report): (&[String], &Report), watched: Watched) {
        match self.quiet {
            true => report.failures().for_each(say::line),
            false => report.lines().for_each(say::line),
        }
        if self.tells_other_limits {
            report.other_limits().into_iter().for_each(say::line);
        }
        let Watched { timeline, touched } = watched;
        let touches = self.touches.take();
        let touches = touches.map(|file| file.write_with(|out| out.write_all(&bytes_of(&touched))));
        let stats = self.stats.take().map(|file| file.write_with(|out| report.write_json(out)));
        let page = self.report.take().map(|file| page_of(command, report, timeline, file));
        [stats, touches, page].into_iter().flatten().filter_map(Result::err).for_each(say::line);
    }
}

/// Times its limit that a run can be given later, if it was not said how much.
const TIMES: u64 = 4;

/// The highest limit that a run is prepared for, on a machine with so much memory, if none was
/// named. What it is prepared for costs address space, and four bytes for at least 16 pages.
fn usual_most(memory: Bytes, machine: Bytes) -> Bytes {
    let machine = machine.max(memory);
    Bytes(memory.0.saturating_mul(TIMES).min(machine.0))
}

/// Writes the page of a report.
fn page_of(
    command: &[String],
    report: &Report,
    (samples, arrivals): timeline::Watched,
    file: OutputFile,
) -> Result<(), Error> {
    let run = RunTimeline {
        program: name_of(command).to_owned(),
        command: command.join(" "),
        ended: SystemTime::now(),
        verdict: report.verdict(),
        details: report.details(),
        other_limits: report.other_limits(),
        samples,
        arrivals,
    };
    let page = run_html(&run);
    file.write_with(|out| out.write_all(page.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_prepared_for_four_times_its_limit_but_not_for_more_than_there_is() {
        let mib = |number: u64| Bytes(number << 20);
        let most = |memory, machine| usual_most(mib(memory), mib(machine)).0 >> 20;
        assert_eq!(most(64, 1000), 256);
        assert_eq!(most(600, 1000), 1000);
        assert_eq!(most(2000, 1000), 2000);
    }
}
