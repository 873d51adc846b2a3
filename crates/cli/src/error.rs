//! What can go wrong in a command, and the status it ends with.
//!
//! Invariants: the message names the cause and the remedy, in one line.

use crate::run::preload::PreloadError;
use crate::run::program::ProgramError;
use std::io;
use std::path::PathBuf;

/// The status for Overspill's own failures.
pub(crate) const FAILED: u8 = 125;
/// As in shells: the program exists, but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// As in shells: the program does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}; see `overspill --help` or `overspill run --help`")]
    Usage(String),
    #[error(transparent)]
    Library(#[from] overspill::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Preload(#[from] PreloadError),
    #[error("cannot find out how much memory there is: give --memory in bytes, as in 512M")]
    MemoryUnknown,
    #[error("cannot work here: {what}: {detail}")]
    Obstacle { what: &'static str, detail: String },
    #[error("this way to notice touches cannot be used here: {0}")]
    Way(overspill::ways::Lack),
    #[error("cannot write to {}: {source}; name another file for --stats, --history or --touches", .path.display())]
    OutputFile { path: PathBuf, source: io::Error },
    #[error("{} is no directory: name an existing one with --directory", .0.display())]
    NoDirectory(PathBuf),
    #[error("cannot {action}: {source}; look at the limits of this session (`ulimit -a`)")]
    System { action: &'static str, source: io::Error },
    #[error(transparent)]
    Bench(#[from] overspill_bench::BenchError),
    #[error(transparent)]
    Sim(#[from] overspill_sim::SimError),
    #[error("cannot write the report to {}: {source}; name another file", .path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("cannot print the report: {0}")]
    Output(#[from] io::Error),
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
