//! What a program has said about its mappings for a fork and for a core dump.
//!
//! Owns: ranges that a forked child finds wiped, ranges a core dump leaves out, and which parts of the
//! reservation a core dump has at all. Invariants: a mark belongs to a mapping and goes with it. The
//! reservation is outside core dumps but for blocks in which something accessible was ever mapped: a
//! dump is as large as the program, and the kernel's mappings are cut at ends of blocks only.
//! Not here: fork itself (`preload`). Rejected: telling the kernel of each mapping by itself; every
//! allocation would be a system call and split a mapping.

use crate::memory::{ManagedMemory, MemoryError, Protection};
use crate::ranges::{Kind, Part, Ranges};
use overspill_base::PageNo;
use rangemap::RangeSet;
use rustix::mm::Advice;
use std::collections::BTreeSet;
use std::ops::Range;

/// Parts of the reservation that core dumps have as a whole or not at all.
const BLOCK_BYTES: usize = 64 << 20;

/// Marks of all mappings, in pages.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Zeros in a forked child.
    wiped: RangeSet<u32>,
    /// Left out of core dumps by the program.
    hidden: RangeSet<u32>,
    /// Blocks that core dumps have.
    dumped: BTreeSet<u32>,
}

impl Marks {
    /// What a child finds is the mapping's, and goes with it.
    pub(crate) fn forget_wiped(&mut self, pages: Range<u32>) {
        change(&mut self.wiped, pages, false);
    }
}

/// What of `pages` is in `set`.
fn within(set: &RangeSet<u32>, pages: Range<u32>) -> Vec<Range<u32>> {
    let clip = |part: &Range<u32>| part.start.max(pages.start)..part.end.min(pages.end);
    set.overlapping(&pages).map(clip).filter(|part| !part.is_empty()).collect()
}

/// Takes `pages` out of a set; an empty range is no range to it.
fn change(set: &mut RangeSet<u32>, pages: Range<u32>, put: bool) {
    match put {
        _ if pages.is_empty() => {}
        true => set.insert(pages),
        false => set.remove(pages),
    }
}

fn range_of(first: PageNo, pages: usize) -> Range<u32> {
    first.0..first.0 + pages as u32
}

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
        crate::memory::whole(&parts, pages)
    }

    /// In a forked child whose pager runs: wipes what is to be wiped.
    pub fn wipe_after_fork(&self) {
        let all = 0..self.space.pages() as u32;
        let wiped = within(&self.space.ranges.lock().marks.wiped, all);
        for pages in wiped {
            self.engine.discard(PageNo(pages.start), pages.len());
        }
    }

    /// Gives the marks of a range to another one, where its content moves.
    pub(crate) fn move_marks(&self, from: PageNo, to: PageNo, pages: usize) {
        let mut ranges = self.space.ranges.lock();
        for part in within(&ranges.marks.wiped, range_of(from, pages)) {
            let start = part.start - from.0 + to.0;
            ranges.marks.wiped.insert(start..start + part.len() as u32);
        }
    }

    /// Leaves the managed parts of a range out of core dumps, or puts them back.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], after the parts that are mapped were dealt with; what madvise says.
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
                self.tell_kernel(first, pages, advice)?;
                change(&mut ranges.marks.hidden, range_of(first, pages), !show);
            }
        }
        crate::memory::whole(&parts, pages)
    }

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
        let block_pages = (BLOCK_BYTES / self.space.page_bytes()).max(1) as u32;
        let last = first.0 + pages as u32 - 1;
        for block in first.0 / block_pages..=last / block_pages {
            if ranges.marks.dumped.insert(block) {
                let start = block * block_pages;
                let pages = (self.space.pages() as u32 - start).min(block_pages);
                self.dump_block(ranges, range_of(PageNo(start), pages as usize));
            }
        }
    }

    /// Advice splits the kernel's mappings; should there be too many of them, a dump lacks the block.
    fn dump_block(&self, ranges: &Ranges, block: Range<u32>) {
        let _ = self.tell_kernel(PageNo(block.start), block.len(), Advice::LinuxDoDump);
        for part in within(&ranges.marks.hidden, block) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDontDump);
        }
    }

    /// Puts back into core dumps what a mapping that goes was left out by.
    pub(crate) fn forget_dump_marks(&self, first: PageNo, pages: usize) {
        let mut ranges = self.space.ranges.lock();
        for part in within(&ranges.marks.hidden, range_of(first, pages)) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDoDump);
            ranges.marks.hidden.remove(part);
        }
    }
}
