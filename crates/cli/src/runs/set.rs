//! `overspill set`: the limit of a run, changed while it goes on.

use super::seen::Seen;
use super::{LOOK, of_process, set_memory};
use crate::args::SetArgs;
use crate::error::Error;
use crate::say;
use overspill::Bytes;
use overspill::session::Run;
use serde_json::Value;
use std::io::{Write, stdout};
use std::time::{Duration, Instant};

/// How long a run has to come down to a lower limit before this ends with a note.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Changes the limit of the run of a process, and waits until the run keeps to it.
///
/// # Errors
/// [`Error::NoRun`], [`Error::Runs`], [`Error::Refused`] with the run's own words.
pub(crate) fn set(args: &SetArgs) -> Result<u8, Error> {
    let run = of_process(args.process)?;
    let before = change(run, args.memory)?;
    let begun = Instant::now();
    match wait_until_kept(run, args.memory) {
        Some(used) => say::line(format_args!(
            "run {} still has {used}: pages that are locked in memory or shared take longer",
            run.process
        )),
        None => writeln!(
            stdout(),
            "run {}: {before} -> {}, in {:.2} s",
            run.process,
            args.memory,
            begun.elapsed().as_secs_f64()
        )?,
    }
    Ok(0)
}

/// Changes the limit of a run; returns the one it had. Does not wait.
///
/// # Errors
/// [`Error::NoRun`] if it has ended, [`Error::Refused`] with its own words.
pub(super) fn change(run: Run, limit: Bytes) -> Result<Bytes, Error> {
    let answer = run.ask(&set_memory(limit)).map_err(|_| Error::NoRun(run.process))?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    match answer["refused"].as_str() {
        Some(refusal) => Err(Error::Refused(refusal.to_owned())),
        None => Ok(Bytes(answer["memory_bytes_before"].as_u64().unwrap_or(0))),
    }
}

/// Waits until the run has no more than `limit`, or has ended; what it still has if that takes too
/// long.
fn wait_until_kept(run: Run, limit: Bytes) -> Option<Bytes> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen: Seen = serde_json::from_str(&run.ask(LOOK).ok()?).ok()?;
        let used = Bytes(seen.memory_used_bytes);
        if used <= limit {
            return None;
        }
        if Instant::now() > deadline {
            return Some(used);
        }
        std::thread::sleep(PAUSE);
    }
}
