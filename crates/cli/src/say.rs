//! Messages for the user, on stderr.
//!
//! Invariants: every line starts with the program's name, which distinguishes it from the lines of
//! the running program. A failed write is ignored: the program's status is what counts.

use std::fmt::Display;
use std::io::Write;

/// Prints one line.
pub(crate) fn line(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "overspill: {message}");
}
