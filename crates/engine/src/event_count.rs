//! Where threads sleep until something has happened: frames became free, or there is work.
//!
//! Invariant: an event between a look at the count and the sleep is not slept through, because the
//! sleep ends at once if the count has changed.

use overspill_base::sync::{Condvar, LockClass, Mutex};
use std::time::Duration;

/// A count of events that one can wait for to change.
#[derive(Debug)]
pub(crate) struct EventCount {
    state: Mutex<State>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: u64,
    sleepers: usize,
}

impl EventCount {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(LockClass::Wait, State::default()), condvar: Condvar::new() }
    }

    /// Counts an event and wakes all sleepers: a system call only if there are any, because there
    /// is an event for every page while memory is short.
    pub(crate) fn notify(&self) {
        let mut state = self.state.lock();
        state.events += 1;
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.condvar.notify_all();
        }
    }

    /// Events so far.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().events
    }

    /// Sleeps until there were more events than `seen`, or `limit` is over.
    pub(crate) fn wait(&self, seen: u64, limit: Option<Duration>) {
        let mut state = self.state.lock();
        state.sleepers += 1;
        while state.events == seen {
            match limit {
                None => state = self.condvar.wait(state),
                Some(limit) => {
                    state = self.condvar.wait_for(state, limit);
                    break;
                }
            }
        }
        state.sleepers -= 1;
    }
}
