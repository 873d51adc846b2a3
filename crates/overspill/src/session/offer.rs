//! The devices as the supervisor offers them to the processes of a run.
//!
//! Owns: whether each of them opens it, or asks the supervisor for pages; the threads that serve;
//! and for which members requests may be under way.
//! Invariants: a member counts as under way until the supervisor is done with the last of its
//! requests. It is not salvaged before: its slots would be another's while they are still written.

use super::Session;
use crate::error::Error;
use overspill_area::{MEMBERS_MAX, MemberNo};
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicU32, LockClass, Mutex};
use overspill_device::compressed::Usage;
use overspill_device::{Device, DeviceInfo, SwapDevice, served};
use overspill_space::with_signals_blocked;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::time::Duration;

/// An open device.
#[derive(Debug)]
pub(super) enum Offer {
    /// Every process opens it.
    Shared(Box<Device>),
    /// Every process asks for pages.
    Served { device: Arc<dyn SwapDevice>, server: served::Server },
}

/// The devices of a run, by the numbers of their areas. Each is open until it is closed here, or as
/// long as the run lasts.
#[derive(Debug)]
pub(super) struct Offers {
    all: Mutex<Vec<Option<Arc<Offer>>>>,
}

impl Offers {
    pub(super) fn new(offers: Vec<Offer>) -> Self {
        let all = offers.into_iter().map(|offer| Some(Arc::new(offer))).collect();
        Self { all: Mutex::new(LockClass::Control, all) }
    }

    /// All of them; none in the places of those that were closed.
    pub(super) fn all(&self) -> Vec<Option<Arc<Offer>>> {
        self.all.lock().clone()
    }

    /// Those that are open, with their numbers.
    pub(super) fn open(&self) -> impl DoubleEndedIterator<Item = (usize, Arc<Offer>)> {
        let offers = self.all().into_iter().enumerate();
        offers.filter_map(|(number, offer)| Some((number, offer?)))
    }

    pub(super) fn push(&self, offer: Offer) {
        self.all.lock().push(Some(Arc::new(offer)));
    }

    /// Closes a device to which no process has a way any more.
    pub(super) fn close(&self, number: usize) {
        // Dropped after the lock.
        let _closed = self.all.lock()[number].take();
    }
}

impl Offer {
    pub(super) fn new(device: Device, session: &Arc<Session>) -> Result<Self, Error> {
        if !device.attachment().served {
            return Ok(Self::Shared(Box::new(device)));
        }
        let device = device.bare();
        // Signals are for the thread that waits for the program.
        let start = || served::Server::start(device.clone(), session.clone());
        let server = with_signals_blocked(start)?;
        Ok(Self::Served { device, server })
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        match self {
            Self::Shared(device) => device.info(),
            Self::Served { device, .. } => device.info(),
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        match self {
            Self::Shared(device) => device.usage(),
            Self::Served { .. } => None,
        }
    }

    /// Waits until no process has a socket to it; false if one has after `patience`.
    pub(super) fn wait_unused(&self, patience: Duration) -> bool {
        match self {
            Self::Shared(_) => true,
            Self::Served { server, .. } => server.wait_unused(patience),
        }
    }

    /// The descriptor for one process of the run.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Shared(device) => fcntl_dupfd_cloexec(device.descriptor().ok_or(Errno::BADF)?, 0),
            Self::Served { server, .. } => server.client(),
        }
    }
}

impl Session {
    /// For each member the number of its queues whose requests may be under way.
    fn under_way(&self) -> Table<AtomicU32> {
        self.table(self.layout.under_way, MEMBERS_MAX)
    }

    /// True if a served device may still get a request of `member`. Once it is false, everything
    /// that the member wrote is written (Acquire, with the Release in [`served::Clients::end`]).
    pub(super) fn is_under_way(&self, member: MemberNo) -> bool {
        self.under_way()[member.0 as usize].load(Acquire) > 0
    }
}

impl served::Clients for Session {
    fn begin(&self, client: u32) {
        self.under_way().get(client as usize).map(|queues| queues.fetch_add(1, Relaxed));
    }

    fn end(&self, client: u32) {
        self.under_way().get(client as usize).map(|queues| queues.fetch_sub(1, Release));
    }
}
