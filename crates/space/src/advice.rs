//! Advice of a program about its mappings: zeros in a forked child, and exclusion from core dumps.
//!
//! Owns: those calls on managed memory.
//! Invariants: the mapped parts of a range are processed even if other parts are not mapped.
//! Not here: storing it ([`crate::marks`]), what a core dump contains by default
//! ([`crate::dumps`]).

use crate::marks::range_of;
use crate::memory::{ManagedMemory, MemoryError, whole};
use crate::ranges::{Kind, Part};
use overspill_base::PageNo;
use rustix::mm::Advice;

impl ManagedMemory {
    /// Makes the managed parts of a range zero in forked children, or no longer.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the mapped parts were processed.
    pub fn wipe_on_fork(
        &self,
        address: usize,
        pages: usize,
        wipe: bool,
    ) -> Result<(), MemoryError> {
        let mut ranges = self.space.ranges.lock();
        let parts = ranges.parts(self.space.page_at(address), pages);
        for part in parts.iter().filter(|part| matches!(part.kind, Kind::Managed(..))) {
            ranges.marks.set_wiped(range_of(part.first, part.pages), wipe);
        }
        whole(&parts, pages)
    }

    /// In a forked child whose pager runs: wipes the marked ranges.
    pub fn wipe_after_fork(&self) {
        let all = 0..self.space.pages() as u32;
        let wiped = self.space.ranges.lock().marks.wiped_in(all);
        for pages in wiped {
            self.engine.discard(PageNo(pages.start), pages.len());
        }
    }

    /// Excludes the managed parts of a range from core dumps, or includes them again.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the mapped parts were processed; errors of madvise.
    pub fn show_in_dumps(
        &self,
        address: usize,
        pages: usize,
        show: bool,
    ) -> Result<(), MemoryError> {
        let mut ranges = self.space.ranges.lock();
        let parts = ranges.parts(self.space.page_at(address), pages);
        let advice = if show { Advice::LinuxDoDump } else { Advice::LinuxDontDump };
        for &Part { first, pages, kind } in &parts {
            if matches!(kind, Kind::Managed(..)) {
                self.space.tell_kernel(first, pages, advice)?;
                ranges.marks.set_hidden(range_of(first, pages), !show);
            }
        }
        whole(&parts, pages)
    }
}
