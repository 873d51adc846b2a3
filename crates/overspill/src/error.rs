//! The library's errors.

use overspill_base::Bytes;
use overspill_device::DeviceError;
use overspill_engine::{SwapoffError, SwaponError};
use overspill_space::probe::NoReach;
use overspill_space::{MemoryError, SignalSetupError, SpaceSetupError};
use std::fmt;

/// What a forked child is told.
pub(crate) const FORKED: &str = "this was made by the process that forked this one, and its threads \
    and slots are there: make another here, or use it before forking only";

/// Any error of the library; the message says what to do about it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too little memory for paging.
    #[error("a memory limit of {0} is below the working minimum of {1}: ask for at least {1}")]
    LimitTooSmall(Bytes, Bytes),
    /// More memory than can be counted.
    #[error("a memory limit of {0} is more than Overspill can manage: ask for at most {1}")]
    LimitTooLarge(Bytes, Bytes),
    /// The machine's page size is not the one Overspill works with.
    #[error("this machine's pages have {0} bytes; Overspill works with pages of 4096 bytes only")]
    PageSize(usize),
    /// Pools and regions cannot have pages of this size.
    #[error("pages cannot have {0}: choose a power of two from 4 KiB to {1}")]
    PageSizeChosen(Bytes, Bytes),
    /// Touches of memory cannot be noticed here.
    #[error(transparent)]
    NoReach(#[from] NoReach),
    /// More pages than can be in memory where those that are out are shut.
    #[error(
        "this kernel can keep at most {0} pages in memory, for it has neither a userfaultfd that is \
         permitted nor guard regions (Linux 6.13): choose pages of {1} or more, or less memory"
    )]
    TooManyPages(usize, Bytes),
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
    /// A place was given twice.
    #[error("{0} was given twice to swap to; leave one out")]
    GivenTwice(String),
    /// A swap area could not be added.
    #[error(transparent)]
    Swapon(SwaponError),
    /// A swap area could not be removed.
    #[error(transparent)]
    Swapoff(#[from] SwapoffError),
    /// No swap area has this name.
    #[error("no swap area is called `{0}`; in use are: {1}")]
    NoSuchSwap(String, String),
    /// This process was forked by the one that made it.
    #[error("{FORKED}")]
    Forked,
    /// The system refused something every program needs.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The message: what a `main` that returns it prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
