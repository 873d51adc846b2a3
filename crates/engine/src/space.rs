//! The traits by which the engine reaches the owner of the pages' addresses.

use overspill_base::report::Reports;
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_base::{FrameNo, PageNo};
use std::ops::Range;

/// Why an address space refused a request. Nothing was done; the page is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpaceError {
    /// The range or the whole process is gone; no thread waits for the page.
    #[error("the address range is gone")]
    Gone,
    /// Not now: the kernel has no memory. A later try may succeed.
    #[error("the kernel has no memory for it")]
    Busy,
    /// Not now: who has the page is in the middle of something. A later try will succeed.
    #[error("the address range is changing")]
    Changing,
    /// For an unknown reason, which the address space has reported.
    #[error("the kernel refuses")]
    Refused,
    /// Parts of a large page are mapped, and the others cannot be.
    #[error("the page is in parts")]
    Torn,
    /// A device or a system call has pinned the page; try another one.
    #[error("the page is pinned")]
    Pinned,
    /// The page that the engine mapped there is neither at the address nor anywhere else. If the
    /// program dropped it by a raw system call (`MADV_DONTNEED`) it expects zeros, but that cannot
    /// be known.
    #[error("the page is missing")]
    Missing,
}

/// How far a call that maps pages came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Pages mapped, from the front of the run.
    pub pages: usize,
    /// Why the next one is not; `None` if all are.
    pub stopped: Option<SpaceError>,
}

impl Mapped {
    /// Makes the result of a call that mapped all of `pages` pages.
    pub fn all(pages: usize) -> Self {
        Self { pages, stopped: None }
    }
}

/// The access pattern a program declared for a range (`MADV_NORMAL`, `MADV_SEQUENTIAL`,
/// `MADV_RANDOM`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// None declared; streams are detected from faults.
    #[default]
    Normal,
    /// In order and once: much is read ahead, and pages passed are evicted first.
    Sequential,
    /// In no order: no readahead and no fault-around.
    Random,
}

/// How far [`MovingSpace::unmap`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped {
    /// Pages moved, from the front of the run.
    pub moved: usize,
    /// Why the next one was not; `None` if the whole run was moved, or if nothing speaks against
    /// trying the rest, of which then at least one page has moved.
    pub stopped: Option<SpaceError>,
}

/// The result of [`BufferPool::unpublish`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpublished {
    /// The page is unpublished, and was not changed since it was published.
    Clean,
    /// The page is unpublished, and may have been changed.
    Changed,
    /// It was used since it was published or last asked for here. It stays published; its mark of
    /// use is cleared.
    Recent,
    /// It is in use, and stays published.
    Pinned,
}

/// What the engine needs of either kind of owner.
///
/// A page has the engine's page size, 4 KiB or more, also in an arena. Every call is made with the
/// pages' locks held and no others, may block for as long as an ioctl does, and must not fault on
/// managed memory itself.
pub trait AddressSpace: Send + Sync {
    /// Returns the number of pages the program has mapped from `page` on, 0 if none. Never blocks
    /// on a page lock.
    fn span(&self, page: PageNo) -> usize;

    /// Returns the pattern declared for the range around `page`. Called by faults that read, or map
    /// untouched pages. Never blocks on a page lock.
    fn pattern(&self, page: PageNo) -> Pattern {
        let _ = page;
        Pattern::Normal
    }

    /// Receives, once, where to count and report what only the address space sees.
    fn report_to(&self, stats: &Stats, reports: &Arc<Reports>) {
        let _ = (stats, reports);
    }

    /// Drops pages and their content; the next touch faults.
    fn zap(&self, first: PageNo, pages: usize);

    /// Wakes the threads that wait at `page`, so that they touch it again.
    fn wake(&self, page: PageNo);

    /// Makes every touch of `page` fail.
    fn poison(&self, page: PageNo);
}

/// Owns addresses: maps pages of a program there and unmaps them, so that a touch of an unmapped
/// page faults.
pub trait MovingSpace: AddressSpace {
    /// Maps `content`, whole pages, from `first` on, and wakes the threads that wait there. A page
    /// that is already present stays as it is. Stops with any error but [`SpaceError::Missing`] and
    /// [`SpaceError::Pinned`].
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped;

    /// As [`map`](Self::map), with zeros.
    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped;

    /// True if a page that should be mapped is. If so, wakes the threads that wait there.
    fn find(&self, page: PageNo) -> bool;

    /// Moves pages from `first` on out of the program's mapping, each atomically, so that their
    /// last content is in the pages `destination` of `arena` and the next touch faults. Whatever
    /// stops it, pages that have left count as moved.
    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped;

    /// As [`unmap`](Self::unmap), for several runs of pages with one call: one after the other to
    /// `destination`, which has a place for each page, without a gap. Appends to `ends` how far it
    /// came with each. For owners to whom a call costs more than the pages it moves: returns how
    /// many it called.
    fn unmap_runs(
        &self,
        runs: &[Range<PageNo>],
        arena: &PageArena,
        destination: Range<usize>,
        ends: &mut Vec<Unmapped>,
    ) -> usize {
        let mut at = destination.start;
        for run in runs {
            let pages = run.end.index() - run.start.index();
            let end = self.unmap(run.start, arena, at..at + pages);
            at += end.moved;
            ends.push(end);
        }
        1
    }

    /// True if [`unmap`](Self::unmap) copies: the program has then never seen memory of the arena,
    /// which need not be empty for the next one.
    fn copies_out(&self) -> bool {
        false
    }

    /// Empties `pages` of `arena`, as they must be before the next [`unmap`](Self::unmap) into
    /// them.
    fn recycle(&self, arena: &PageArena, pages: Range<usize>);
}

/// Owns pages that are used by request, not by touch. A page stays at its frame's place in the
/// arena as long as it has the frame.
pub trait BufferPool: AddressSpace {
    /// Publishes `page` to the pool's users, at the place of `frame`.
    fn publish(&self, page: PageNo, frame: FrameNo);

    /// Unpublishes `page` if it is not in use.
    fn unpublish(&self, page: PageNo) -> Unpublished;
}

/// The address space an engine is built with: one of the two kinds.
pub enum Space {
    /// A program's addresses.
    Moving(Arc<dyn MovingSpace>),
    /// A pool.
    Pool(Arc<dyn BufferPool>),
}

impl Space {
    /// Returns the interface that both have.
    pub(crate) fn common(&self) -> Arc<dyn AddressSpace> {
        match self {
            Self::Moving(space) => space.clone(),
            Self::Pool(space) => space.clone(),
        }
    }
}
