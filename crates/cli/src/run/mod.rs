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
mod kept;
mod limited;
mod live;
mod notes;
mod now;
mod other_limits;
mod output;
mod own_number;
mod places;
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
use crate::error::Error;
use crate::say;
pub(crate) use attached::attach;
use limited::{Limited, Prepared, pressure};
use output::OutputFile;
use overspill_run::{Subject, has_ended};
pub(crate) use own_number::for_itself;
use plan::Plan;
use process::Ended;
use program::Program;
use rustix::fd::AsFd;
use rustix::process::Pid;
use signals::{Arrival, Inbox};
use std::time::{Duration, Instant};

/// Time in which the processes of a run usually end after its program.
const USUAL_END: Duration = Duration::from_secs(1);

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
    let is_known = !args.give_back && !args.no_children;
    let memory = plan.memory;
    let prepared = Prepared::new(plan, program.words(), is_known)?;
    let told = args
        .tell_runtimes
        .then(|| runtimes::variables(memory, |name| std::env::var_os(name).is_some()));
    let child = process::start(&program, told.unwrap_or_default(), inbox, files)?;
    let (other, is_alone) = (prepared.plan.other_child(), args.no_children);
    let subject = Subject::Started { program: child, other, is_alone };
    let mut run = prepared.over(subject, ground, pressure);
    let ended =
        watch(child, &inbox, &mut run).map_err(Error::system("wait for the program to end"))?;
    Ok(run.end(&ended, wait_for_the_rest))
}

/// Passes signals on, and gives the run its turns, until the program has ended.
fn watch(child: Pid, inbox: &Inbox, run: &mut Limited) -> std::io::Result<Ended> {
    let signals = inbox.descriptor()?;
    let mut has_hung_up = false;
    loop {
        if has_ended(child)
            && let Some((how, usage)) = process::reap_one(child)?
        {
            if has_hung_up {
                process::hang_up_group();
            }
            return Ok(Ended::new(how, run.kept.started.elapsed(), &usage));
        }
        let most = run.turn();
        process::wait_for_any(&[signals.as_fd(), run.front.keeper().as_fd()], most);
        while let Some(arrival) = inbox.take()? {
            match arrival {
                Arrival::Child => run.front.reap_orphans(),
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

/// Gives the run its turns until no process of it is left.
fn wait_for_the_rest(run: &mut Limited) {
    let (ended, mut is_told) = (Instant::now(), false);
    while !run.front.is_deserted() {
        // A core may be all that is left to be done.
        let is_alone = run.front.processes().next().is_none();
        if !is_told && !is_alone && ended.elapsed() > USUAL_END {
            is_told = true;
            if !run.kept.quiet {
                say::line(
                    "the program has ended; processes that it started go on, and are paged until \
                     the last of them ends",
                );
            }
            signals::end_at_signals();
        }
        let most = run.front.turn();
        run.answer();
        run.front.reap_orphans();
        process::wait_for_any(&[run.front.keeper().as_fd()], most.max(Duration::from_millis(1)));
    }
}
