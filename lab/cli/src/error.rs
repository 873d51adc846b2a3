//! What can go wrong in a command, and the status it ends with.

use overspill_bench::BenchError;
use std::io;
use std::path::PathBuf;

/// As of `overspill`: its own failures.
const FAILED: u8 = 125;
/// As in shells: SIGINT has ended it.
const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Sim(#[from] overspill_sim::SimError),
    #[error("cannot find out where this program is: {0}; start it by its path")]
    NoExecutable(io::Error),
    #[error("cannot write the report to {}: {source}; name another file", .path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("cannot print the report: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// Returns the exit status for the error.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Bench(BenchError::Interrupted) => INTERRUPTED,
            _ => FAILED,
        }
    }
}
