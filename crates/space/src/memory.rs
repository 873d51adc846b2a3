//! The memory calls on managed ranges: map, unmap, move, protect, discard, advise, lock.
//!
//! Owns: keeping three views consistent: the range map, the kernel's mappings, the engine's pages.
//! Pages are counted in the space's page size.
//! Invariants: a page that is not mapped has no content; the reservation is readable and writable
//! wherever nothing is mapped and nothing was touched. The range lock is never held while waiting
//! for a page: a range to be unmapped is first marked [`Kind::Leaving`], then emptied, then freed.
//! Not here: moving mappings ([`crate::remap`]); forks and core
//! dumps.

pub use crate::ranges::Protection;
use crate::ranges::{Kind, PLAIN, Part};
use crate::signals::SignalFaults;
use crate::source::Source;
use crate::space::ManagedSpace;
use crate::words::Reach;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{Bytes, PageNo};
use overspill_engine::{Engine, Pattern};
use rustix::io::Errno;
use rustix::mm::Advice as Advised;
use std::ops::Range;

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

/// Why a memory call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// The reserved range has no gap of this size, or its limit does not allow it.
    #[error("no {0} of managed address space left")]
    NoSpace(Bytes),
    /// Part of the range is not mapped.
    #[error("part of the range is not mapped")]
    NotMapped,
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

impl MemoryError {
    /// The errno that the system call would have returned.
    pub fn errno(self) -> i32 {
        match self {
            Self::NoSpace(_) | Self::NotMapped | Self::TooMuchLocked(_) => libc::ENOMEM,
            Self::Lost => libc::EFAULT,
            Self::Kernel(errno) => errno.raw_os_error(),
        }
    }
}

/// The managed range and the engine that pages it.
#[derive(Debug, Clone)]
pub struct ManagedMemory {
    pub(crate) space: Arc<ManagedSpace>,
    pub(crate) engine: Arc<Engine>,
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
    /// [`MemoryError::NoSpace`].
    pub fn map(&self, pages: usize, protection: Protection) -> Result<usize, MemoryError> {
        self.allow(pages)?;
        let first = self.take(pages)?;
        self.make_managed(first, pages, protection, Pattern::Normal)?;
        Ok(self.space.address_of(first))
    }

    /// As [`map`](Self::map), readable and writable, in memory whose faults `signals` serves.
    ///
    /// # Errors
    /// [`MemoryError::NoSpace`].
    pub fn map_by_signal(&self, _: &SignalFaults, pages: usize) -> Result<usize, MemoryError> {
        let align = self.align_of(pages);
        let taken = self.space.ranges.lock().take_upper(pages, align, Kind::Leaving);
        let first = taken.ok_or(MemoryError::NoSpace(self.space.size_of(pages)))?;
        self.make_managed(first, pages, PLAIN, Pattern::Normal)?;
        Ok(self.space.address_of(first))
    }

    /// Allows at most `pages` to be mapped. More may be already; mappings that replace others or
    /// move are not refused.
    pub fn limit(&self, pages: usize) {
        self.space.ranges.lock().limit(pages);
    }

    /// Fails if the limit does not allow that many more pages.
    pub(crate) fn allow(&self, more_pages: usize) -> Result<(), MemoryError> {
        let allowed = self.space.ranges.lock().allow(more_pages);
        if allowed { Ok(()) } else { Err(MemoryError::NoSpace(self.space.size_of(more_pages))) }
    }

    /// Takes a free range, in which no fault is served until [`make_managed`](Self::make_managed).
    pub(crate) fn take(&self, pages: usize) -> Result<PageNo, MemoryError> {
        let taken = self.space.ranges.lock().take(pages, self.align_of(pages), Kind::Leaving);
        taken.ok_or(MemoryError::NoSpace(self.space.size_of(pages)))
    }

    /// The alignment of a mapping in pages: large ones start where page tables and clusters do.
    fn align_of(&self, pages: usize) -> usize {
        let page_bytes = self.space.page_bytes();
        let large = pages * page_bytes >= LARGE_BYTES;
        if large { LARGE_ALIGN_BYTES / page_bytes } else { 1 }
    }

    /// Makes an empty, taken range managed memory.
    pub(crate) fn make_managed(
        &self,
        first: PageNo,
        pages: usize,
        protection: Protection,
        pattern: Pattern,
    ) -> Result<(), MemoryError> {
        let changing = self.space.changing();
        let mut ranges = self.space.ranges.lock();
        let mut changed = Ok(());
        for page in ranges.take_refused(first, pages) {
            changed = changed.and(self.space.protect(&changing, page, 1, PLAIN));
        }
        if protection != PLAIN {
            changed = changed.and(self.space.protect(&changing, first, pages, protection));
        }
        ranges.set(first, pages, changed.is_ok().then_some(Kind::Managed(protection, pattern)));
        self.space.put_in_dumps(&mut ranges, first, pages, protection);
        Ok(changed?)
    }

    /// Maps zeros at `address`, replacing what is mapped there.
    ///
    /// # Errors
    /// Errors of mprotect.
    pub fn map_at(
        &self,
        address: usize,
        pages: usize,
        protection: Protection,
    ) -> Result<(), MemoryError> {
        let first = self.space.page_at(address);
        self.empty(first, pages)?;
        self.make_managed(first, pages, protection, Pattern::Normal)
    }

    /// Unmaps everything in a range.
    ///
    /// # Errors
    /// Errors of mprotect and mmap while they restore the reservation.
    pub fn unmap(&self, address: usize, pages: usize) -> Result<(), MemoryError> {
        let first = self.space.page_at(address);
        self.empty(first, pages)?;
        self.space.ranges.lock().set(first, pages, None);
        Ok(())
    }

    /// Empties a range, which is left marked as leaving.
    pub(crate) fn empty(&self, first: PageNo, pages: usize) -> Result<(), MemoryError> {
        let parts = {
            let mut ranges = self.space.ranges.lock();
            let parts = ranges.parts(first, pages);
            ranges.set(first, pages, Some(Kind::Leaving));
            parts
        };
        parts.iter().try_for_each(|part| self.empty_part(part))
    }

    fn empty_part(&self, part: &Part) -> Result<(), MemoryError> {
        match part.kind {
            Kind::Foreign => self.space.restore(part.first, part.pages)?,
            Kind::Leaving => {}
            Kind::Managed(..) => {
                self.engine.discard(part.first, part.pages);
                // Even if it should be plain already: a call that nobody saw may have changed it.
                let changing = self.space.changing();
                self.space.protect(&changing, part.first, part.pages, PLAIN)?;
            }
        }
        Ok(())
    }

    /// Changes the protection of a mapped range.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], or an error of mprotect.
    pub fn protect(
        &self,
        address: usize,
        pages: usize,
        protection: Protection,
    ) -> Result<(), MemoryError> {
        let first = self.space.page_at(address);
        let changing = self.space.changing();
        let mut ranges = self.space.ranges.lock();
        let parts = ranges.parts(first, pages);
        if parts.iter().map(|p| p.pages).sum::<usize>() != pages {
            return Err(MemoryError::NotMapped);
        }
        self.space.protect(&changing, first, pages, protection)?;
        self.space.put_in_dumps(&mut ranges, first, pages, protection);
        for part in parts {
            if let Kind::Managed(_, pattern) = part.kind {
                ranges.set(part.first, part.pages, Some(Kind::Managed(protection, pattern)));
            }
        }
        Ok(())
    }

    /// Applies advice to a range; foreign mappings in it are left alone.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the mapped parts were processed.
    pub fn advise(&self, address: usize, pages: usize, advice: Advice) -> Result<(), MemoryError> {
        let first = self.space.page_at(address);
        let parts = self.space.ranges.lock().parts(first, pages);
        for part in parts.iter().filter(|part| matches!(part.kind, Kind::Managed(..))) {
            match advice {
                Advice::Normal => self.set_pattern(part.first, part.pages, Pattern::Normal),
                Advice::Sequential => self.set_pattern(part.first, part.pages, Pattern::Sequential),
                Advice::Random => self.set_pattern(part.first, part.pages, Pattern::Random),
                Advice::WillNeed => self.engine.will_need(part.first, part.pages),
                Advice::Cold => self.engine.make_cold(part.first, part.pages),
                Advice::PageOut => self.engine.page_out(part.first, part.pages),
            }
        }
        whole(&parts, pages)
    }

    fn set_pattern(&self, first: PageNo, pages: usize, pattern: Pattern) {
        let mut ranges = self.space.ranges.lock();
        // Looked up again: it may be leaving by now.
        for part in ranges.parts(first, pages) {
            if let Kind::Managed(protection, _) = part.kind {
                ranges.set(part.first, part.pages, Some(Kind::Managed(protection, pattern)));
            }
        }
    }

    /// Drops the content of the managed parts of a range (`MADV_DONTNEED`, `MADV_FREE`).
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the mapped parts were processed.
    pub fn discard(&self, address: usize, pages: usize) -> Result<(), MemoryError> {
        let first = self.space.page_at(address);
        let parts = self.space.ranges.lock().parts(first, pages);
        for part in parts.iter().filter(|part| matches!(part.kind, Kind::Managed(..))) {
            self.engine.discard(part.first, part.pages);
        }
        whole(&parts, pages)
    }

    /// Faults in the managed parts of a range, as reads or writes would. What exceeds the limit is
    /// evicted again. Blocks.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`] before anything is done; errors of madvise.
    pub fn populate(&self, address: usize, pages: usize, write: bool) -> Result<(), MemoryError> {
        let advice = if write { Advised::LinuxPopulateWrite } else { Advised::LinuxPopulateRead };
        let parts = self.space.ranges.lock().parts(self.space.page_at(address), pages);
        whole(&parts, pages)?;
        let managed = parts.iter().filter(|part| matches!(part.kind, Kind::Managed(..)));
        for part in managed {
            match self.space.with_uffd(Source::reach) {
                Reach::All => self.space.tell_kernel(part.first, part.pages, advice)?,
                // As the kernel answers.
                _ if !part.kind.permits(write) => return Err(Errno::INVAL.into()),
                _ => self.bring_in(part.first..part.first.plus(part.pages)),
            }
        }
        Ok(())
    }

    /// Brings in what is missing of a range, as touches of the program would, up to the first page
    /// that cannot be read. Does not allocate. Blocks. Call it with signals blocked: it locks the
    /// table of ranges.
    pub fn bring_in(&self, pages: Range<PageNo>) {
        for page in (pages.start.0..pages.end.0).map(PageNo) {
            while self.engine.is_missing(page) {
                if self.space.touch_as_program(page).is_err() {
                    return;
                }
            }
        }
    }

    /// True if all bytes of a range that begins in this space may be read, or written to.
    pub fn permits(&self, address: usize, bytes: usize, write: bool) -> bool {
        let Some(last) = address.checked_add(bytes.max(1) - 1) else { return false };
        let first = self.space.page_at(address);
        let pages = self.space.page_at(last).0 as usize + 1 - first.index();
        self.space.holds(last) && self.space.ranges.lock().permitted(first, pages, write) == pages
    }

    /// True if an instruction may touch an address in this way. What another mapping of the
    /// program's allows, the kernel knows.
    pub fn permits_touch(&self, address: usize, touch: Protection) -> bool {
        self.space.ranges.lock().permits_touch(self.space.page_at(address), touch)
    }

    /// Returns the foreign mappings in a range: addresses and bytes.
    pub fn foreign(&self, address: usize, pages: usize) -> Vec<(usize, usize)> {
        let parts = self.space.ranges.lock().parts(self.space.page_at(address), pages);
        let foreign = parts.iter().filter(|part| part.kind == Kind::Foreign);
        foreign.map(|p| (self.space.address_of(p.first), self.bytes_of(p.pages))).collect()
    }

    fn bytes_of(&self, pages: usize) -> usize {
        self.space.size_of(pages).0 as usize
    }

    /// Locks the managed parts of a range in memory, or unlocks them.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`]; [`MemoryError::TooMuchLocked`] past half of the frames.
    pub fn set_locked(&self, address: usize, pages: usize, lock: bool) -> Result<(), MemoryError> {
        let parts = self.space.ranges.lock().parts(self.space.page_at(address), pages);
        whole(&parts, pages)?;
        let managed = parts.iter().filter(|part| matches!(part.kind, Kind::Managed(..)));
        let ours = managed.clone().map(|part| part.pages).sum::<usize>();
        if lock && self.engine.unevictable() + ours > self.engine.limit_frames() / 2 {
            return Err(MemoryError::TooMuchLocked(self.space.size_of(ours)));
        }
        for page in managed.flat_map(|part| (0..part.pages).map(|n| part.first.plus(n))) {
            while !self.engine.set_unevictable(page, lock) {
                self.space.touch(page)?;
            }
        }
        Ok(())
    }

    /// Brings a range in and keeps it in memory until [`unpin`](Self::unpin) was called as often.
    /// `signals` serves the range's faults, if they come by signal. Blocks for the reads.
    ///
    /// # Errors
    /// [`MemoryError::TooMuchLocked`] past half of the frames; [`MemoryError::Lost`].
    pub fn pin(
        &self,
        address: usize,
        pages: usize,
        signals: Option<&SignalFaults>,
    ) -> Result<(), MemoryError> {
        let most = self.engine.limit_frames() / 2;
        let fits = |pinned: usize| pinned.checked_add(pages).filter(|&sum| sum <= most);
        if self.space.pinned_pages.fetch_update(Relaxed, Relaxed, fits).is_err() {
            return Err(MemoryError::TooMuchLocked(self.space.size_of(pages)));
        }
        let first = self.space.page_at(address);
        for n in 0..pages {
            if let Err(error) = self.pin_page(first.plus(n), signals) {
                self.unpin_pages(first, n);
                self.space.pinned_pages.fetch_sub(pages, Relaxed);
                return Err(error);
            }
        }
        Ok(())
    }

    fn pin_page(&self, page: PageNo, signals: Option<&SignalFaults>) -> Result<(), MemoryError> {
        while !self.engine.pin(page) {
            let address = self.space.address_of(page);
            let there = match signals {
                Some(signals) => signals.serve(address),
                None => self.space.touch(page).is_ok(),
            };
            if !there {
                return Err(MemoryError::Lost);
            }
        }
        Ok(())
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

/// Returns [`MemoryError::NotMapped`] unless `parts` cover all `pages` pages of a range.
pub(crate) fn whole(parts: &[Part], pages: usize) -> Result<(), MemoryError> {
    let mapped = parts.iter().filter(|part| part.kind != Kind::Leaving);
    let mapped = mapped.map(|part| part.pages).sum::<usize>();
    if mapped == pages { Ok(()) } else { Err(MemoryError::NotMapped) }
}

impl ManagedSpace {
    /// Brings a page in, so that one that cannot be read is an error and not a signal.
    fn touch(&self, page: PageNo) -> Result<(), Errno> {
        match self.with_uffd(Source::reach) {
            Reach::All => touch_by_kernel(self.address_of(page)),
            Reach::Program | Reach::Nothing => self.touch_as_program(page),
        }
    }

    fn touch_as_program(&self, page: PageNo) -> Result<(), Errno> {
        if !self.ranges.lock().permits_touch(page, Protection::READ) {
            return Err(Errno::FAULT);
        }
        let address = self.address_of(page);
        if !self.wait_for(address) {
            // SAFETY: mapped and readable. A program that unmaps what another of its threads uses
            // gets a signal, as without us.
            unsafe { (address as *const u8).read_volatile() };
        }
        Ok(())
    }
}

/// Brings a page in by reading a byte of it with a system call, so that a page that cannot be read
/// is an error and not a signal.
fn touch_by_kernel(address: usize) -> Result<(), Errno> {
    let mut byte = [0u8; 1];
    let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: 1 };
    // SAFETY: reads one byte of this process into `byte`.
    let n = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    if n == 1 { Ok(()) } else { Err(Errno::FAULT) }
}
