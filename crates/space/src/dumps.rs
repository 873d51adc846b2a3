//! Which parts of the reservation core dumps contain.
//!
//! Owns: the kernel advice for that.
//! Invariants: the reservation is excluded from core dumps except for blocks in which something
//! was ever mapped: a dump is as large as the program, and the kernel's mappings are
//! split only at block borders.
//! Rejected: advice for each mapping; every allocation would be a system call and split a mapping.

use crate::mapping::set_advice;
use crate::ranges::Ranges;
use crate::space::ManagedSpace;
use overspill_base::PageNo;
use rustix::mm::Advice;

/// Core dumps include or exclude whole blocks of this size.
const BLOCK_BYTES: usize = 64 << 20;

impl ManagedSpace {
    /// Includes the blocks of a mapping in core dumps, if they are not included yet.
    pub(crate) fn put_in_dumps(&self, ranges: &mut Ranges, first: PageNo, pages: usize) {
        let block_pages = (BLOCK_BYTES / self.page_bytes()).max(1) as u32;
        let last = first.0 + pages as u32 - 1;
        for block in first.0 / block_pages..=last / block_pages {
            if ranges.dumped.insert(block) {
                let start = block * block_pages;
                let pages = (self.pages() as u32 - start).min(block_pages);
                // This splits mappings; if there are too many, a dump lacks the block.
                let start = self.address_of(PageNo(start));
                set_advice(start, pages as usize * self.page_bytes(), Advice::LinuxDoDump);
            }
        }
    }
}
