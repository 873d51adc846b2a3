//! What cannot be simulated, in one line.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Why there is no simulation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// A parameter that no machine has.
    #[error("{parameter} cannot be {value}: it is from {least} to {most} here")]
    OutOfRange {
        /// Its name.
        parameter: &'static str,
        /// What was asked for.
        value: String,
        /// The least.
        least: String,
        /// The most.
        most: String,
    },
    /// A name that nothing has.
    #[error("no {kind} is called `{name}`; there are {known}")]
    Unknown {
        /// Of what kind it would be.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

/// # Errors
/// [`SimError::OutOfRange`].
pub(crate) fn within<T: PartialOrd + Display + Copy>(
    parameter: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), SimError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(SimError::OutOfRange {
        parameter,
        value: value.to_string(),
        least: range.start().to_string(),
        most: range.end().to_string(),
    })
}
