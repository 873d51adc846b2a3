//! What can go wrong in a command, and the status it ends with.
//!
//! Invariants: the message names the cause and the remedy, in one line.

use crate::installed::NoExecutable;
use crate::run::program::ProgramError;
use crate::status::FAILED;
use overspill::Bytes;
use overspill_run::KeeperError;
use std::io;
use std::path::PathBuf;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Usage(String),
    #[error("{place}: {reason}")]
    Default { place: String, reason: String },
    #[error(
        "no limit is given: write --memory M, as in --memory 512M or 25%, or set OVERSPILL_MEMORY or \
         `memory` in a configuration file; see `overspill attach --help`"
    )]
    NoLimit,
    #[error(transparent)]
    Library(#[from] overspill::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Installed(#[from] NoExecutable),
    #[error("cannot work here: {what}: {detail}")]
    Obstacle { what: &'static str, detail: String },
    #[error(
        "a limit of {0} is above {1}, the most that this run can have: start it with --memory-max {typed}",
        typed = to_type(.0)
    )]
    LimitAboveMost(Bytes, Bytes),
    #[error(
        "{place} cannot be added to a run that goes on: {reason}; start the run with such a place"
    )]
    NotAllowed { place: String, reason: &'static str },
    #[error(transparent)]
    Keeper(KeeperError),
    #[error(
        "--give-back needs to know how short memory is, and the kernel does not tell: {0}; start it \
         with psi=1, or leave that out"
    )]
    Pressure(io::Error),
    #[error("this way cannot be used here: {0}; without --way the first that can is taken")]
    Way(overspill_run::GroundError),
    #[error("programs cannot be paged here: {0}")]
    Ground(#[from] overspill_run::GroundError),
    #[error("cannot write to {}: {source}; name another file", .path.display())]
    OutputFile { path: PathBuf, source: io::Error },
    #[error("process {0} is in no run that goes on: `overspill stats` lists them")]
    NoRun(i32),
    #[error(
        "run {0} is stopped, and answers when it goes on: `kill -CONT {0}`, or fg in its shell"
    )]
    Stopped(i32),
    #[error("there is no process {0} with memory of its own that could be attached to")]
    NoProcess(i32),
    #[error(
        "process {process} is in the limit of `overspill` {run} already: `overspill set {process} --memory M` changes that"
    )]
    Attached { process: i32, run: i32 },
    #[error(transparent)]
    Attach(#[from] overspill_run::AttachingError),
    #[error("not all of it could be let go, and it stays in its limit: run {0} has said why")]
    Stays(i32),
    #[error("cannot serve metrics at {address}: {source}; name a free port as in 127.0.0.1:9779")]
    Listen { address: String, source: io::Error },
    #[error(
        "the process that was to serve --metrics has ended without a word: leave --metrics out"
    )]
    NoMetrics,
    #[error("this is no terminal to show runs on: `overspill stats` prints them once")]
    NoTerminal,
    #[error("{0}")]
    Refused(String),
    #[error("{} is no directory: name an existing one with --directory", .0.display())]
    NoDirectory(PathBuf),
    #[error("cannot {action}: {source}; {}", remedy(.source))]
    System { action: &'static str, source: io::Error },
    #[error("cannot print the report: {0}")]
    Output(#[from] io::Error),
}

impl From<KeeperError> for Error {
    fn from(error: KeeperError) -> Self {
        match error {
            KeeperError::Start(source) => Self::System { action: "start the keeper", source },
            other => Self::Keeper(other),
        }
    }
}

/// As it may be typed, and no less than it is.
fn to_type(limit: &Bytes) -> String {
    let short = format!("{limit:#}");
    let is_enough = overspill::parse_bytes(&short).is_ok_and(|read| read >= *limit);
    if is_enough { short } else { format!("{}K", limit.0.div_ceil(1 << 10)) }
}

/// What to do about a system call that failed for lack of something.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "raise `ulimit -n`, the number of open files",
        Some(libc::EAGAIN) => "raise `ulimit -u`, the number of processes",
        Some(libc::ENOMEM) => "raise `ulimit -v`, or free memory",
        Some(libc::EFBIG) => "raise `ulimit -f`, the size of files",
        _ => "look at the limits of this session (`ulimit -a`)",
    }
}

impl Error {
    /// Returns the exit status for the error.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Program(error) => error.status(),
            _ => FAILED,
        }
    }

    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
