//! Why a measurement failed.

use std::io;

/// Why a measurement failed. One line each, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A parameter outside its range.
    #[error("bad {parameter} {value}: it must be {range}")]
    OutOfRange {
        /// As it is written on the command line.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// What may be.
        range: String,
    },
    /// No mechanism is called that.
    #[error("no mechanism is called `{name}`; there are {all}")]
    UnknownMechanism {
        /// What was given.
        name: String,
        /// Those there are.
        all: String,
    },
    /// The machine refuses something.
    #[error("cannot {action}: {source}; take fewer --threads or free memory")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The engine could not bring a page.
    #[error("the measured engine could not go on: {0}")]
    Engine(String),
    /// A page did not hold what was written to it.
    #[error("swap returned wrong data, which is a bug to be reported: {0}")]
    WrongData(String),
}

impl BenchError {
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
