//! Calling a thread that sleeps between its rounds.
//!
//! Invariant: a call during a round leads to another one.

use overspill_base::sync::{Condvar, LockClass, Mutex};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Call {
    is_called: Mutex<bool>,
    called: Condvar,
}

impl Call {
    pub(crate) fn new() -> Self {
        Self { is_called: Mutex::new(LockClass::Control, false), called: Condvar::new() }
    }

    pub(crate) fn call(&self) {
        *self.is_called.lock() = true;
        self.called.notify_one();
    }

    /// Sleeps until called, or for `interval`.
    pub(crate) fn wait(&self, interval: Option<Duration>) {
        let mut is_called = self.is_called.lock();
        if !*is_called {
            is_called = match interval {
                Some(interval) => self.called.wait_for(is_called, interval),
                None => self.called.wait(is_called),
            };
        }
        *is_called = false;
    }
}
