//! `overspill run`: runs a program in a given amount of memory.
//!
//! Owns: the order of the steps of a run that is paged from inside the program. Everything that can
//! be refused is refused before a device is opened, and the program starts only when nothing of
//! ours but the start itself can fail.
//! Invariants: the files for statistics and history are opened before the program starts, and
//! written however it ends.
//! Not here: paging; messages about this machine (`overspill::doctor`).

mod beside;
mod elf;
mod format;
mod kept;
mod live;
mod notes;
mod now;
mod output;
pub(crate) mod preload;
mod process;
pub(crate) mod program;
mod progress;
mod recorder;
mod report;
pub(crate) mod signals;
mod timeline;
mod way;

use crate::args::{AttachArgs, MemoryLimit, RunArgs};
use crate::error::{Error, FAILED};
use crate::installed::{self, SERVER};
use crate::runs::RunExporter;
use crate::say;
use output::OutputFile;
use overspill::session::{RunOptions, Supervisor, verdict};
use overspill::ways::Way;
use overspill::{Bytes, OpenOptions, SwapSpec, doctor};
use overspill_report::{RunTimeline, run_html, touches};
use preload::Preload;
use process::{Ended, Launch};
use program::Program;
use report::{Report, Seen};
use std::time::Duration;
use timeline::Watched;
use way::Chosen;

/// Page state changes that `--history` keeps.
const HISTORY_ENTRIES: usize = 1 << 20;
/// Those that are enough if they are read at once.
const RECENT_ENTRIES: usize = 1 << 17;

/// A run with everything resolved.
struct Plan {
    memory: Bytes,
    memory_max: Option<Bytes>,
    memory_each: bool,
    way: Way,
    swaps: Vec<SwapSpec>,
    options: OpenOptions,
    children: bool,
    program: Program,
    preload: Preload,
    stats: Option<OutputFile>,
    history: Option<OutputFile>,
    touches: Option<OutputFile>,
    report: Option<OutputFile>,
    metrics: Option<RunExporter>,
    progress: bool,
    quiet: bool,
}

impl Plan {
    /// Resolves the arguments, and refuses what cannot work.
    fn resolve(args: RunArgs, way: Option<Way>) -> Result<Self, Error> {
        let (memory, memory_each) = args.limit.get().expect("a run without one is refused");
        let memory = memory_bytes(memory)?;
        let program = Program::find(args.command, elf::check)?;
        let preload = Preload::find()?;
        if let Some(doctor::Finding { what, detail, .. }) = doctor::obstacle() {
            return Err(Error::Obstacle { what, detail });
        }
        Ok(Self {
            memory,
            memory_max: args.memory_max.map(memory_bytes).transpose()?,
            memory_each,
            way: usable(way)?,
            swaps: args.places.swap,
            options: OpenOptions { swap_size: args.places.swap_size, force: args.places.force },
            children: !args.no_children,
            program,
            preload,
            stats: args.output.stats.map(OutputFile::create).transpose()?,
            history: args.history.map(OutputFile::create).transpose()?,
            touches: args.touches.map(OutputFile::create).transpose()?,
            report: args.output.report.map(OutputFile::create).transpose()?,
            metrics: args.output.metrics.as_deref().map(RunExporter::start).transpose()?,
            progress: args.output.progress,
            quiet: args.output.quiet,
        })
    }

    /// What is kept of changes of pages' states.
    fn history_entries(&self) -> usize {
        match (&self.history, &self.touches, &self.report) {
            (None, None, None) => 0,
            (None, None, Some(_)) => RECENT_ENTRIES,
            _ => HISTORY_ENTRIES,
        }
    }
}

/// Runs the program; its touches are recorded if a file for them was named.
///
/// # Errors
/// As [`process::run`].
fn run_program(plan: &mut Plan, supervisor: &Supervisor) -> Result<Ended, Error> {
    let launch = Launch { preload: &plan.preload, session: &supervisor.address().to_string() };
    let Some((file, touches)) = plan.touches.take().zip(supervisor.touches()) else {
        return process::run(&plan.program, &launch);
    };
    let (ended, touched) = recorder::record(touches, || process::run(&plan.program, &launch));
    let written = file.write_with(|out| out.write_all(&touches::bytes_of(&touched)));
    written.err().into_iter().for_each(say::line);
    ended
}

/// As above; what the run does is watched, if a report is wanted.
fn watched(plan: &mut Plan, supervisor: &Supervisor) -> Result<(Ended, Watched), Error> {
    if plan.report.is_none() {
        return Ok((run_program(plan, supervisor)?, Watched::default()));
    }
    let (ended, watched) = timeline::watch(supervisor, || run_program(plan, supervisor));
    Ok((ended?, watched))
}

/// Runs a program to its end; returns the exit status.
///
/// # Errors
/// Anything that keeps the program from starting.
pub(crate) fn run(args: RunArgs) -> Result<u8, Error> {
    match way::choose(&args)? {
        Chosen::Kept(ground) => kept::run(args, ground),
        Chosen::Inside(way, why) => run_inside(args, way, why),
    }
}

/// Puts a process that runs already into a limit, until it is let go or has ended.
///
/// # Errors
/// Anything that keeps it from that. The process is as before.
pub(crate) fn attach(args: AttachArgs) -> Result<u8, Error> {
    let ground = way::ground()?;
    kept::attach(args, ground)
}

/// Runs a program with a pager in it.
fn run_inside(args: RunArgs, way: Option<Way>, why: Option<String>) -> Result<u8, Error> {
    let mut plan = Plan::resolve(args, way)?;
    let run = RunOptions {
        memory: plan.memory,
        memory_max: plan.memory_max,
        memory_each: plan.memory_each,
        way: plan.way,
        children: plan.children,
        history_entries: plan.history_entries(),
        page_by_page: plan.touches.is_some(),
    };
    let say = |line: &str| say::line(line);
    let swaps = std::mem::take(&mut plan.swaps);
    if !plan.quiet {
        notes::of_memory(plan.memory, doctor::memory_available()).into_iter().for_each(say::line);
        notes::of_swap_size(plan.options.swap_size, &swaps).into_iter().for_each(say::line);
    }
    let supervisor = Supervisor::new(run, swaps, &plan.options, installed::program(SERVER)?, say)?;
    let overview = supervisor.overview();
    if !plan.quiet {
        let why = why.map(|why| format!("paged from inside the program: {why}"));
        why.into_iter().for_each(say::line);
        report::limits_of_devices(&overview).for_each(say::line);
        report::way(plan.way).into_iter().for_each(say::line);
    }
    let answers = live::answer(&plan.program, &supervisor);
    if !plan.quiet {
        answers.as_ref().err().into_iter().for_each(say::line);
    }
    let metrics = plan.metrics.take();
    if let Some(metrics) = metrics.as_ref().filter(|_| !plan.quiet) {
        say::line(format_args!("serving {}", metrics.address()));
    }
    let (ended, watched) = match plan.progress {
        true => progress::shown(&overview, || watched(&mut plan, &supervisor)),
        false => watched(&mut plan, &supervisor),
    }?;
    supervisor.wait_for_pager_of(ended.process);
    let status = status(&ended, overview.verdict());
    let report = Report::new(plan.program.words(), &ended, status, Seen::from(&overview));
    if !plan.quiet {
        report.lines().for_each(say::line);
    }
    let quiet = plan.quiet;
    write_files(plan, &supervisor, &report, watched);
    serve_the_rest(&supervisor, quiet);
    drop((answers, metrics));
    Ok(status)
}

/// Writes what was asked for; what fails is said in a line.
fn write_files(plan: Plan, supervisor: &Supervisor, report: &Report, watched: Watched) {
    let stats = plan.stats.map(|file| file.write_with(|out| report.write_json(out)));
    let history = plan.history.map(|file| {
        let lines = supervisor.history();
        file.write_with(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))
    });
    let page = plan.report.map(|file| page_of(&plan.program.words(), report, watched, file));
    [stats, history, page].into_iter().flatten().filter_map(Result::err).for_each(say::line);
}

/// Writes the page of a report.
fn page_of(
    command: &[String],
    report: &Report,
    (samples, arrivals): Watched,
    file: OutputFile,
) -> Result<(), Error> {
    let (command, summary) = (command.join(" "), report.lines().collect());
    let page = run_html(&RunTimeline { command, summary, samples, arrivals });
    file.write_with(|out| out.write_all(page.as_bytes()))
}

/// Time in which the processes of a run usually end after its program.
const USUAL_END: Duration = Duration::from_secs(1);

/// Processes that go on after the program may need a device that only we have open.
fn serve_the_rest(supervisor: &Supervisor, quiet: bool) {
    if supervisor.wait_for_served(USUAL_END) {
        return;
    }
    if !quiet {
        say::line(
            "the program has ended; processes that it started go on, and swap to a place that is \
             served apart, which ends with the last of them",
        );
    }
    signals::pass_on_no_more();
    while !supervisor.wait_for_served(Duration::MAX) {}
}

/// The program's status, unless we know more.
fn status(ended: &Ended, verdict: u32) -> u8 {
    if verdict & verdict::OUT_OF_MEMORY != 0 {
        return FAILED;
    }
    // A process that cannot join says why and exits with our status.
    if verdict & verdict::JOINED == 0 && ended.status() != FAILED {
        say::line(match ended.signal() {
            // The signal came before the program's own code ran: the process was still starting.
            Some(_) => "the program was ended before its memory limit was in place",
            None => "the program ran without a memory limit: its loader ignored the preload object",
        });
    }
    ended.status()
}

/// The way that was asked for, or the best.
fn usable(wanted: Option<Way>) -> Result<Way, Error> {
    let way = wanted.map_or_else(Way::best, |way| way.check().map(|()| way));
    way.map_err(Error::Way)
}

fn memory_bytes(limit: MemoryLimit) -> Result<Bytes, Error> {
    match limit {
        MemoryLimit::Bytes(bytes) => Ok(bytes),
        MemoryLimit::Percent(percent) => {
            let all = doctor::memory_available().ok_or(Error::MemoryUnknown)?;
            Ok(Bytes((all.0 as f64 * percent / 100.0) as u64))
        }
    }
}
