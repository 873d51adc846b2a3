//! Records which pages a run touches, for `overspill bench policy --trace`.
//!
//! Owns: the thread that reads the history before it overwrites itself.
//! Invariant: what is missing is said.

use super::signals;
use crate::say;
use overspill::session::Touches;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// In this time at most half of the history is written, by two processors.
const PERIOD: Duration = Duration::from_millis(50);

/// Runs `work`; returns its result, and the numbers of the pages touched meanwhile.
pub(super) fn record<R>(mut touches: Touches, work: impl FnOnce() -> R) -> (R, Vec<u32>) {
    let (ended, end) = channel::<()>();
    let (result, touched, missed) = thread::scope(|scope| {
        let read = move || {
            let mut touched = Vec::new();
            while end.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                touches.take(&mut touched);
            }
            touches.take(&mut touched);
            (touched, touches.missed())
        };
        let reader = signals::blocked(|| scope.spawn(read));
        let result = work();
        drop(ended);
        let (touched, missed) = reader.join().expect("it does not panic");
        (result, touched, missed)
    });
    if missed > 0 {
        say::line(format!("{missed} changes came too fast to be recorded: give more --memory"));
    }
    (result, touched)
}
