//! Running programs with a time limit.
//!
//! Invariants: a program that does not end in time, or during which we are interrupted, is killed
//! and reaped; if we are killed, so is it. Its output is read while it runs.
//! Not here: which programs.

use crate::error::BenchError;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Set when this process is asked to stop.
pub(crate) type Interrupted = Arc<AtomicBool>;

/// Makes SIGINT, SIGTERM and SIGHUP set the flag from now on.
///
/// # Errors
/// [`BenchError::System`].
pub(crate) fn watch_signals() -> Result<Interrupted, BenchError> {
    let flag = Interrupted::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(BenchError::system("wait for signals"))?;
    }
    Ok(flag)
}

/// What a program printed.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) output: String,
    pub(crate) errors: String,
}

/// How often the end of a program is polled: rarely enough not to disturb it.
const PERIOD: Duration = Duration::from_millis(20);
/// Time for the kernel to end a killed program.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Most runs of a program that the kernel kills before that is an error.
const RUNS_MAX: usize = 5;

/// Calls `run` again when the kernel has killed the program. In a small control group reclaim
/// sometimes finds nothing for a moment, and the kernel kills although there is swap left.
///
/// # Errors
/// Those of `run`.
pub(crate) fn again_if_killed<T>(
    mut run: impl FnMut() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let mut result = run();
    for _ in 1..RUNS_MAX {
        match result {
            Err(BenchError::Killed { .. }) => result = run(),
            other => return other,
        }
    }
    result
}

/// Runs a program, which must succeed within `patience`. It has its own process group, so that the
/// terminal's signals reach only us.
///
/// # Errors
/// [`BenchError::Child`], [`BenchError::Killed`], [`BenchError::Interrupted`].
pub(crate) fn run(
    command: &Command,
    patience: Duration,
    interrupted: Option<&Interrupted>,
) -> Result<Printed, BenchError> {
    let what = described(command);
    let failed = |reason: String| BenchError::Child { what: what.clone(), reason };
    let mut command = ending_with_us(command, "KILL");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (output, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let stop = || interrupted.is_some_and(|flag| flag.load(Relaxed));
    let Some(status) = wait(&mut child, patience, stop) else {
        kill(&mut child);
        let late = BenchError::Late { what, seconds: patience.as_secs() };
        return Err(if stop() { BenchError::Interrupted } else { late });
    };
    let text = |reader: JoinHandle<String>| reader.join().unwrap_or_default();
    let printed = Printed { output: text(output), errors: text(errors) };
    if status.success() {
        Ok(printed)
    } else if was_killed(status) {
        Err(BenchError::Killed { what })
    } else {
        Err(failed(reason(status, &printed.errors)))
    }
}

/// Returns a command that runs `command`, which is sent the signal of that name when this process
/// ends.
pub(super) fn ending_with_us(command: &Command, signal: &str) -> Command {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", signal]);
    bound.arg(command.get_program()).args(command.get_args());
    bound
}

/// Returns true after SIGKILL, also if a shell in between tells it by its exit code.
fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL) || status.code() == Some(128 + SIGKILL)
}

/// Returns the program's status, if it ends in time.
fn wait(child: &mut Child, patience: Duration, stop: impl Fn() -> bool) -> Option<ExitStatus> {
    let end = Instant::now() + patience;
    while Instant::now() < end && !stop() {
        // This fails only if our child was reaped elsewhere, and then it has ended.
        if let Some(status) = child.try_wait().unwrap_or_default() {
            return Some(status);
        }
        std::thread::sleep(PERIOD);
    }
    None
}

/// Kills the program and its descendants. One that hangs in the kernel is left there.
fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    wait(child, LAST_PATIENCE, || false);
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the command line as one would type it.
fn described(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns the last line of its stderr, or how it ended.
fn reason(status: ExitStatus, errors: &str) -> String {
    let said = errors.lines().rev().find(|line| !line.trim().is_empty());
    said.map_or_else(|| status.to_string(), |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(line: &str, patience_ms: u64, flag: Option<&Interrupted>) -> Result<Printed, BenchError> {
        run(Command::new("sh").args(["-c", line]), Duration::from_millis(patience_ms), flag)
    }

    #[test]
    fn what_is_printed_is_read_even_if_it_is_much() {
        let printed = sh("seq 100000; echo so >&2", 60_000, None).unwrap();
        assert!(printed.output.ends_with("100000\n") && printed.output.len() > 1 << 18);
        assert_eq!(printed.errors, "so\n");
    }

    #[test]
    fn a_failure_is_its_last_line_or_its_status() {
        let table = [
            (
                "echo one >&2; echo two >&2; exit 3",
                "sh -c echo one >&2; echo two >&2; exit 3 failed: two",
            ),
            ("exit 3", "sh -c exit 3 failed: exit status: 3"),
            ("sleep 60", "sh -c sleep 60 failed: it did not end within 0 s"),
        ];
        for (line, message) in table {
            assert_eq!(sh(line, 500, None).unwrap_err().to_string(), message);
        }
        let missing = run(&Command::new("/nowhere/at all"), PERIOD, None).unwrap_err();
        assert!(missing.to_string().starts_with("/nowhere/at all failed: "), "{missing}");
    }

    #[test]
    fn an_interruption_ends_the_program_and_what_it_started() {
        let flag = Interrupted::new(true.into());
        let started = Instant::now();
        let error = sh("sleep 60 & sleep 60", 60_000, Some(&flag)).unwrap_err();
        assert!(matches!(error, BenchError::Interrupted), "{error}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_is_killed_is_run_again_so_often_and_what_fails_is_not() {
        let told = ("sh -c 'kill -9 $$'; exit $?", RUNS_MAX);
        for (script, runs) in [("kill -9 $$", RUNS_MAX), told, ("exit 3", 1), ("exit 0", 1)] {
            let mut count = 0;
            let result = again_if_killed(|| {
                count += 1;
                run(Command::new("sh").args(["-c", script]), Duration::from_secs(10), None)
            });
            assert_eq!(count, runs, "{script}");
            assert_eq!(matches!(result, Err(BenchError::Killed { .. })), runs > 1, "{script}");
        }
    }
}
