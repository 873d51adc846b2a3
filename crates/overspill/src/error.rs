//! The library's errors.

use overspill_base::Bytes;
use overspill_device::DeviceError;
use overspill_engine::{SwapoffError, SwaponError};
use overspill_space::{MemoryError, SignalSetupError, SpaceSetupError};
use rustix::io::Errno;

/// Any error of the library; the message says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too little memory for paging.
    #[error("a memory limit of {0} is below the working minimum of {1}: ask for at least {1}")]
    LimitTooSmall(Bytes, Bytes),
    /// More memory than can be counted.
    #[error("a memory limit of {0} is more than Overspill can manage: ask for at most {1}")]
    LimitTooLarge(Bytes, Bytes),
    /// A run's limit cannot become this.
    #[error(
        "a limit of {0} is above {1}, the most that this run can have: start it with --memory-max {0}"
    )]
    LimitAboveMost(Bytes, Bytes),
    /// Each process has a limit of its own.
    #[error("the limit of a run with --memory-each cannot be changed: start it with --memory")]
    LimitOfEach,
    /// The machine's page size is not the one Overspill works with.
    #[error("this machine's pages have {0} bytes; Overspill works with pages of 4096 bytes only")]
    PageSize(usize),
    /// Pools and regions cannot have pages of this size.
    #[error("pages cannot have {0}: choose a power of two from 4 KiB to {1}")]
    PageSizeChosen(Bytes, Bytes),
    /// The address space or userfaultfd failed.
    #[error(transparent)]
    Space(#[from] SpaceSetupError),
    /// Faults by signal are not available.
    #[error(transparent)]
    Signals(#[from] SignalSetupError),
    /// A swap device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A memory call on the managed range failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// More areas than a swap entry can name.
    #[error("{0} swap areas were given; at most {1} can be used")]
    TooManyAreas(usize, usize),
    /// More areas than a run can be given later.
    #[error("no more swap can be added to this run: it had its share already")]
    TooManyAdded,
    /// A place was given twice.
    #[error("{0} was given twice to swap to; leave one out")]
    GivenTwice(String),
    /// A place that a run may not be given later.
    #[error(
        "{place} cannot be added to a run that goes on: {reason}; start the run with such a place"
    )]
    NotAllowed {
        /// The place.
        place: String,
        /// What it would bring.
        reason: &'static str,
    },
    /// A swap area could not be added.
    #[error(transparent)]
    Swapon(SwaponError),
    /// A swap area could not be removed.
    #[error(transparent)]
    Swapoff(#[from] SwapoffError),
    /// No swap area has this name.
    #[error("no swap area is called `{0}`; in use are: {1}")]
    NoSuchSwap(String, String),
    /// The processes of a run cannot share their state.
    #[error("cannot {action} the state that the processes of this run share: {reason}")]
    Session {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The system refused something every program needs.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    pub(crate) fn session(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| {
            let files = "too many files are open: raise `ulimit -n`";
            let reason = if errno == Errno::MFILE { files.into() } else { errno.to_string() };
            Self::Session { action, reason }
        }
    }
}
