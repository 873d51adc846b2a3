//! Regions' memory: mapping and unmapping, discarding, advice, pins.
//!
//! Owns: keeping three views consistent: the range map, the kernel's mapping, the engine's pages.
//! Pages are counted in the space's page size.
//! Invariants: a page that is not mapped has no content; the reservation is readable and writable
//! wherever nothing is mapped and nothing was touched (where touches are signals, what is out is
//! not). The range lock is never held while waiting for a page: a range to be unmapped is first
//! marked [`Kind::Leaving`], then emptied, then freed.

use crate::in_place::InPlace;
use crate::ranges::{Half, Kind, Part};
use crate::space::ManagedSpace;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{Bytes, PageNo};
use overspill_engine::{Engine, Pattern};
use rustix::io::Errno;

/// Mappings of at least this size are aligned to [`LARGE_ALIGN_BYTES`], as allocators want their
/// heaps.
const LARGE_BYTES: usize = 32 << 20;
const LARGE_ALIGN_BYTES: usize = 64 << 20;

/// Advice about a range, after madvise(2). It affects when pages are read and evicted, and never
/// their content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Cancels [`Sequential`](Self::Sequential) and [`Random`](Self::Random).
    Normal,
    /// It will be touched in order: windows have their full length from the start, and pages
    /// already passed are evicted first.
    Sequential,
    /// It will be touched in no order: only the missing page is read.
    Random,
    /// It will be touched soon: read ahead, at most a quarter of memory. Does not block.
    WillNeed,
    /// It will not be touched soon: its pages are evicted first.
    Cold,
    /// As [`Cold`](Self::Cold), but its pages are evicted now. Blocks until they are written.
    PageOut,
}

/// Why memory could not be mapped or kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// The reserved range has no gap of this size.
    #[error("no {0} of managed address space left")]
    NoSpace(Bytes),
    /// More would be locked in memory than the limit allows.
    #[error(
        "keeping {0} in memory would leave too little to page with: \
         at most half of the memory limit can be kept"
    )]
    TooMuchLocked(Bytes),
    /// A page could not be brought in.
    #[error("a page of the range cannot be brought in: its content is lost, or memory has ended")]
    Lost,
    /// The kernel refused.
    #[error("the kernel refused ({0})")]
    Kernel(#[from] Errno),
}

/// The managed range and the engine that pages it.
#[derive(Debug, Clone)]
pub struct ManagedMemory {
    space: Arc<ManagedSpace>,
    engine: Arc<Engine>,
}

impl ManagedMemory {
    /// The memory of `space`, paged by `engine`.
    pub fn new(space: Arc<ManagedSpace>, engine: Arc<Engine>) -> Self {
        Self { space, engine }
    }

    /// The address space.
    pub fn space(&self) -> &Arc<ManagedSpace> {
        &self.space
    }

    /// Maps zeros at a free address, which it returns.
    ///
    /// # Errors
    /// [`MemoryError::NoSpace`]; errors of mprotect.
    pub fn map(&self, pages: usize) -> Result<usize, MemoryError> {
        self.map_in(Half::Lower, pages)
    }

    /// As [`map`](Self::map), in memory whose faults are signals, which are
    /// [open](ManagedSpace::open_signals).
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_by_signal(&self, pages: usize) -> Result<usize, MemoryError> {
        self.map_in(self.space.half_by_signal(), pages)
    }

    fn map_in(&self, half: Half, pages: usize) -> Result<usize, MemoryError> {
        let page_bytes = self.space.page_bytes();
        let is_large = pages.saturating_mul(page_bytes) >= LARGE_BYTES;
        let align_pages = if is_large { LARGE_ALIGN_BYTES / page_bytes } else { 1 };
        let mut ranges = self.space.ranges.lock();
        let taken = ranges.take(half, pages, align_pages);
        let first = taken.ok_or_else(|| MemoryError::NoSpace(self.space.size_of(pages)))?;
        let refused = ranges.take_refused(first, pages);
        if let Err(errno) = refused.into_iter().try_for_each(|page| self.space.permit(page)) {
            ranges.set(first, pages, None);
            return Err(errno.into());
        }
        self.space.put_in_dumps(&mut ranges, first, pages);
        Ok(self.space.address_of(first))
    }

    /// Unmaps a range.
    pub fn unmap(&self, address: usize, pages: usize) {
        let first = self.space.page_at(address);
        self.space.ranges.lock().set(first, pages, Some(Kind::Leaving));
        self.engine.discard(first, pages);
        self.space.ranges.lock().set(first, pages, None);
    }

    /// Applies advice to a mapped range.
    pub fn advise(&self, address: usize, pages: usize, advice: Advice) {
        let first = self.space.page_at(address);
        match advice {
            Advice::Normal => self.set_pattern(first, pages, Pattern::Normal),
            Advice::Sequential => self.set_pattern(first, pages, Pattern::Sequential),
            Advice::Random => self.set_pattern(first, pages, Pattern::Random),
            Advice::WillNeed => self.engine.will_need(first, pages),
            Advice::Cold => self.engine.make_cold(first, pages),
            Advice::PageOut => self.engine.page_out(first, pages),
        }
    }

    fn set_pattern(&self, first: PageNo, pages: usize, pattern: Pattern) {
        let mut ranges = self.space.ranges.lock();
        let is_mapped = |part: &Part| matches!(part.kind, Kind::Mapped(_));
        for part in ranges.parts(first, pages).into_iter().filter(is_mapped) {
            ranges.set(part.first, part.pages, Some(Kind::Mapped(pattern)));
        }
    }

    /// Drops the content of a mapped range: it reads as zeros.
    pub fn discard(&self, address: usize, pages: usize) {
        self.engine.discard(self.space.page_at(address), pages);
    }

    /// Brings a range in, on the calling thread, and keeps it in memory until
    /// [`unpin`](Self::unpin) was called as often. Blocks for the reads.
    ///
    /// # Errors
    /// [`MemoryError::TooMuchLocked`] past half of the frames; [`MemoryError::Lost`].
    pub fn pin(&self, address: usize, pages: usize, by: &InPlace) -> Result<(), MemoryError> {
        let most = self.engine.limit_frames() / 2;
        let fits = |pinned: usize| pinned.checked_add(pages).filter(|&sum| sum <= most);
        if self.space.pinned_pages.fetch_update(Relaxed, Relaxed, fits).is_err() {
            return Err(MemoryError::TooMuchLocked(self.space.size_of(pages)));
        }
        let first = self.space.page_at(address);
        for n in 0..pages {
            if !self.pin_page(first.plus(n), by) {
                self.unpin_pages(first, n);
                self.space.pinned_pages.fetch_sub(pages, Relaxed);
                return Err(MemoryError::Lost);
            }
        }
        Ok(())
    }

    fn pin_page(&self, page: PageNo, by: &InPlace) -> bool {
        while !self.engine.pin(page) {
            if !by.serve(page) {
                return false;
            }
        }
        true
    }

    /// Ends a [`pin`](Self::pin).
    pub fn unpin(&self, address: usize, pages: usize) {
        self.unpin_pages(self.space.page_at(address), pages);
        self.space.pinned_pages.fetch_sub(pages, Relaxed);
    }

    fn unpin_pages(&self, first: PageNo, pages: usize) {
        (0..pages).for_each(|n| self.engine.unpin(first.plus(n)));
    }
}
