//! `overspill run` and `overspill attach`: programs in a given amount of memory.
//!
//! Owns: the order of the steps of a run. Places to swap to are open, and all that paging needs is
//! there, before the program starts.
//! Invariants: the program starts as it would without us; what is refused is refused in one line.
//! The run ends with the last of its processes: nobody else would page them.
//! Not here: watching and attaching (`overspill_run`), paging (`overspill_keeper`).

mod allowed;
mod answers;
mod attached;
mod background;
mod elf;
mod enough;
mod format;
mod live;
mod notes;
mod now;
mod other_limits;
mod output;
mod own_number;
mod plan;
mod process;
pub(crate) mod program;
mod progress;
mod report;
mod runtimes;
pub(crate) mod signals;
mod timeline;
mod waiting;
mod watching;
mod way;

use crate::args::RunArgs;
use crate::error::{Error, FAILED};
use crate::say;
use answers::{Places, Questions};
pub(crate) use attached::attach;
use output::OutputFile;
use overspill::{Bytes, Summary, memory};
use overspill_run::{AreaState, Counters, Front, MemoryPressure, RunEnd, Subject, has_ended};
pub(crate) use own_number::for_itself;
use plan::Plan;
use process::Ended;
use program::Program;
use report::{Device, Escaped, Report, Seen, Stalls};
use rustix::fd::AsFd;
use rustix::process::Pid;
use signals::{Arrival, Inbox};
use std::time::{Duration, Instant};
use watching::{Pressure, Watching};

/// Time in which the processes of a run usually end after its program.
const USUAL_END: Duration = Duration::from_secs(1);

/// What stays of a run that goes on.
struct Kept {
    command: Vec<String>,
    memory_max: Bytes,
    started: Instant,
    swaps: Places,
    pressure: Pressure,
    questions: Option<Questions>,
    /// Whether it says nothing but what has failed.
    quiet: bool,
    /// The limit, when it began; `None` if that is not known to be the limit of all of the program
    /// all the time.
    memory: Option<Bytes>,
    /// As of [`memory::oom_kills`], then.
    oom_kills: u64,
}

impl Kept {
    fn new(
        plan: &Plan,
        command: Vec<String>,
        questions: Option<Questions>,
        is_known: bool,
    ) -> Self {
        Self {
            command,
            memory: is_known.then_some(plan.memory),
            memory_max: plan.memory_max,
            started: Instant::now(),
            swaps: Places::new(plan.swaps.clone()),
            pressure: Pressure::default(),
            questions,
            quiet: plan.quiet,
            oom_kills: memory::oom_kills(),
        }
    }

    fn answer(&self, front: &mut Front) {
        if let Some(questions) = &self.questions {
            questions.answer(self, front);
        }
    }
}

/// Runs a program to its end; returns the exit status.
///
/// # Errors
/// Anything that keeps the program from starting.
pub(crate) fn run(args: RunArgs) -> Result<u8, Error> {
    signals::outlive_large_files();
    let ground = way::choose(args.way)?;
    let (limit, note) = args.memory.map_or_else(notes::usual_limit, |limit| (limit, None));
    let pressure = pressure(args.give_back)?;
    let mut plan = Plan::resolve((limit, args.memory_max), args.places, args.output)?;
    plan.touches = args.touches.map(OutputFile::create).transpose()?;
    let program = Program::find(args.command)?;
    plan.say(note);
    plan.say_notes();
    let inbox = Inbox::open().map_err(Error::system("wait for signals"))?;
    let files = process::raise_limit_of_files()?;
    let keeper = plan.start_keeper()?;
    let counters = keeper.stats().clone();
    let questions = Questions::hear();
    plan.say(questions.as_ref().err().cloned());
    plan.say_metrics();
    let is_known = !args.give_back && !args.no_children;
    let kept = Kept::new(&plan, program.words(), questions.ok(), is_known);
    let mut watching = Watching::new(&plan);
    let told = args
        .tell_runtimes
        .then(|| runtimes::variables(plan.memory, |name| std::env::var_os(name).is_some()));
    let child = process::start(&program, told.unwrap_or_default(), inbox, files)?;
    let (other, is_alone) = (plan.other_child(), args.no_children);
    let subject = Subject::Started { program: child, other, is_alone };
    let mut front = Front::new(plan.memory, (ground, memory::free), keeper, subject);
    pressure.into_iter().for_each(|pressure| front.give_back(pressure));
    if plan.touches.is_some() {
        front.attach_early();
    }
    let ended = watch(child, &inbox, &mut front, (&kept, &mut watching))
        .map_err(Error::system("wait for the program to end"))?;
    let watched = watching.end(&mut front, &kept.pressure);
    let memory = front.memory();
    let end = wait_for_the_rest(front, &kept);
    let status = status(&ended, &end);
    let seen = seen((memory, &counters), ended.wall, (end, &kept));
    let report = Report::new(program.words(), &ended, status, seen);
    plan.tell((&kept.command, &report), watched);
    Ok(status)
}

/// Where the kernel tells how short memory is, if the run is to give some back then.
fn pressure(gives_back: bool) -> Result<Option<MemoryPressure>, Error> {
    gives_back.then(MemoryPressure::open).transpose().map_err(Error::Pressure)
}

/// Passes signals on, and gives the front its turns, until the program has ended.
fn watch(
    child: Pid,
    inbox: &Inbox,
    front: &mut Front,
    (kept, watching): (&Kept, &mut Watching),
) -> std::io::Result<Ended> {
    let signals = inbox.descriptor()?;
    let mut has_hung_up = false;
    loop {
        if has_ended(child)
            && let Some((how, usage)) = process::reap_one(child)?
        {
            if has_hung_up {
                process::hang_up_group();
            }
            return Ok(Ended::new(how, kept.started.elapsed(), &usage));
        }
        let most = front.turn();
        kept.answer(front);
        watching.look(front, &kept.pressure);
        process::wait_for_any(&[signals.as_fd(), front.keeper().as_fd()], most);
        while let Some(arrival) = inbox.take()? {
            match arrival {
                Arrival::Child => front.reap_orphans(),
                Arrival::PassOn(signal) => process::send(child, signal),
                Arrival::HungUp => {
                    has_hung_up = true;
                    // The second lets one that is stopped see the first.
                    for signal in [libc::SIGHUP, libc::SIGCONT] {
                        process::send(child, signal);
                    }
                }
                Arrival::FromTerminal(_) => {}
            }
        }
    }
}

/// Gives the front its turns until no process of the run is left.
fn wait_for_the_rest(mut front: Front, kept: &Kept) -> RunEnd {
    let (ended, mut is_told) = (Instant::now(), false);
    while !front.is_deserted() {
        // A core may be all that is left to be done.
        let is_alone = front.processes().next().is_none();
        if !is_told && !is_alone && ended.elapsed() > USUAL_END {
            is_told = true;
            if !kept.quiet {
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

fn seen(
    (memory, counters): (Bytes, &Counters),
    wall: Duration,
    (end, kept): (RunEnd, &Kept),
) -> Seen {
    let summary = Summary::of(memory, std::slice::from_ref(counters));
    let RunEnd { areas, keeper, held_most, excess_most, outside, .. } = end;
    let waited = Duration::from_nanos(summary.fault_latency.sum_ns);
    Seen {
        devices: areas.into_iter().map(device).collect(),
        out_of_memory: keeper.out_of_memory,
        held_most,
        excess_most,
        is_other_limit: kept.memory != Some(Bytes(summary.memory_bytes)),
        waited,
        summary,
        oom_kills: memory::oom_kills().saturating_sub(kept.oom_kills),
        stalls: Stalls::new(kept.pressure.total(counters, wall)),
        escaped: Escaped::of(outside),
    }
}

fn device(area: AreaState) -> Device {
    let AreaState { number, leaving, name, notes, capacity, used, used_most, compressed } = area;
    let [capacity_bytes, used_bytes, used_bytes_max] =
        [capacity, used, used_most].map(|Bytes(bytes)| bytes);
    Device {
        area: number,
        leaving,
        name,
        notes,
        capacity_bytes,
        used_bytes,
        used_bytes_max,
        compressed,
    }
}
