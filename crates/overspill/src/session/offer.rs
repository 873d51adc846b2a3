//! The devices as the supervisor offers them to the processes of a run.
//!
//! Owns: whether each of them opens it, or asks a process apart for pages; and for which members
//! requests may be under way.
//! Invariants: a member counts as under way until whoever serves it is done with the last of its
//! requests. It is not salvaged before: its slots would be another's while they are still written.

use super::Session;
use crate::error::Error;
use overspill_area::{MEMBERS_MAX, MemberNo};
use overspill_base::shared::Table;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicU32, LockClass, Mutex};
use overspill_device::compressed::Usage;
use overspill_device::file::Attachment;
use overspill_device::served::apart::Apart;
use overspill_device::{Device, DeviceInfo, served};
use overspill_space::with_signals_blocked;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::time::Duration;

/// An open device.
#[derive(Debug)]
pub(super) enum Offer {
    /// Every process opens it.
    Shared(Box<Device>),
    /// Every process asks another one for pages.
    Served(Apart),
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

/// A place that was opened, by this process or by another one.
#[derive(Debug)]
pub(super) enum Opened {
    Here(Box<Device>),
    Apart(Apart),
}

impl Opened {
    pub(super) fn attachment(&self) -> &Attachment {
        match self {
            Self::Here(device) => device.attachment(),
            Self::Apart(apart) => apart.attachment(),
        }
    }

    /// As [`Device::kept_if_empty`]; who serves a file apart empties it.
    pub(super) fn kept_if_empty(&self) -> Result<Option<OwnedFd>, Error> {
        let Self::Here(device) = self else { return Ok(None) };
        device.kept_if_empty().map_err(Error::session("share"))
    }
}

impl Offer {
    /// `report` takes a line if the process that serves it ends.
    pub(super) fn new(
        opened: Opened,
        session: &Arc<Session>,
        report: fn(&str),
    ) -> Result<Self, Error> {
        match opened {
            Opened::Here(device) => Ok(Self::Shared(device)),
            // Signals are for the thread that waits for the program.
            Opened::Apart(mut apart) => {
                let clients = session.clone();
                with_signals_blocked(|| apart.attend(clients, Box::new(report)))?;
                Ok(Self::Served(apart))
            }
        }
    }

    pub(super) fn info(&self) -> DeviceInfo {
        match self {
            Self::Shared(device) => device.info().clone(),
            Self::Served(apart) => apart.attachment().info(),
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        match self {
            Self::Shared(device) => device.usage(),
            Self::Served(_) => None,
        }
    }

    /// Waits until no process has a socket to it; false if one has after `patience`.
    pub(super) fn wait_unused(&self, patience: Duration) -> bool {
        match self {
            Self::Shared(_) => true,
            Self::Served(apart) => apart.wait_unused(patience),
        }
    }

    /// The descriptor for one process of the run.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Shared(device) => fcntl_dupfd_cloexec(device.descriptor().ok_or(Errno::BADF)?, 0),
            Self::Served(apart) => apart.client(),
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
    fn begin(&self, client: u32) -> bool {
        self.under_way().get(client as usize).map(|queues| queues.fetch_add(1, Relaxed)).is_some()
    }

    fn end(&self, client: u32) {
        self.under_way().get(client as usize).map(|queues| queues.fetch_sub(1, Release));
    }
}
