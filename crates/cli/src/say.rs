//! Messages for the user, on stderr, and results, on stdout.

use overspill_terminal::{Program, plain};
use std::fmt::Display;
use std::io::{self, Write};

/// Prints one line.
pub(crate) fn line(message: impl Display) {
    Program("overspill").say(message);
}

/// Prints one line of a result, which may have words of others.
///
/// # Errors
/// It cannot be written.
pub(crate) fn result(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{}", plain(&line.to_string()))
}
