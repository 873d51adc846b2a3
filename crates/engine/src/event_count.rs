//! An eventcount: threads sleep until frames became free, or until there is work.
//!
//! Invariant: no wake is lost between reading the count and the sleep, because the sleep ends at
//! once if the count has changed.

use overspill_base::sync::{Condvar, LockClass, Mutex};
use std::time::Duration;

/// A count of events, with a wait for its change.
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

    /// Counts an event and wakes all sleepers. Makes a system call only if there are any: while
    /// memory is short, every page freed is an event.
    pub(crate) fn notify(&self) {
        let mut state = self.state.lock();
        state.events += 1;
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.condvar.notify_all();
        }
    }

    /// Returns the number of events so far.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().events
    }

    /// Sleeps until there were more events than `seen`, or for `limit`.
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
