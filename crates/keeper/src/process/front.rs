//! The front at the other end of a link.
//!
//! Owns: who waits until it has frozen a guest, or until one stands still, and the thread that
//! hears so.
//! Invariants: nobody waits for a front that is no more: the run ends with it. Who waits may hold a
//! guest, which who follows a request may wait for, or be that thread itself: so from the first
//! guest on these answers come by a thread that waits for nobody.
//! Not here: what it does (`run`).

use crate::front::Front;
use crate::parts::{Birth, SourceParts};
use crate::wire::message::{Report, Request, Wanted};
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_wire::{Link, LinkError};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

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

    /// Takes an answer that is waited for; returns any other request.
    fn take(&self, request: Request) -> Option<Request> {
        match request {
            Request::Frozen { number } => self.came(Awaited::Frozen(number), true),
            Request::Stands { number, still } => self.came(Awaited::Stands(number), still),
            other => return Some(other),
        }
        None
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

/// What the front asks for, in its order.
#[derive(Debug)]
pub(crate) struct Requests {
    front: Arc<LinkedFront>,
    /// From a thread that hears it, if there is one.
    heard: Option<Receiver<Result<Request, LinkError>>>,
}

impl Requests {
    pub(crate) fn new(front: Arc<LinkedFront>) -> Self {
        Self { front, heard: None }
    }

    /// Has a thread hear the front from now on.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn hear(&mut self) -> io::Result<()> {
        let (front, (requests, heard)) = (self.front.clone(), channel());
        let builder = std::thread::Builder::new().name("ovs-front".into());
        builder.spawn(move || {
            loop {
                let request = match front.link.receive(None, None) {
                    Ok(request) => front.take(request).map(Ok),
                    Err(error) => return requests.send(Err(error)),
                };
                request.map_or(Ok(()), |request| requests.send(request))?;
            }
        })?;
        self.heard = Some(heard);
        Ok(())
    }

    /// The next one; waits for it, at most until a deadline if there is one.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) fn next(&self, deadline: Option<Instant>) -> Result<Request, LinkError> {
        let Some(heard) = &self.heard else { return self.front.link.receive(None, deadline) };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let next = match left {
            Some(left) => heard.recv_timeout(left),
            None => heard.recv().map_err(RecvTimeoutError::from),
        };
        next.unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(LinkError::Silent),
            RecvTimeoutError::Disconnected => Err(LinkError::Ended),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Who follows a request may wait for whoever waits for the answer.
    #[test]
    fn answers_come_while_a_request_waits_to_be_followed() {
        let (link, socket) = Link::pair().unwrap();
        let front = Arc::new(LinkedFront::new(Arc::new(Link::from(socket))));
        let mut requests = Requests::new(front.clone());
        requests.hear().unwrap();
        let asks = std::thread::spawn(move || {
            front.freeze(7);
            front.stand_still(8)
        });
        let wanted = || link.receive(None, Some(Instant::now() + PATIENCE)).unwrap();
        let say = |request: &Request| link.send(request, PATIENCE).unwrap();
        say(&Request::Stay { number: 7 });
        assert!(matches!(wanted(), Report::Wanted(Wanted::Freeze(7))));
        say(&Request::Frozen { number: 7 });
        assert!(matches!(wanted(), Report::Wanted(Wanted::Still(8))));
        say(&Request::Stands { number: 8, still: true });
        assert!(asks.join().unwrap());
        assert!(matches!(requests.next(None), Ok(Request::Stay { number: 7 })));
        let soon = Some(Instant::now() + Duration::from_millis(5));
        assert!(matches!(requests.next(soon), Err(LinkError::Silent)));
        drop(link);
        assert!(matches!(requests.next(None), Err(LinkError::Ended)));
        assert!(matches!(requests.next(None), Err(LinkError::Ended)));
    }
}
