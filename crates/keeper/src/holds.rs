//! Asking the front to hold threads of guests.
//!
//! Owns: who waits until the front has told a guest's threads to stop.
//! Invariant: nobody waits for a front that is no more: the run ends with it.
//! Not here: holding, which takes rights that a keeper does not have (`run`).

use crate::guest::Holder;
use crate::link::Link;
use crate::words::Report;
use overspill_base::sync::{Arc, LockClass, Mutex};
use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// How long the front may take to read a message.
const PATIENCE: Duration = Duration::from_secs(20);

/// The holder of a keeper that is a process of its own.
#[derive(Debug)]
pub(crate) struct Holds {
    link: Arc<Link>,
    /// By the guests' numbers; `None` when there is no front any more.
    waiting: Mutex<Option<HashMap<u64, Sender<()>>>>,
}

impl Holds {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, waiting: Mutex::new(LockClass::Control, Some(HashMap::new())) }
    }

    /// The front has told the threads of a guest.
    pub(crate) fn told(&self, guest: u64) {
        let waiting = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&guest));
        if let Some(waiting) = waiting {
            // Who waited may have ended.
            let _ = waiting.send(());
        }
    }

    /// The front is no more.
    pub(crate) fn close(&self) {
        *self.waiting.lock() = None;
    }
}

impl Holder for Holds {
    fn hold(&self, guest: u64) {
        let (told, is_told) = channel();
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.insert(guest, told),
            None => return,
        };
        if self.link.answer(&Report::Hold(guest), PATIENCE).is_ok() {
            let _ = is_told.recv();
        }
    }

    fn release(&self, guest: u64) {
        // If it is not heard, the run is at its end.
        let _ = self.link.answer(&Report::Release(guest), PATIENCE);
    }
}
