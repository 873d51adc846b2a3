//! `overspill detach`: what was attached to is let go.

use super::seen::Seen;
use super::set::ask;
use super::{Question, of_process};
use crate::args::DetachArgs;
use crate::error::Error;
use crate::say;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

/// Has the run of a process let it go, and waits until it has.
///
/// # Errors
/// [`Error::NoRun`], [`Error::Refused`] with the run's own words;
/// [`Error::Stays`].
pub(crate) fn detach(args: &DetachArgs) -> Result<u8, Error> {
    let run = of_process(args.process)?;
    let begun = Instant::now();
    ask(run, &Question::Detach)?;
    while run.goes_on() {
        // While it waits for pages it does not answer.
        match Seen::of(run) {
            Some(seen) if seen.has_let_go => break,
            Some(seen) if !seen.lets_go => return Err(Error::Stays(run.process)),
            _ => std::thread::sleep(PAUSE),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    say::result(format_args!("process {} is let go, after {seconds:.2} s", args.process))?;
    Ok(0)
}
