//! Why a keeper is of no use.

use overspill_device::DeviceError;
use overspill_keeper::OpenPlace;
use overspill_wire::LinkError;
use rustix::io::Errno;
use std::time::Duration;

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// It refuses this.
    #[error("{0}")]
    Refused(String),
    /// Of a guest that is to be let go.
    #[error("no page of it has come back for {0:?}: the limit is full, or its swap is slow")]
    NoRoom(Duration),
    /// It can page nobody.
    #[error("{0}")]
    Unable(String),
    /// A place cannot be opened.
    #[error(transparent)]
    Place(#[from] DeviceError),
    /// There are more places than there can be.
    #[error("--swap is given {0} times; {max} are the most", max = OpenPlace::MAX)]
    TooMany(usize),
    /// It was not understood, or has ended.
    #[error("the keeper: {0}")]
    Link(#[from] LinkError),
    /// Its answer is to something else.
    #[error("the keeper answers what it was not asked: was the program replaced while it ran?")]
    Answer,
    /// It does not start.
    #[error("the keeper does not start: {0}")]
    Start(std::io::Error),
    /// There can be no thread that opens a place.
    #[error("no thread to open it: {0}")]
    Thread(std::io::Error),
}

impl From<Errno> for KeeperError {
    fn from(errno: Errno) -> Self {
        Self::Start(errno.into())
    }
}
