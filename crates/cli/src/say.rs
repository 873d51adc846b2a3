//! Lines for people, on stderr.
//!
//! Invariants: every line starts with the program's name, so that it can be told from the lines of
//! the program that runs. A reader who is gone is no error: the program's status is what counts.

use std::fmt::Display;
use std::io::Write;

/// Prints one line.
pub(crate) fn line(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "overspill: {message}");
}
