//! The `overspill-lab` program from outside: figures, messages and statuses.

mod measure;
mod sim;
mod usage;

use std::process::{Command, Output};

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_overspill-lab"))
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
