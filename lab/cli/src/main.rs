//! The `overspill-lab` program: what is measured, and what is simulated.
//!
//! Owns: the command line ([`args`]), measuring ([`measure`]), simulating ([`mod@sim`]), and the
//! message and status of each failure ([`error`]).
//! Invariants: a failure is one line on stderr, which names the cause and the remedy.
//! Not here: anything that a user of `overspill run` needs.

mod args;
mod error;
mod measure;
mod sim;

use args::Command;
use overspill_terminal::Program;
use std::process::ExitCode;

const LAB: Program = Program("overspill-lab");

fn main() -> ExitCode {
    let status = args::parse().and_then(|command| match command {
        Command::Sim(args) => sim::sim(args),
        Command::Measure(what) => measure::measure(what),
    });
    ExitCode::from(status.unwrap_or_else(|error| {
        LAB.say(&error);
        error.status()
    }))
}
