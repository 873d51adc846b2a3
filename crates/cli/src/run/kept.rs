//! A run whose program is paged from outside, by a keeper.
//!
//! Owns: the order of its steps. Places to swap to are open, and all that paging needs is there,
//! before the program starts.
//! Invariants: the program starts as it would without us; what is refused is refused in one line.
//! The run ends with the last of its processes: nobody else would page them.
//! Not here: watching and attaching (`overspill_run`), paging (`overspill_keeper`).
//! Rejected: leaving processes alone that outlive the program, as they are in the other ways, where
//! each has its own pager.

use super::kept_answers::Questions;
use super::output::OutputFile;
use super::process::{self, Ended};
use super::program::Program;
use super::report::{Device, Report, Seen};
use super::signals::{self, Arrival, Inbox};
use super::{USUAL_END, elf, memory_bytes, notes};
use crate::args::RunArgs;
use crate::error::{Error, FAILED};
use crate::say;
use overspill::session::usual_most;
use overspill::{Bytes, OpenOptions, Summary, check_limit, doctor};
use overspill_run::{AreaState, Front, KeeperOptions, KeeperProcess, Prepared, RunEnd, has_ended};
use rustix::fd::AsFd;
use rustix::process::Pid;
use std::process::Command;
use std::time::{Duration, Instant};

/// Is the keeper of a run.
///
/// # Errors
/// [`Error::System`].
pub(crate) fn keeper() -> Result<u8, Error> {
    overspill_keeper::process::run().map_err(Error::system("set the keeper apart"))?;
    Ok(0)
}

/// What stays the same of a run that goes on.
pub(super) struct Kept {
    pub(super) command: Vec<String>,
    pub(super) memory_max: Bytes,
    pub(super) started: Instant,
    questions: Option<Questions>,
}

/// Runs a program to its end; returns the exit status.
///
/// # Errors
/// Anything that keeps the program from starting.
pub(super) fn run(args: RunArgs) -> Result<u8, Error> {
    refuse_options(&args)?;
    let (limit, _) = args.limit.get().expect("a run without one is refused");
    let memory = memory_bytes(limit)?;
    check_limit(memory)?;
    let memory_max = args.memory_max.map(memory_bytes).transpose()?;
    let memory_max = memory_max.unwrap_or_else(|| usual_most(memory, doctor::memory_available()));
    if memory > memory_max {
        return Err(overspill::Error::LimitAboveMost(memory, memory_max).into());
    }
    let program = Program::find(args.command, elf::check_machine)?;
    let stats = args.stats.map(OutputFile::create).transpose()?;
    if !args.quiet {
        notes::of_memory(memory, doctor::memory_available()).into_iter().for_each(say::line);
        notes::of_swap_size(args.swap_size, &args.swap).into_iter().for_each(say::line);
    }
    let inbox = Inbox::open().map_err(Error::system("wait for signals"))?;
    let files = process::raise_limit_of_files();
    let options = OpenOptions { swap_size: args.swap_size, force: args.force };
    let options = KeeperOptions { memory, memory_max, swaps: args.swap, options };
    let say = Box::new(|line: &str| say::line(line));
    let (keeper, areas) = KeeperProcess::start(command(), options, say)?;
    if !args.quiet {
        areas.iter().flat_map(limits_of).for_each(say::line);
    }
    let counters = keeper.stats().clone();
    let prepared = Prepared::new(memory, keeper)?;
    let questions = Questions::hear();
    if !args.quiet {
        questions.as_ref().err().into_iter().for_each(say::line);
    }
    let (command, started, questions) = (program.words(), Instant::now(), questions.ok());
    let kept = Kept { command, memory_max, started, questions };
    let child = process::start(&program, &[], inbox, files)?;
    let mut front = prepared.follow(child);
    let ended = watch(child, &inbox, &mut front, &kept)
        .map_err(Error::system("wait for the program to end"))?;
    let memory = front.memory();
    let end = wait_for_the_rest(front, &kept, args.quiet);
    let status = status(&ended, &end);
    let seen = seen(Summary::of(memory, &[counters]), end);
    let report = Report::new(&program, &ended, status, seen);
    if !args.quiet {
        report.lines().for_each(say::line);
    }
    let written = stats.map(|file| file.write_with(|out| report.write_json(out)));
    written.and_then(Result::err).into_iter().for_each(say::line);
    Ok(status)
}

impl Kept {
    fn answer(&self, front: &mut Front) {
        if let Some(questions) = &self.questions {
            questions.answer(self, front);
        }
    }
}

/// Refuses what this way cannot do yet.
fn refuse_options(args: &RunArgs) -> Result<(), Error> {
    let (_, memory_each) = args.limit.get().expect("a run without one is refused");
    let refused = [
        (memory_each, "--memory-each"),
        (args.no_children, "--no-children"),
        (args.report.is_some(), "--report"),
        (args.history.is_some(), "--history"),
        (args.touches.is_some(), "--touches"),
        (args.progress, "--progress"),
        (args.metrics.is_some(), "--metrics"),
    ];
    let named: Vec<&str> =
        refused.iter().filter(|(given, _)| *given).map(|&(_, name)| name).collect();
    if named.is_empty() { Ok(()) } else { Err(Error::NotKept(named.join(", "))) }
}

/// This program again: whatever is at its path by now.
fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("keeper");
    command
}

fn limits_of(area: &AreaState) -> impl Iterator<Item = String> {
    let limits = area.notes.iter().filter(|note| doctor::is_limit(note));
    limits.map(|note| format!("{}: {note}", area.name))
}

/// Passes signals on, and gives the front its turns, until the program has ended.
fn watch(child: Pid, inbox: &Inbox, front: &mut Front, kept: &Kept) -> std::io::Result<Ended> {
    let signals = inbox.descriptor()?;
    loop {
        if has_ended(child)
            && let Some((how, usage)) = process::reap_one(child)?
        {
            return Ok(Ended::new(child, how, kept.started.elapsed(), &usage));
        }
        let most = front.turn();
        kept.answer(front);
        process::wait_for_any(&[signals.as_fd(), front.keeper().as_fd()], most);
        while let Some(arrival) = inbox.take()? {
            match arrival {
                Arrival::Child => front.reap_orphans(),
                Arrival::PassOn(signal) => process::send(child, signal),
                Arrival::FromTerminal => {}
            }
        }
    }
}

/// Gives the front its turns until no process of the run is left.
fn wait_for_the_rest(mut front: Front, kept: &Kept, quiet: bool) -> RunEnd {
    let (ended, mut is_told) = (Instant::now(), false);
    while !front.is_deserted() {
        if !is_told && ended.elapsed() > USUAL_END {
            is_told = true;
            if !quiet {
                say::line(
                    "the program has ended; processes that it started go on, and are paged until \
                     the last of them ends",
                );
            }
            signals::end_at_signals();
        }
        let most = front.turn();
        kept.answer(&mut front);
        front.reap_orphans();
        process::wait_for_any(&[front.keeper().as_fd()], most.max(Duration::from_millis(1)));
    }
    front.end()
}

/// The program's status, unless we know more.
fn status(ended: &Ended, end: &RunEnd) -> u8 {
    if end.has_failed || end.keeper.out_of_memory { FAILED } else { ended.status() }
}

fn seen(summary: Summary, end: RunEnd) -> Seen {
    let RunEnd { areas, keeper, held_most, .. } = end;
    let waited = Duration::from_nanos(summary.fault_latency.sum_ns);
    Seen {
        devices: areas.into_iter().enumerate().map(|(n, area)| device(n, area)).collect(),
        out_of_memory: keeper.out_of_memory,
        held_most: Some(held_most),
        waited: Some(waited),
        summary,
        stalls: None,
        verdict: 0,
    }
}

pub(super) fn device(number: usize, area: AreaState) -> Device {
    let AreaState { name, notes, capacity, used, used_most, compressed } = area;
    let [capacity_bytes, used_bytes, used_bytes_max] =
        [capacity, used, used_most].map(|Bytes(bytes)| bytes);
    Device {
        area: number,
        leaving: false,
        name,
        notes,
        capacity_bytes,
        used_bytes,
        used_bytes_max,
        compressed,
    }
}
