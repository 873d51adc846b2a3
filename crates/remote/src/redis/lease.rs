//! Says to a cluster, again and again, that the run lives.
//!
//! Owns: a thread.
//! Invariants: every key is renewed before its lease is over, three times, as long as the cluster
//! answers and the machine does not sleep.

use super::client::Client;
use super::queue::Target;
use crate::spawn;
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
        let thread = spawn("ovs-lease", move || {
            let (mut client, mut pause) = (None, target.terms.lease / TIMES);
            while end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let is_renewed = renew(&target, &mut client);
                pause = if is_renewed { target.terms.lease / TIMES } else { PAUSE };
            }
        })?;
        Ok(Self { alive: Some(alive), thread: Some(thread) })
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
        let used = Client::kept(client, &target.cluster);
        let renewed = used.and_then(|used| used.renew(&target.terms, key));
        client.take_if(|_| renewed.is_err());
        renewed.is_err()
    });
    failed.count() == 0
}
