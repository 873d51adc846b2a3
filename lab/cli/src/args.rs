//! The command line.
//!
//! Owns: what the command line may contain, its help texts, and the syntax of its values.
//! Not here: the grammar of sizes and swap specifications, which the library owns.

mod compare;
mod measure;
mod programs;
mod sim;

pub(crate) use compare::{CompareArgs, TouchArgs};
pub(crate) use measure::{AblateArgs, Measure, PolicyArgs, ReplayArgs, SlotsArgs};
pub(crate) use programs::ProgramsArgs;
pub(crate) use sim::{ExploreArgs, Sim, SimArgs, SimRunArgs, SweepArgs};

use crate::error::Error;
use clap::builder::styling::Styles;
use clap::{CommandFactory, Parser, Subcommand};
use overspill_terminal::usage;
use std::ffi::OsString;

/// Measure Overspill on this machine, against kernel swap and each mechanism off and on; or
/// simulate it on many virtual CPUs.
#[derive(Debug, Parser)]
#[command(
    name = "overspill-lab",
    version,
    arg_required_else_help = false,
    styles = Styles::plain()
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Measure(Measure),
    Sim(SimArgs),
}

/// Parses the command line. Prints help and version if requested, and ends the program.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn parse() -> Result<Command, Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    match CommandLine::try_parse_from(&words) {
        Ok(line) => Ok(line.command),
        Err(error) if error.use_stderr() => {
            Err(Error::Usage(usage::line(&error, &CommandLine::command(), &words)))
        }
        Err(help) => help.exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        usage::assert_examples(&CommandLine::command());
    }
}
