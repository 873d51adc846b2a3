//! Why a measurement failed.

use std::io;
use std::path::PathBuf;

/// Why a measurement failed. Each message is one line, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A parameter outside its range.
    #[error("bad {parameter} {value}: it must be {range}")]
    OutOfRange {
        /// As written on the command line.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: String,
    },
    /// An unknown name.
    #[error("no {what} is called `{name}`; there are {all}")]
    Unknown {
        /// The kind of thing.
        what: &'static str,
        /// What was given.
        name: String,
        /// The known ones.
        all: String,
    },
    /// An unknown workload.
    #[error("no workload is called `{name}`; there are {all}")]
    UnknownWorkload {
        /// What was given.
        name: String,
        /// The known ones.
        all: String,
    },
    /// A file is no recorded trace.
    #[error("cannot replay {}: {reason}; `overspill run --touches FILE` records traces", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}; take fewer --threads or free memory")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The pool could not bring in a page.
    #[error("the measured pool could not go on: {0}")]
    Pool(#[from] overspill::PoolError),
    /// The engine could not bring in a page.
    #[error("the measured engine could not go on: {0}")]
    Engine(String),
    /// A page did not hold what was written to it.
    #[error("swap returned wrong data, which is a bug to be reported: {0}")]
    WrongData(String),
    /// The library's own error.
    #[error(transparent)]
    Overspill(#[from] overspill::Error),
    /// A control group cannot be entered.
    #[error("cannot enter a control group by {}: {source}; name one that is there", .path.display())]
    Group {
        /// The file that was written.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Kernel swap would not be measured alone.
    #[error(
        "other swap is on ({0}) and the kernel would use it: swapoff it, or leave `kernel` out of --ways"
    )]
    OtherSwap(String),
    /// Another comparison runs, or has left something behind.
    #[error("{0}")]
    Left(String),
    /// A kernel file lacks what the measurement needs, or rejects it.
    #[error("cannot use {}: {reason}; without root the kernel is left out", .path.display())]
    KernelFile {
        /// What was read or written.
        path: PathBuf,
        /// Why it is unusable.
        reason: String,
    },
    /// A measured program failed.
    #[error("{what} failed: {reason}")]
    Child {
        /// What was run.
        what: String,
        /// Its last line, or how it ended.
        reason: String,
    },
    /// A measured program was killed, but not by us.
    #[error("{what} was killed: dmesg says if its memory had ended")]
    Killed {
        /// What was run.
        what: String,
    },
    /// A measured program did not end in time.
    #[error("{what} failed: it did not end within {seconds} s")]
    Late {
        /// What was run.
        what: String,
        /// Its time.
        seconds: u64,
    },
    /// A program printed something else than before.
    #[error(
        "{what} printed {printed:?}, and {expected:?} was printed before: a bug to be reported"
    )]
    Differs {
        /// What was run.
        what: String,
        /// This time.
        printed: String,
        /// The first time.
        expected: String,
    },
    /// We were asked to stop.
    #[error("interrupted; everything made for the comparison was removed")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn unknown<'a>(
        what: &'static str,
        name: &str,
        all: impl Iterator<Item = &'a str>,
    ) -> Self {
        let all = all.collect::<Vec<_>>().join(", ");
        Self::Unknown { what, name: name.to_owned(), all }
    }

    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

/// Refuses a `value` of `parameter` outside `range`.
pub(crate) fn within<T: PartialOrd + std::fmt::Display + Copy>(
    parameter: &'static str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), BenchError> {
    if range.contains(&value) {
        return Ok(());
    }
    let range = format!("{} to {}", range.start(), range.end());
    Err(BenchError::OutOfRange { parameter, value: value.to_string(), range })
}
