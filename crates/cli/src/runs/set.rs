//! `overspill set`: the limit of a run, and where it swaps to, changed while it goes on.

use super::seen::Seen;
use super::{Question, of_process};
use crate::args::{ChangeArgs, SetArgs};
use crate::error::Error;
use crate::say;
use overspill::Bytes;
use overspill_run::Run;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long a run has for a change, or a part of it, before this ends with a note.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Changes the run of a process, and waits until the change is made.
///
/// # Errors
/// [`Error::NoRun`], [`Error::Refused`] with the run's own words.
pub(crate) fn set(args: &SetArgs) -> Result<u8, Error> {
    let run = of_process(args.process)?;
    match &args.change {
        ChangeArgs { memory: Some(limit), .. } => set_memory(run, limit.bytes())?,
        ChangeArgs { swapon: Some(place), .. } => add_swap(run, place)?,
        ChangeArgs { swapoff: Some(name), .. } => remove_swap(run, name)?,
        ChangeArgs { memory: None, swapon: None, swapoff: None } => {
            unreachable!("one of them is required")
        }
    }
    Ok(0)
}

fn set_memory(run: Run, limit: Bytes) -> Result<(), Error> {
    let begun = Instant::now();
    let before = change_memory(run, limit)?;
    match wait_until(run, |seen| seen.memory_used_bytes <= limit.0) {
        Some(seen) => say::line(format_args!(
            "run {} still has {}: pages that are locked in memory or shared take longer, and the \
             data of program files stays",
            run.process,
            Bytes(seen.memory_used_bytes)
        )),
        None => {
            let seconds = begun.elapsed().as_secs_f64();
            say::result(format_args!(
                "run {}: {before} -> {limit}, in {seconds:.2} s",
                run.process
            ))?;
        }
    }
    Ok(())
}

fn add_swap(run: Run, place: &str) -> Result<(), Error> {
    let answer = ask(run, &Question::AddSwap(place.to_owned()))?;
    let name = answer["device"].as_str().unwrap_or(place);
    let took_it = |seen: &Seen| {
        let last = seen.devices.last().map_or(0, |device| device.area);
        seen.processes.iter().all(|it| it.devices > last)
    };
    match wait_until(run, took_it) {
        Some(_) => say::line(format_args!(
            "run {}: processes that are stopped, or could not open it, do without {name}",
            run.process
        )),
        None => say::result(format_args!("run {}: swaps to {name} too", run.process))?,
    }
    Ok(())
}

fn remove_swap(run: Run, name: &str) -> Result<(), Error> {
    let begun = Instant::now();
    let area = ask(run, &Question::RemoveSwap(name.to_owned()))?["area"].as_u64();
    let on = |seen: &Seen| seen.devices.iter().find(|it| Some(it.area as u64) == area).cloned();
    let mut used = u64::MAX;
    // As long as it gets less there is something to wait for.
    while let Some(left) = wait_until(run, |seen| on(seen).is_none()) {
        let now = on(&left).map_or(0, |device| device.used_bytes);
        if now >= used {
            say::line(format_args!(
                "run {}: {} are left on {name}: the swapoff goes on when there is room; raise the limit, \
                 add swap, or continue processes that are stopped",
                run.process,
                Bytes(now)
            ));
            return Ok(());
        }
        used = now;
    }
    let seconds = begun.elapsed().as_secs_f64();
    say::result(format_args!(
        "run {}: swaps no more to {name}, after {seconds:.2} s",
        run.process
    ))?;
    Ok(())
}

/// Changes the limit of a run; returns the one it had. Does not wait.
///
/// # Errors
/// [`Error::NoRun`] if it has ended, [`Error::Refused`] with its own words.
pub(super) fn change_memory(run: Run, limit: Bytes) -> Result<Bytes, Error> {
    let answer = ask(run, &Question::SetMemory(limit))?;
    Ok(Bytes(answer["memory_bytes_before"].as_u64().unwrap_or(0)))
}

pub(super) fn ask(run: Run, question: &Question) -> Result<Value, Error> {
    let answer = question.ask(run)?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    match answer["refused"].as_str() {
        Some(refusal) => Err(Error::Refused(refusal.to_owned())),
        None => Ok(answer),
    }
}

/// Waits until a change is made, or the run has ended; how it is if that takes too long.
fn wait_until(run: Run, is_made: impl Fn(&Seen) -> bool) -> Option<Seen> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = Seen::of(run)?;
        if is_made(&seen) {
            return None;
        }
        if Instant::now() > deadline {
            return Some(seen);
        }
        std::thread::sleep(PAUSE);
    }
}
