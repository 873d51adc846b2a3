//! Variables by which a service manager says for which process something is: sockets that are
//! handed over (sd_listen_fds(3)), a watchdog (sd_watchdog_enabled(3)).
//!
//! Owns: that they name the program where they have named this process: a program takes nothing
//! that is another's.
//! Invariant: a program's number is known only when there is its process, so this executable starts
//! there first, sets them, and executes the program.
//! Rejected: executing the program between fork and exec of the library that starts it: no
//! variable can be set there, and the call with a list of one's own is `unsafe`.

use super::program::{Program, ProgramError};
use super::signals::with_our_sigpipe;
use crate::args::ForItselfArgs;
use crate::error::Error;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, id};

const NAMES: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];

fn named() -> impl Iterator<Item = &'static str> {
    let is_this = |name: &&str| env::var(name).is_ok_and(|number| number == id().to_string());
    NAMES.into_iter().filter(is_this)
}

/// True if one of them names this process.
pub(super) fn is_wanted() -> bool {
    named().next().is_some()
}

/// A command to which the program's arguments are added.
pub(super) fn command(program: &Program) -> Result<Command, Error> {
    let this = env::current_exe().map_err(Error::system("find out where this program is"))?;
    let mut command = Command::new(this);
    // Its own name is the first of the program's arguments, which it gets as it is.
    command.args(["for-itself", &named().collect::<Vec<_>>().join(","), "--"]);
    command.arg(&program.path).arg(&program.name);
    Ok(command)
}

/// Is that command.
///
/// # Errors
/// [`ProgramError::NotStarted`].
pub(crate) fn for_itself(args: &ForItselfArgs) -> Result<u8, Error> {
    let [path, name, words @ ..] = &args.program[..] else {
        unreachable!("without two it is refused")
    };
    let mut command = Command::new(path);
    command.arg0(name).args(words);
    for name in args.names.split(',') {
        command.env(name, id().to_string());
    }
    with_our_sigpipe(&mut command);
    let source = command.exec();
    Err(ProgramError::NotStarted { path: path.display().to_string(), source }.into())
}
