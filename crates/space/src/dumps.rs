//! What a core dump has of the reservation.
//!
//! Owns: the advice to the kernel about that. Invariants: the reservation is outside core dumps but
//! for blocks in which something accessible was ever mapped: a dump is as large as the program, and
//! the kernel's mappings are cut at ends of blocks only.
//! Not here: what the program asked to leave out ([`crate::marks`] keeps it).
//! Rejected: telling the kernel of each mapping by itself; every allocation would be a system call
//! and split a mapping.

use crate::marks::{range_of, within};
use crate::ranges::{Protection, Ranges};
use crate::space::ManagedSpace;
use overspill_base::PageNo;
use rustix::mm::Advice;
use std::ops::Range;

/// Parts of the reservation that core dumps have as a whole or not at all.
const BLOCK_BYTES: usize = 64 << 20;

impl ManagedSpace {
    /// Puts the blocks of an accessible mapping into core dumps, if they are not in them yet.
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
            if ranges.marks.dumped.insert(block) {
                let start = block * block_pages;
                let pages = (self.pages() as u32 - start).min(block_pages);
                self.dump_block(ranges, range_of(PageNo(start), pages as usize));
            }
        }
    }

    /// Advice splits the kernel's mappings; should there be too many of them, a dump lacks the
    /// block.
    fn dump_block(&self, ranges: &Ranges, block: Range<u32>) {
        let _ = self.tell_kernel(PageNo(block.start), block.len(), Advice::LinuxDoDump);
        for part in within(&ranges.marks.hidden, block) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDontDump);
        }
    }

    /// Puts back into core dumps what a mapping that goes was left out by.
    pub(crate) fn forget_dump_marks(&self, first: PageNo, pages: usize) {
        let mut ranges = self.ranges.lock();
        for part in within(&ranges.marks.hidden, range_of(first, pages)) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDoDump);
            ranges.marks.hidden.remove(part);
        }
    }
}
