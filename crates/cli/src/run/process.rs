//! The program's process, from its start to its end.
//!
//! Owns: what it is started with, passing signals on to it, and its status and resource usage at
//! the end.
//! Invariants: when we are killed the kernel kills it, from before its first instruction. Only this
//! module reaps children, so the process number stays the program's until its end has been seen.
//! Orphans of the run become our children and are reaped: every process leaves its pager behind for
//! a moment, and not every container's first process reaps what it does not know.
//! Not here: which signals ([`super::signals`]).

use super::preload::Preload;
use super::program::{Program, ProgramError};
use super::signals::{Arrival, Inbox, keep_ignoring_sigpipe};
use crate::error::Error;
use overspill::Bytes;
use overspill::session::SESSION_VARIABLE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, setrlimit};
use rustix::process::{set_child_subreaper, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// What makes the program part of a run.
pub(super) struct Launch<'a> {
    pub(super) preload: &'a Preload,
    pub(super) session: &'a str,
}

/// How the program ended, and the resources it used.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its number, which may be reused by now.
    pub(super) process: i32,
    how: ExitStatus,
    pub(super) wall: Duration,
    /// Only of a program that was started here.
    pub(super) used: Option<Used>,
}

/// Resources.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) user: Duration,
    pub(super) system: Duration,
    /// Maximum over the program and all children it waited for.
    pub(super) peak_resident: Bytes,
}

impl Ended {
    pub(super) fn new(process: Pid, how: ExitStatus, wall: Duration, usage: &libc::rusage) -> Self {
        let used = Used {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            peak_resident: Bytes((usage.ru_maxrss as u64) << 10),
        };
        Self { process: process.as_raw_pid(), how, wall, used: Some(used) }
    }

    /// Of a process that is let go, or of whose end nobody here hears more.
    pub(super) fn let_go(process: Pid, wall: Duration) -> Self {
        let (process, how) = (process.as_raw_pid(), ExitStatus::default());
        Self { process, how, wall, used: None }
    }

    /// Returns the exit status as a shell does: 128+n for signal n.
    pub(super) fn status(&self) -> u8 {
        match self.how.code() {
            Some(code) => code as u8,
            None => self.signal().map_or(u8::MAX, |signal| 128 + signal as u8),
        }
    }

    /// Returns the signal that ended it.
    pub(super) fn signal(&self) -> Option<i32> {
        self.how.signal()
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}

/// Starts the program and returns when it has ended.
///
/// # Errors
/// [`ProgramError::NotStarted`], [`Error::System`].
pub(super) fn run(program: &Program, launch: &Launch) -> Result<Ended, Error> {
    let inbox = Inbox::open().map_err(Error::system("wait for signals"))?;
    set_child_subreaper(Some(getpid()))
        .map_err(io::Error::from)
        .map_err(Error::system("adopt orphans"))?;
    let files = raise_limit_of_files();
    let started = Instant::now();
    let (preload, value) = launch.preload.variable();
    let variables = [(preload, value), (SESSION_VARIABLE, launch.session.into())];
    let child = start(program, &variables, inbox, files)?;
    let (how, usage) =
        watch(child, &inbox).map_err(Error::system("wait for the program to end"))?;
    Ok(Ended::new(child, how, started.elapsed(), &usage))
}

/// Raises this process's limit of descriptors as far as it may; returns the program's. The session
/// takes two for each process of the run.
pub(super) fn raise_limit_of_files() -> Rlimit {
    let limit = getrlimit(Resource::Nofile);
    // What is less than all it may have is better than to refuse the run.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    limit
}

/// Starts the program with these variables besides ours, and with the limit of files that it would
/// have without us.
///
/// # Errors
/// [`ProgramError::NotStarted`], [`Error::System`].
pub(super) fn start(
    program: &Program,
    variables: &[(&str, OsString)],
    inbox: Inbox,
    files: Rlimit,
) -> Result<Pid, Error> {
    let supervisor = getpid();
    let mut command = Command::new(&program.path);
    command.arg0(&program.name).args(&program.args);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(move || prepare(supervisor, &inbox, files)) };
    let child = command.spawn().map_err(|source| not_started(program, source))?;
    Ok(Pid::from_child(&child))
}

/// Runs in the child, before it executes the program.
fn prepare(supervisor: Pid, inbox: &Inbox, files: Rlimit) -> io::Result<()> {
    setrlimit(Resource::Nofile, files)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(supervisor) {
        // It died before the death signal was set.
        return Err(io::ErrorKind::NotFound.into());
    }
    keep_ignoring_sigpipe();
    inbox.close()
}

fn not_started(program: &Program, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            Error::System { action: "start a process", source }
        }
        _ => ProgramError::NotStarted { path: program.path.display().to_string(), source }.into(),
    }
}

/// Passes signals on until the program ends.
fn watch(child: Pid, inbox: &Inbox) -> io::Result<(ExitStatus, libc::rusage)> {
    loop {
        match inbox.next()? {
            Arrival::Child => {
                if let Some(end) = reap(child)? {
                    return Ok(end);
                }
            }
            Arrival::PassOn(signal) => send(child, signal),
            Arrival::FromTerminal(_) => {}
        }
    }
}

/// Sends a signal to the program, which has not been reaped.
pub(super) fn send(child: Pid, signal: i32) {
    // SAFETY: kill touches no memory. The child has not been reaped, so the number is still its
    // own. A program that has changed its credentials may not be signalled; that is ignored.
    unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
}

/// Reaps all children that have ended; returns how the program ended, if it is among them.
fn reap(program: Pid) -> io::Result<Option<(ExitStatus, libc::rusage)>> {
    loop {
        match wait4(-1)? {
            None => return Ok(None),
            Some((pid, status, usage)) if pid == program.as_raw_pid() => {
                return Ok(Some((status, usage)));
            }
            Some(_orphan) => {}
        }
    }
}

/// Reaps the program if it has ended.
///
/// # Errors
/// It is no child.
pub(super) fn reap_one(program: Pid) -> io::Result<Option<(ExitStatus, libc::rusage)>> {
    let reaped = wait4(program.as_raw_pid())?;
    Ok(reaped.map(|(_, status, usage)| (status, usage)))
}

fn wait4(which: i32) -> io::Result<Option<(i32, ExitStatus, libc::rusage)>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to variables of the right type that outlive the call.
    match unsafe { libc::wait4(which, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        // SAFETY: it was zeroed, which is a valid value, and wait4 has filled it in.
        pid => Ok(Some((pid, ExitStatus::from_raw(status), unsafe { usage.assume_init() }))),
    }
}

/// Waits until one of these can be read, or so long.
pub(super) fn wait_for_any(these: &[BorrowedFd<'_>], most: Duration) {
    let mut fds: Vec<_> = these.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    // What failed is found out by who reads.
    let _ = poll(&mut fds, Timespec::try_from(most).ok().as_ref());
}
