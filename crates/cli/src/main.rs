//! The `overspill` program.
//!
//! Owns: the command line ([`args`]), running a program under a limit ([`run`]), looking at runs
//! and changing them ([`runs`]), what works here ([`doctor`]), making swap areas ([`mkswap`]),
//! what shells and `man` read ([`manual`]), what is installed beside it ([`installed`]), and the
//! message and status of each failure ([`error`]).
//! Invariants: a failure is one line on stderr, which names the cause and the remedy. The statuses
//! are those of shells (126, 127, 128+n), and 125 for our own failures.
//! Not here: paging (`overspill_run`, `overspill_keeper`).

mod args;
mod doctor;
mod error;
mod installed;
mod manual;
mod mkswap;
mod run;
mod runs;
mod say;
mod status;

use args::Command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let status = match args::parse() {
        Ok(Command::Run(args)) => run::run(args),
        Ok(Command::Attach(args)) => run::attach(args),
        Ok(Command::Detach(args)) => runs::detach(&args),
        Ok(Command::Stats(args)) => runs::stats(&args),
        Ok(Command::Top(args)) => runs::top(&args),
        Ok(Command::Metrics(args)) => runs::metrics(&args),
        Ok(Command::Set(args)) => runs::set(&args),
        Ok(Command::Doctor(args)) => doctor::doctor(&args),
        Ok(Command::Mkswap(args)) => mkswap::mkswap(args),
        Ok(Command::Completions(args)) => manual::completions(&args),
        Ok(Command::Man(args)) => manual::man(&args),
        Ok(Command::ForItself(args)) => run::for_itself(&args),
        Err(error) => Err(error),
    };
    ExitCode::from(status.unwrap_or_else(|error| {
        say::line(&error);
        error.status()
    }))
}
