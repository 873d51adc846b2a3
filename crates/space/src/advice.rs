//! What a program advises about its mappings: zeros in a forked child, and not to be dumped.
//!
//! Owns: those calls on managed memory. Invariants: parts that are mapped are dealt with, also
//! where others are not.
//! Not here: keeping it ([`crate::marks`]), what a core dump has without being told
//! ([`crate::dumps`]).

use crate::marks::{change, range_of, within};
use crate::memory::{ManagedMemory, MemoryError, whole};
use crate::ranges::{Kind, Part};
use overspill_base::PageNo;
use rustix::mm::Advice;

impl ManagedMemory {
    /// Has forked children find the managed parts of a range zero, or no longer.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the parts that are mapped were dealt with.
    pub fn wipe_on_fork(
        &self,
        address: usize,
        pages: usize,
        wipe: bool,
    ) -> Result<(), MemoryError> {
        let mut ranges = self.space.ranges.lock();
        let parts = ranges.parts(self.space.page_at(address), pages);
        for part in parts.iter().filter(|part| matches!(part.kind, Kind::Managed(..))) {
            change(&mut ranges.marks.wiped, range_of(part.first, part.pages), wipe);
        }
        whole(&parts, pages)
    }

    /// In a forked child whose pager runs: wipes what is to be wiped.
    pub fn wipe_after_fork(&self) {
        let all = 0..self.space.pages() as u32;
        let wiped = within(&self.space.ranges.lock().marks.wiped, all);
        for pages in wiped {
            self.engine.discard(PageNo(pages.start), pages.len());
        }
    }

    /// Leaves the managed parts of a range out of core dumps, or puts them back.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the parts that are mapped were dealt with; what madvise
    /// says.
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
                change(&mut ranges.marks.hidden, range_of(first, pages), !show);
            }
        }
        whole(&parts, pages)
    }
}
