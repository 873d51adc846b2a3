//! The program's process, from its start to its end.
//!
//! Owns: what it is started with, sending signals to it, and its status and resource usage at the
//! end.
//! Invariants: when we are killed the kernel kills it, from before its first instruction. Nobody
//! else reaps it, so the process number stays the program's until its end has been seen.
//! Not here: which signals ([`super::signals`]).

use super::own_number;
use super::program::{Program, ProgramError};
use super::signals::{Inbox, keep_ending_by_large_files, keep_ignoring_sigpipe};
use crate::error::Error;
use overspill::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::process::set_parent_process_death_signal;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, setrlimit};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// How the program ended, and the resources it used.
#[derive(Debug)]
pub(super) struct Ended {
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
    pub(super) fn new(how: ExitStatus, wall: Duration, usage: &libc::rusage) -> Self {
        let used = Used {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            peak_resident: Bytes((usage.ru_maxrss as u64) << 10),
        };
        Self { how, wall, used: Some(used) }
    }

    /// Of a process that is let go, or of whose end nobody here hears more.
    pub(super) fn let_go(wall: Duration) -> Self {
        Self { how: ExitStatus::default(), wall, used: None }
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

/// Descriptors that a run of one program needs.
const FILES_MIN: u64 = 64;

/// Raises this process's limit of descriptors as far as it may; returns the program's.
///
/// # Errors
/// [`Error::System`]: there could be too few.
pub(super) fn raise_limit_of_files() -> Result<Rlimit, Error> {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < FILES_MIN) {
        let too_few = io::Error::from_raw_os_error(libc::EMFILE);
        return Err(Error::system("open what paging needs")(too_few));
    }
    // What is less than all it may have is better than to refuse the run.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    Ok(limit)
}

/// Starts the program with the limit of files that it would have without us.
///
/// # Errors
/// [`ProgramError::NotStarted`], [`Error::System`].
pub(super) fn start(
    program: &Program,
    variables: Vec<(&str, String)>,
    inbox: Inbox,
    files: Rlimit,
) -> Result<Pid, Error> {
    let supervisor = getpid();
    let mut command = match own_number::is_wanted() {
        true => own_number::command(program)?,
        false => Command::new(&program.path),
    };
    command.arg0(&program.name).args(&program.args).envs(variables);
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
    keep_ending_by_large_files();
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

/// Sends a signal to the program, which has not been reaped.
pub(super) fn send(child: Pid, signal: i32) {
    // SAFETY: kill touches no memory. The child has not been reaped, so the number is still its
    // own. A program that has changed its credentials may not be signalled; that is ignored.
    unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
}

/// Tells the process group, of which this process leads the session, that the terminal has closed,
/// as the kernel does when a program that leads one ends. This process goes on.
pub(super) fn hang_up_group() {
    let _ = rustix::process::kill_current_process_group(Signal::HUP);
    for action in [libc::SIG_IGN, libc::SIG_DFL] {
        // What waits to be delivered is discarded by the first of them.
        // SAFETY: no handler of ours.
        unsafe { libc::signal(libc::SIGHUP, action) };
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
