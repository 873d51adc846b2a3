//! The way up: what the engine asks of whoever owns the pages' addresses.

use overspill_base::report::Reports;
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_base::{FrameNo, PageNo};
use std::ops::Range;

/// Why an address space refused. What it refused was not done, and the page is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpaceError {
    /// The range or the whole process is gone; nobody waits for the page any more.
    #[error("the address range is gone")]
    Gone,
    /// Not now: the kernel has no memory, or the page changes too often. Later it may go.
    #[error("the kernel has no memory for it")]
    Busy,
    /// For a reason nobody knows, which the address space has told.
    #[error("the kernel refuses")]
    Refused,
    /// Parts of a large page are in sight, and the others cannot be brought there.
    #[error("the page is in parts")]
    Torn,
    /// A device or a system call has the page pinned; try another one.
    #[error("the page is pinned")]
    Pinned,
    /// There is no page at the address, although the engine had put one there, nor is it anywhere
    /// else. If the program dropped it behind our back (`MADV_DONTNEED` by a raw system call) it
    /// expects zeros; nobody can know that.
    #[error("the page is missing")]
    Missing,
}

/// How far a call that brings pages came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Pages in sight, from the front of the run.
    pub pages: usize,
    /// Why the next one is not; `None` when all are.
    pub stopped: Option<SpaceError>,
}

impl Mapped {
    /// All of `pages` pages.
    pub fn all(pages: usize) -> Self {
        Self { pages, stopped: None }
    }
}

/// How a program says it will touch a range (`MADV_NORMAL`, `MADV_SEQUENTIAL`, `MADV_RANDOM`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// It has not said; faults tell.
    #[default]
    Normal,
    /// In order and once: much is read ahead, and what was passed is evicted first.
    Sequential,
    /// In no order: nothing is read ahead or mapped with a page.
    Random,
}

/// How far [`MovingSpace::unmap`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped {
    /// Pages moved, from the front of the run.
    pub moved: usize,
    /// Why the next one was not; `None` when the whole run was moved.
    pub stopped: Option<SpaceError>,
}

/// What [`BufferPool::unpublish`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpublished {
    /// Nobody sees the page any more, and nobody changed it since it was published.
    Clean,
    /// Nobody sees the page any more, and somebody may have changed it.
    Changed,
    /// It was used since it came or was last asked for, and stays in sight; that is forgotten now.
    Recent,
    /// Somebody is using it, and it stays in sight.
    Pinned,
}

/// What the engine asks of either kind of owner.
///
/// A page has the size that the engine was told, 4 KiB or more, and pages of an arena are counted
/// in it. Every call is made with the pages' locks held and nothing else, may block for as long as
/// an ioctl does, and must not fault on managed memory itself.
pub trait AddressSpace: Send + Sync {
    /// Pages mapped by the program from `page` on; 0 where it has mapped nothing. Never blocks on a
    /// page lock.
    fn span(&self, page: PageNo) -> usize;

    /// How the program says it will touch the range around `page`; asked at a fault that has to
    /// read or to map untouched pages. Never blocks on a page lock.
    fn pattern(&self, page: PageNo) -> Pattern {
        let _ = page;
        Pattern::Normal
    }

    /// Is told once where to count and where to say what only the address space sees.
    fn report_to(&self, stats: &Stats, reports: &Arc<Reports>) {
        let _ = (stats, reports);
    }

    /// Drops pages with their content; the next touch faults.
    fn zap(&self, first: PageNo, pages: usize);

    /// Lets whoever waits at `page` touch it again.
    fn wake(&self, page: PageNo);

    /// Makes every touch of `page` fail.
    fn poison(&self, page: PageNo);
}

/// Owns addresses: puts pages in front of a program there and takes them away again, so that a
/// touch of one that is away is a fault.
pub trait MovingSpace: AddressSpace {
    /// Puts `content`, whole pages, at `first` and after, and wakes whoever waits there. A page
    /// that is present already stays as it is. Stops with anything but [`SpaceError::Missing`] and
    /// [`SpaceError::Pinned`].
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped;

    /// As [`map`](Self::map), with zeros.
    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped;

    /// Whether a page that should be in sight is. If so, lets whoever waits there touch it again.
    fn find(&self, page: PageNo) -> bool;

    /// Takes pages from `first` on out of the program's sight, atomically for each page, so that
    /// their last content is in the pages `destination` of `arena` and the next touch faults.
    /// Whatever stops it, what has left counts as moved.
    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped;

    /// Forgets what `arena` has in `pages`; they must be empty before the next
    /// [`unmap`](Self::unmap) into them.
    fn recycle(&self, arena: &PageArena, pages: Range<usize>);

    /// Moves one present page to another address.
    ///
    /// # Errors
    /// [`SpaceError::Missing`] when there is none at `from`, or another; then it is at `from`
    /// still.
    fn transfer(&self, from: PageNo, to: PageNo) -> Result<(), SpaceError>;
}

/// Owns pages that are used by asking, not by touching. The page of a frame stays at the frame's
/// place in the arena, for as long as it has the frame.
pub trait BufferPool: AddressSpace {
    /// Lets whoever asks for `page` use it, at the place of `frame`.
    fn publish(&self, page: PageNo, frame: FrameNo);

    /// Takes `page` out of sight if it is not in use.
    fn unpublish(&self, page: PageNo) -> Unpublished;
}

/// One of the two, with which an engine is made.
pub enum Space {
    /// A program's addresses.
    Moving(Arc<dyn MovingSpace>),
    /// A pool.
    Pool(Arc<dyn BufferPool>),
}

impl Space {
    /// What both have.
    pub(crate) fn common(&self) -> Arc<dyn AddressSpace> {
        match self {
            Self::Moving(space) => space.clone(),
            Self::Pool(space) => space.clone(),
        }
    }
}
