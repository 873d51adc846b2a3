//! What the programs of Overspill say to people.
//!
//! Owns: lines on stderr ([`Program::say`]), and the line about a mistaken command line
//! ([`usage`]).
//! Invariants: every line starts with the program's name, which distinguishes it from the lines of
//! a program that it runs, and is one line, of which a terminal obeys nothing ([`plain`]): messages
//! repeat what servers, other users' runs and programs say. A failed write is ignored: the
//! program's status is what counts.
//! Not here: what is said.

pub mod usage;

pub use overspill_base::plain;
use std::fmt::Display;
use std::io::Write;

/// The name of a program, by which its lines are known.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub &'static str);

impl Program {
    /// Prints one line.
    pub fn say(self, message: impl Display) {
        let _ = writeln!(std::io::stderr(), "{}: {}", self.0, plain(&message.to_string()));
    }
}
