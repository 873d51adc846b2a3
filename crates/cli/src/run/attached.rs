//! A process that runs already, in a limit.
//!
//! Owns: the order of its steps, from the first look at the process until nothing of ours is left
//! in it.
//! Invariants: what is refused is refused before anything is done to the process. It is let go at
//! INT, TERM and HUP, and when it is asked for, if memory has room for all that is out. This
//! process is not stopped by a terminal: threads that it holds would stand still with it.
//! Not here: watching and attaching (`overspill_run`).

use super::limited::{Limited, Prepared, pressure};
use super::plan::Plan;
use super::process::{self, Ended};
use super::signals::{self, Arrival, Inbox};
use super::{background, way};
use crate::args::AttachArgs;
use crate::error::Error;
use crate::runs;
use crate::say;
use overspill_run::Subject;
use rustix::fd::AsFd;
use rustix::process::Pid;

/// Puts a process into a limit until it is let go, or has ended; returns the exit status.
///
/// # Errors
/// Anything that keeps it from that. The process is as before.
pub(crate) fn attach(args: AttachArgs) -> Result<u8, Error> {
    signals::outlive_large_files();
    let ground = way::choose(None)?;
    if args.background {
        return background::start();
    }
    if args.ready {
        background::leave_session();
    }
    let (process, limit) = (args.process, args.memory.expect("without one it is refused"));
    let pressure = pressure(args.give_back)?;
    let plan = Plan::resolve((limit, args.memory_max), args.places, args.output)?;
    let command = command_of(process)?;
    if let Some(run) = runs::with(process.as_raw_pid()) {
        return Err(Error::Attached { process: process.as_raw_pid(), run });
    }
    plan.say_notes();
    let inbox = Inbox::open().map_err(Error::system("wait for signals"))?;
    signals::never_stop();
    process::raise_limit_of_files()?;
    let prepared = Prepared::new(plan, command, !args.give_back)?;
    let mut run = prepared.over(Subject::Running(process), ground, pressure);
    run.front.check_subject()?;
    run.plan.say([format!(
        "process {process} is in a limit of {}: Ctrl-C, or `overspill detach {process}`, lets it go",
        run.plan.memory
    )]);
    if args.ready {
        background::say_ready().map_err(Error::system("leave the terminal"))?;
    }
    watch(&inbox, &mut run).map_err(Error::system("wait for the process to end"))?;
    let ended = Ended::let_go(run.kept.started.elapsed());
    Ok(run.end(&ended, |_| {}))
}

/// The words that a process was started with.
fn command_of(process: Pid) -> Result<Vec<String>, Error> {
    let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words: Vec<String> = words
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    if words.is_empty() { Err(Error::NoProcess(process.as_raw_pid())) } else { Ok(words) }
}

/// Gives the run its turns until the process is let go, or it and all that it has started have
/// ended.
fn watch(inbox: &Inbox, run: &mut Limited) -> std::io::Result<()> {
    let signals = inbox.descriptor()?;
    let mut is_to_go = false;
    loop {
        let most = run.turn();
        let front = &mut run.front;
        if is_to_go && let Some(lets_go) = front.let_go() {
            is_to_go = false;
            lets_go.unwrap_or_else(say::line);
        }
        if front.is_deserted() || front.has_let_go() {
            return Ok(());
        }
        process::wait_for_any(&[signals.as_fd(), front.keeper().as_fd()], most);
        while let Some(arrival) = inbox.take()? {
            match arrival {
                Arrival::PassOn(signal) | Arrival::FromTerminal(signal) if ends(signal) => {
                    is_to_go = true;
                }
                Arrival::Child => front.reap_orphans(),
                Arrival::HungUp => is_to_go = true,
                Arrival::PassOn(_) | Arrival::FromTerminal(_) => {}
            }
        }
    }
}

fn ends(signal: i32) -> bool {
    matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP)
}
