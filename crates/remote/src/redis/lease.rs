//! Says to a cluster, again and again, that the run lives.
//!
//! Owns: a thread.
//! Invariants: every key is renewed before its lease is over, three times, as long as the cluster
//! answers and the machine does not sleep.

use super::client::Client;
use super::queue::Target;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Renewals of a key within its lease, if all go well.
const TIMES: u32 = 3;
/// After a renewal that has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Ends the thread when it is dropped.
pub(super) struct Lease {
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    pub(super) fn start(target: Arc<Target>) -> Result<Self, Errno> {
        let (alive, end) = channel::<()>();
        let builder = std::thread::Builder::new().name("ovs-lease".into());
        let thread = builder.spawn(move || {
            let (mut client, mut pause) = (None, target.terms.lease / TIMES);
            while end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let is_renewed = renew(&target, &mut client);
                pause = if is_renewed { target.terms.lease / TIMES } else { PAUSE };
            }
        });
        let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Ok(Self { alive: Some(alive), thread: Some(thread.map_err(errno)?) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.alive.take();
        // A panic was reported when it happened.
        self.thread.take().map(JoinHandle::join);
    }
}

/// Renews all keys that can be: those of a shard that does not answer are no reason to let others
/// end. False if one could not be. The queue tells the user of that.
fn renew(target: &Target, client: &mut Option<Client>) -> bool {
    let failed = target.terms.keys.noted().filter(|&key| {
        let used = client.take().or_else(|| Client::connect(&target.cluster).ok());
        *client = used.and_then(|mut used| used.renew(&target.terms, key).is_ok().then_some(used));
        client.is_none()
    });
    failed.count() == 0
}
