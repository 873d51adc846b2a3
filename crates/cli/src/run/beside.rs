//! A thread that looks at a run while it goes on.

use super::signals;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Runs `work`; beside it a thread calls `look` after `period`, then whenever the time has passed
/// that it returned last, and once more when `work` has ended. The thread gets no signals.
pub(super) fn beside<R>(
    mut period: Duration,
    mut look: impl FnMut() -> Duration + Send,
    work: impl FnOnce() -> R,
) -> R {
    let (ended, end) = channel::<()>();
    thread::scope(|scope| {
        let looking = move || {
            while end.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                period = look();
            }
            look();
        };
        signals::blocked(|| scope.spawn(looking));
        let result = work();
        drop(ended);
        result
    })
}
