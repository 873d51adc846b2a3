//! Which parts of the reservation core dumps contain.
//!
//! Owns: the kernel advice for that.
//! Invariants: the reservation is excluded from core dumps except for blocks in which something
//! accessible was ever mapped: a dump is as large as the program, and the kernel's mappings are
//! split only at block borders.
//! Not here: what the program asked to exclude ([`crate::marks`] keeps it).
//! Rejected: advice for each mapping; every allocation would be a system call and split a mapping.

use crate::marks::range_of;
use crate::ranges::{Protection, Ranges};
use crate::space::ManagedSpace;
use overspill_base::PageNo;
use rustix::mm::Advice;
use std::ops::Range;

/// Core dumps include or exclude whole blocks of this size.
const BLOCK_BYTES: usize = 64 << 20;

impl ManagedSpace {
    /// Includes the blocks of an accessible mapping in core dumps, if they are not included yet.
    pub(crate) fn put_in_dumps(
        &self,
        ranges: &mut Ranges,
        first: PageNo,
        pages: usize,
        protection: Protection,
    ) {
        if protection.is_empty() || pages == 0 {
            return;
        }
        let block_pages = (BLOCK_BYTES / self.page_bytes()).max(1) as u32;
        let last = first.0 + pages as u32 - 1;
        for block in first.0 / block_pages..=last / block_pages {
            if ranges.marks.set_dumped(block) {
                let start = block * block_pages;
                let pages = (self.pages() as u32 - start).min(block_pages);
                self.dump_block(ranges, range_of(PageNo(start), pages as usize));
            }
        }
    }

    /// Advice splits the kernel's mappings; if there are too many, a dump lacks the block.
    fn dump_block(&self, ranges: &Ranges, block: Range<u32>) {
        let _ = self.tell_kernel(PageNo(block.start), block.len(), Advice::LinuxDoDump);
        for part in ranges.marks.hidden_in(block) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDontDump);
        }
    }

    /// Includes in core dumps again what the program excluded of a mapping that is going away.
    pub(crate) fn forget_dump_marks(&self, first: PageNo, pages: usize) {
        let mut ranges = self.ranges.lock();
        for part in ranges.marks.hidden_in(range_of(first, pages)) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDoDump);
            ranges.marks.set_hidden(part, false);
        }
    }
}
