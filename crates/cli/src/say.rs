//! Messages for the user, on stderr.

use overspill_terminal::Program;
use std::fmt::Display;

/// Prints one line.
pub(crate) fn line(message: impl Display) {
    Program("overspill").say(message);
}
