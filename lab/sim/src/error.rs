//! Errors of the simulator, one line each.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Why nothing was simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// A parameter outside its range.
    #[error("{parameter} cannot be {value}: it is from {least} to {most} here")]
    OutOfRange {
        /// Its name.
        parameter: &'static str,
        /// The requested value.
        value: String,
        /// The least.
        least: String,
        /// The most.
        most: String,
    },
    /// An unknown name.
    #[error("no {kind} is called `{name}`; there are {known}")]
    Unknown {
        /// The kind of thing.
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The known names.
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
