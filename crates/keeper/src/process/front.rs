//! The front at the other end of a link.
//!
//! Owns: who waits until it has frozen a guest, or until one stands still.
//! Invariant: nobody waits for a front that is no more: the run ends with it.
//! Not here: what it does (`run`).

use crate::front::Front;
use crate::parts::{Birth, SourceParts};
use crate::wire::message::{Report, Wanted};
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_wire::Link;
use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// How long the front may take to read a message.
const PATIENCE: Duration = Duration::from_secs(20);

/// The front at the other end of a link.
#[derive(Debug)]
pub(crate) struct LinkedFront {
    link: Arc<Link>,
    /// `None` when there is no front any more.
    waiting: Mutex<Option<HashMap<Awaited, Sender<bool>>>>,
}

/// What is waited for, of guests by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Awaited {
    Frozen(u64),
    Stands(u64),
}

impl LinkedFront {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, waiting: Mutex::new(LockClass::Control, Some(HashMap::new())) }
    }

    fn want(&self, wanted: Wanted) {
        // If it is not heard, the run is at its end.
        let _ = self.link.send(&Report::Wanted(wanted), PATIENCE);
    }

    /// The front has told the threads of a guest that was to be frozen.
    pub(crate) fn is_frozen(&self, guest: u64) {
        self.came(Awaited::Frozen(guest), true);
    }

    /// The threads of a guest that was to stand still do, or will not.
    pub(crate) fn stands(&self, guest: u64, still: bool) {
        self.came(Awaited::Stands(guest), still);
    }

    fn came(&self, awaited: Awaited, answer: bool) {
        let waiting = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&awaited));
        if let Some(waiting) = waiting {
            // Who waited may have ended.
            let _ = waiting.send(answer);
        }
    }

    /// Asks for something, and waits for the answer; false if there is no front any more.
    fn ask(&self, wanted: Wanted, awaited: Awaited) -> bool {
        let (answer, answered) = channel();
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.insert(awaited, answer),
            None => return false,
        };
        self.link.send(&Report::Wanted(wanted), PATIENCE).is_ok()
            && answered.recv().unwrap_or(false)
    }

    /// The front is no more.
    pub(crate) fn close(&self) {
        *self.waiting.lock() = None;
    }
}

impl Front for LinkedFront {
    fn hold(&self, guest: u64) {
        self.want(Wanted::Hold(guest));
    }

    fn freeze(&self, guest: u64) {
        self.ask(Wanted::Freeze(guest), Awaited::Frozen(guest));
    }

    fn stand_still(&self, guest: u64) -> bool {
        self.ask(Wanted::Still(guest), Awaited::Stands(guest))
    }

    fn release(&self, guest: u64) {
        self.want(Wanted::Release(guest));
    }

    fn forked(&self, child: u64, source: SourceParts, birth: Option<(u64, u64)>) {
        self.want(Wanted::Attach { child, source, birth });
    }

    fn fetch(&self, birth: Birth) {
        self.want(Wanted::Fetch(birth));
    }

    fn wants_out(&self, guest: u64) {
        self.want(Wanted::LetGo(guest));
    }

    fn gone(&self, child: u64) {
        self.want(Wanted::Forget(child));
    }
}
