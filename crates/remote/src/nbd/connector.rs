//! Makes a queue's connections, and makes them again, while the others go on.
//!
//! Owns: a thread that makes one connection after the other.
//! Invariants: a connection that is asked for comes, with a bell, unless nobody wants it any more;
//! before it comes every failure to make it. Pauses between attempts become longer.
//! Rejected: a thread for each connection. When they are all lost, they are lost for one reason.

use super::Failure;
use super::connection::Connection;
use super::device::Target;
use crate::failure::longer;
use crate::spawn;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;

type Attempt = Result<Connection, Failure>;

/// The queue's end. Without it the thread ends by itself, if it is not in the middle of an attempt
/// at once.
pub(super) struct Connector {
    wanted: Sender<()>,
    attempts: Receiver<Attempt>,
    bell: Arc<OwnedFd>,
}

impl Connector {
    pub(super) fn start(target: Arc<Target>) -> Result<Self, Errno> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((wanted, orders), (results, attempts)) = (channel(), channel());
        let rung = bell.clone();
        let run = move || while try_next(&target, &orders, &results, &rung).is_some() {};
        spawn("ovs-connect", run)?;
        Ok(Self { wanted, attempts, bell })
    }

    /// Asks for one more connection.
    pub(super) fn want(&self) {
        // The thread ends after us.
        let _ = self.wanted.send(());
    }

    /// What came of the attempts since the last look, oldest first. Silences the bell.
    pub(super) fn attempts(&self) -> impl Iterator<Item = Attempt> {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        self.attempts.try_iter()
    }
}

impl AsFd for Connector {
    /// The bell, which is readable when there are attempts to look at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Makes the next connection that is wanted; none when none will be.
fn try_next(
    target: &Target,
    orders: &Receiver<()>,
    results: &Sender<Attempt>,
    bell: &OwnedFd,
) -> Option<()> {
    orders.recv().ok()?;
    let mut pause = None;
    loop {
        let attempt = target.connect();
        let is_done = attempt.is_ok();
        results.send(attempt).ok()?;
        // A bell that cannot count further is rung already.
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        if is_done {
            return Some(());
        }
        sleep(*pause.insert(longer(pause)));
    }
}
