//! One run of a program.
//!
//! Owns: its command line, and where its figures are read.
//! Invariants: time and CPU time are measured alike for every pager. CPU time is the machine's, so
//! that the work of the kernel's threads and of our pager is in it: nothing else may run.
//! Not here: the order of the runs.

use super::table::{Program, SQLITE};
use crate::compare::child::{self, Interrupted};
use crate::compare::cpu_seconds;
use crate::compare::statistics_of_run;
use crate::error::BenchError;
use overspill::Bytes;
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Who pages, and what it needs.
#[derive(Clone, Copy)]
pub(super) enum Pager<'a> {
    /// Nobody: there is memory enough.
    None,
    /// The kernel, for the processes of a control group.
    Kernel { group: &'a Path },
    /// `overspill run`.
    Run { overspill: &'a Path, memory: Bytes, swap: &'a str },
}

/// How a run ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it does.
    Done(Figures),
    /// It was killed for want of memory.
    Killed,
    /// It was ended by us after this many seconds.
    Late(u64),
}

/// What a run took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// From start to end.
    pub seconds: f64,
    /// Of all CPUs of the machine.
    pub cpu_seconds: f64,
    /// Pages that were read from swap.
    pub pages_in: u64,
    /// Largest resident size of the largest process without a pager, of all processes under
    /// Overspill; the kernel's is its limit.
    pub peak_bytes: Option<u64>,
}

/// Gives a program its directory and its time.
pub(super) struct Runner<'a> {
    pub(super) directory: &'a Path,
    pub(super) sqlite: Option<&'a Path>,
    pub(super) patience: Duration,
    pub(super) interrupted: &'a Interrupted,
}

/// Most time to make a program's input.
const PREPARE: Duration = Duration::from_secs(600);
/// Enters the group that is its first argument, and becomes the rest.
const ENTER: &str = r#"echo $$ >"$1/cgroup.procs" && shift && exec "$@""#;

impl Runner<'_> {
    /// Makes the program's input, once.
    ///
    /// # Errors
    /// [`BenchError::Child`], [`BenchError::Interrupted`].
    pub(super) fn prepare(&self, program: &Program) -> Result<(), BenchError> {
        program.unpack(self.directory).map_err(BenchError::system("write a script"))?;
        let command = self.in_place(&self.script("prepare"));
        child::run(&command, PREPARE, Some(self.interrupted)).map(drop)
    }

    /// Runs it; returns what it printed as well, if it was done.
    ///
    /// # Errors
    /// [`BenchError::Child`], [`BenchError::Interrupted`].
    pub(super) fn work(&self, pager: Pager<'_>) -> Result<(Outcome, Option<String>), BenchError> {
        let command = self.in_place(&self.command(pager));
        let (begun, cpu, swapped_in) = (Instant::now(), cpu_seconds(), pages_in());
        let printed = match child::run(&command, self.patience, Some(self.interrupted)) {
            Ok(printed) => printed,
            Err(BenchError::Killed { .. }) => return Ok((Outcome::Killed, None)),
            Err(BenchError::Late { seconds, .. }) => return Ok((Outcome::Late(seconds), None)),
            Err(error) => return Err(error),
        };
        let seconds = begun.elapsed().as_secs_f64();
        let mut figures = Figures {
            seconds,
            cpu_seconds: cpu_seconds() - cpu,
            pages_in: pages_in() - swapped_in,
            peak_bytes: None,
        };
        match pager {
            Pager::None => figures.peak_bytes = peak_of_time(&printed.errors),
            Pager::Kernel { .. } => {}
            Pager::Run { .. } => {
                let stats = statistics_of_run(&printed.errors).unwrap_or_default();
                figures.pages_in = stats["summary"]["pages_in"].as_u64().unwrap_or(0);
                figures.peak_bytes = stats["peak_resident_bytes"].as_u64();
            }
        }
        Ok((Outcome::Done(figures), Some(printed.output)))
    }

    fn command(&self, pager: Pager<'_>) -> Command {
        let script = self.script("work");
        let mut command = match pager {
            Pager::None => {
                let mut command = Command::new("time");
                command.args(["-f", "peak %M KiB"]);
                command
            }
            Pager::Kernel { group } => {
                let mut command = Command::new("sh");
                command.args(["-c", ENTER, "sh"]).arg(group);
                command
            }
            Pager::Run { overspill, memory, swap } => {
                let mut command = Command::new(overspill);
                command.args(["run", "--quiet", "--stats", "/dev/stderr", "--swap", swap]);
                command.args(["--memory", &memory.0.to_string(), "--"]);
                command
            }
        };
        command.arg(script.get_program()).args(script.get_args());
        command
    }

    /// Calls a function of the program's script.
    fn script(&self, function: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("set -e; . ./program.sh; {function}")]);
        command
    }

    /// The command as it is run in the program's directory.
    fn in_place(&self, command: &Command) -> Command {
        let mut placed = Command::new("env");
        placed.arg("-C").arg(self.directory);
        if let Some(sqlite) = self.sqlite {
            placed.arg(format!("{SQLITE}={}", sqlite.display()));
        }
        placed.arg(command.get_program()).args(command.get_args());
        placed
    }
}

/// Pages that the kernel has read from swap since it started.
fn pages_in() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let value = vmstat.lines().find_map(|line| line.strip_prefix("pswpin "));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// What `time` printed.
fn peak_of_time(errors: &str) -> Option<u64> {
    let line = errors.lines().rev().find_map(|line| line.strip_prefix("peak "))?;
    Some(line.strip_suffix(" KiB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_last_that_time_has_printed() {
        assert_eq!(peak_of_time("peak 3 KiB\nso\npeak 70 KiB\n"), Some(70 << 10));
        assert_eq!(peak_of_time("Command exited with non-zero status 1\n"), None);
    }
}
