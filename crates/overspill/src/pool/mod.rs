//! A pool: pages that are requested instead of touched.
//!
//! A [`Region`](crate::Region) is memory, and the kernel tells the pager when a page is missing,
//! which costs more than reading it. In a pool a page is requested by a call, so a page in memory
//! costs one atomic operation and an absent one costs its read: the choice for databases, caches
//! and indexes that know their pages. [`SpillVec`](crate::SpillVec) is a ready-made vector over it.
//!
//! ```
//! use overspill::{Bytes, PageNo, Pool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::builder().memory(Bytes(4 << 20)).swap("ram:32M".parse()?).build()?;
//! for page in 0..4096 {
//!     pool.write(PageNo(page))?[..4].copy_from_slice(&page.to_ne_bytes());
//! }
//! // A quarter fits into memory; all of it is there.
//! for page in 0..4096 {
//!     assert_eq!(pool.read(PageNo(page))?[..4], page.to_ne_bytes());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Owns: the public calls and their guarantees. Parts: [`core`] assembles a pool and serves misses,
//! `guard` and `held` have pages in use, [`workers`] the engine's workers, [`runs`] the page
//! numbers of vectors.
//!
//! # Locking
//! A page has readers or one writer, like a `RwLock`, and the same rules: a thread that waits for a
//! page it holds itself, or two threads that wait for each other's pages, wait for ever; `try_read`
//! and `try_write` do not wait. A thread may hold guards of as many pages as fit into memory, minus
//! those that other threads hold.

mod builder;
mod core;
mod error;
mod guard;
mod held;
mod runs;
#[cfg(test)]
mod tests;
mod workers;

pub use builder::PoolBuilder;
pub use error::PoolError;
pub use guard::{PageGuard, PageGuardMut};
pub use held::{Held, HeldPage};

use crate::summary::Summary;
use core::Core;
use overspill_base::sync::Arc;
use overspill_base::{Bytes, PageNo};
use overspill_space::{Asked, Words};
use runs::Runs;

/// Pages of which a limited number is in memory at a time. Clones are the same pool.
///
/// Pages are numbered from 0; each is zeros until it is written, and costs nothing until then. A
/// process that forks keeps its pools; its children are refused them: they have the same slots.
#[derive(Debug, Clone)]
pub struct Pool {
    core: Arc<Core>,
    runs: Arc<Runs>,
    memory: Bytes,
}

impl Pool {
    /// Starts with pages of 4 KiB, without swap areas and memory.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::new()
    }

    /// Size of a page in bytes.
    pub fn page_size(&self) -> usize {
        self.core.page_bytes()
    }

    /// Number of pages that can be requested: half of 1 TiB.
    pub fn pages(&self) -> usize {
        self.runs.first().index()
    }

    fn check(&self, page: PageNo) -> Result<(), PoolError> {
        if page < self.runs.first() {
            return Ok(());
        }
        Err(PoolError::NoSuchPage { page, last: PageNo(self.runs.first().0 - 1) })
    }

    /// Returns `page` for reading. Blocks while it has a writer or is read from swap.
    ///
    /// # Errors
    /// See [`PoolError`].
    #[inline]
    pub fn read(&self, page: PageNo) -> Result<PageGuard<'_>, PoolError> {
        self.check(page)?;
        self.read_any(page)
    }

    #[inline]
    pub(crate) fn read_any(&self, page: PageNo) -> Result<PageGuard<'_>, PoolError> {
        let frame = self.core.acquire(page, |words, again| words.try_read(page, again))?;
        Ok(PageGuard::new(&self.core, page, frame))
    }

    /// Returns `page` for changing. Blocks while it is in use or read from swap.
    ///
    /// # Errors
    /// See [`PoolError`].
    #[inline]
    pub fn write(&self, page: PageNo) -> Result<PageGuardMut<'_>, PoolError> {
        self.check(page)?;
        self.write_any(page)
    }

    #[inline]
    pub(crate) fn write_any(&self, page: PageNo) -> Result<PageGuardMut<'_>, PoolError> {
        let frame = self.core.acquire(page, |words, again| words.try_write(page, again))?;
        Ok(PageGuardMut::new(&self.core, page, frame))
    }

    /// As [`read`](Self::read), but none instead of waiting for a writer.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn try_read(&self, page: PageNo) -> Result<Option<PageGuard<'_>>, PoolError> {
        let frame = self.try_acquire(page, |words, again| words.try_read(page, again))?;
        Ok(frame.map(|frame| PageGuard::new(&self.core, page, frame)))
    }

    /// As [`write`](Self::write), but none instead of waiting for others.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn try_write(&self, page: PageNo) -> Result<Option<PageGuardMut<'_>>, PoolError> {
        let frame = self.try_acquire(page, |words, again| words.try_write(page, again))?;
        Ok(frame.map(|frame| PageGuardMut::new(&self.core, page, frame)))
    }

    /// Returns `page` for reading or for changing, as [`read`](Self::read) and
    /// [`write`](Self::write) do, but the result keeps the pool alive instead of borrowing it.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn hold(&self, page: PageNo, held: Held) -> Result<HeldPage, PoolError> {
        self.check(page)?;
        let frame = self.core.acquire(page, |words, again| match held {
            Held::ToRead => words.try_read(page, again),
            Held::ToWrite => words.try_write(page, again),
        })?;
        Ok(HeldPage::new(self.core.clone(), page, frame, held))
    }

    fn try_acquire(
        &self,
        page: PageNo,
        ask: impl Fn(&Words, bool) -> Asked,
    ) -> Result<Option<overspill_base::FrameNo>, PoolError> {
        self.check(page)?;
        self.core.acquire_idle(page, ask)
    }

    /// Copies the `T` at `offset_bytes` of `page`, without a guard and without a write to memory
    /// that other CPUs would have to fetch: for what many threads read at once, such as the root of
    /// a tree. None if the page is not in memory, or is being changed; then [`read`](Self::read)
    /// it.
    ///
    /// ```
    /// # use overspill::{Bytes, PageNo, Pool};
    /// # let pool = Pool::builder().memory(Bytes(4 << 20)).swap("ram:8M".parse()?).build()?;
    /// pool.write(PageNo(3))?[8] = 7;
    /// assert_eq!(pool.read_optimistic(PageNo(3), 8), Some(7u32.to_le()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If the value is not aligned in the page, or not inside.
    #[inline]
    pub fn read_optimistic<T>(&self, page: PageNo, offset_bytes: usize) -> Option<T>
    where
        T: bytemuck::AnyBitPattern,
    {
        self.check(page).ok()?;
        self.look_any(page, offset_bytes)
    }

    #[inline]
    pub(crate) fn look_any<T: bytemuck::AnyBitPattern>(
        &self,
        page: PageNo,
        offset_bytes: usize,
    ) -> Option<T> {
        guard::look(&self.core, page, offset_bytes)
    }

    /// Starts reading `pages` and returns without waiting for them. All reads are in flight at
    /// once, and pages that are adjacent in swap are read together. Stops when memory runs short;
    /// returns how many pages are in flight, in memory or known to be zeros.
    ///
    /// # Errors
    /// [`PoolError::NoSuchPage`], before anything is read; [`PoolError::Queue`].
    pub fn prefetch(&self, pages: impl IntoIterator<Item = PageNo>) -> Result<usize, PoolError> {
        let pages: Vec<PageNo> = pages.into_iter().collect();
        pages.iter().try_for_each(|&page| self.check(page))?;
        self.prefetch_any(pages.into_iter())
    }

    pub(crate) fn prefetch_any(
        &self,
        pages: impl ExactSizeIterator<Item = PageNo>,
    ) -> Result<usize, PoolError> {
        self.core.prefetch(pages)
    }

    /// Makes `pages` pages from `first` on zeros again; they then cost neither memory nor swap.
    /// Waits for users of these pages.
    ///
    /// # Errors
    /// [`PoolError::NoSuchPage`], and nothing was discarded.
    pub fn discard(&self, first: PageNo, pages: usize) -> Result<(), PoolError> {
        let last = first.index().saturating_add(pages).saturating_sub(1);
        self.check(PageNo(u32::try_from(last).unwrap_or(u32::MAX)))?;
        self.core.check_maker()?;
        self.discard_any(first, pages);
        Ok(())
    }

    pub(crate) fn discard_any(&self, first: PageNo, pages: usize) {
        self.core.discard(first, pages);
    }

    /// Number of pages that fit into memory.
    pub(crate) fn frames(&self) -> usize {
        self.core.frames()
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Everything counted so far. Faults are requests for absent pages.
    pub fn summary(&self) -> Summary {
        Summary::of(self.memory, std::slice::from_ref(self.core.engine().stats()))
    }

    /// The last error, such as a full or failing device.
    pub fn last_error(&self) -> Option<String> {
        self.core.engine().last_error()
    }
}
