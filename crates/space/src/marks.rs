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
use rustix::mm::Advice;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Parts of the reservation that core dumps have as a whole or not at all.
const BLOCK_BYTES: usize = 64 << 20;

/// Marks of all mappings, in pages.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Zeros in a forked child.
    pub(crate) wiped: Intervals,
    /// Left out of core dumps by the program.
    hidden: Intervals,
    /// Blocks that core dumps have.
    dumped: BTreeSet<u32>,
}

/// Sets of pages, as disjoint ranges.
#[derive(Debug, Default)]
pub(crate) struct Intervals(BTreeMap<u32, u32>);

impl Intervals {
    pub(crate) fn insert(&mut self, pages: Range<u32>) {
        self.remove(pages.clone());
        self.0.insert(pages.start, pages.end);
    }

    pub(crate) fn remove(&mut self, pages: Range<u32>) {
        for part in self.within(pages.clone()) {
            let before = self.0.range(..=part.start).next_back();
            let Some((&start, &end)) = before else { continue };
            self.0.remove(&start);
            if start < part.start {
                self.0.insert(start, part.start);
            }
            if part.end < end {
                self.0.insert(part.end, end);
            }
        }
    }

    /// What of `pages` is in the set.
    pub(crate) fn within(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let before = self.0.range(..pages.start).next_back();
        let inside = before.into_iter().chain(self.0.range(pages.clone()));
        let clip = |(&start, &end): (&u32, &u32)| start.max(pages.start)..end.min(pages.end);
        inside.map(clip).filter(|part| !part.is_empty()).collect()
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
            let pages = range_of(part.first, part.pages);
            match wipe {
                true => ranges.marks.wiped.insert(pages),
                false => ranges.marks.wiped.remove(pages),
            }
        }
        crate::memory::whole(&parts, pages)
    }

    /// In a forked child whose pager runs: wipes what is to be wiped.
    pub fn wipe_after_fork(&self) {
        let all = 0..self.space.pages() as u32;
        let wiped = self.space.ranges.lock().marks.wiped.within(all);
        for pages in wiped {
            self.engine.discard(PageNo(pages.start), pages.len());
        }
    }

    /// Gives the marks of a range to another one, where its content moves.
    pub(crate) fn move_marks(&self, from: PageNo, to: PageNo, pages: usize) {
        let mut ranges = self.space.ranges.lock();
        for part in ranges.marks.wiped.within(range_of(from, pages)) {
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
                match show {
                    true => ranges.marks.hidden.remove(range_of(first, pages)),
                    false => ranges.marks.hidden.insert(range_of(first, pages)),
                }
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
        for part in ranges.marks.hidden.within(block) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDontDump);
        }
    }

    /// Puts back into core dumps what a mapping that goes was left out by.
    pub(crate) fn forget_dump_marks(&self, first: PageNo, pages: usize) {
        let mut ranges = self.space.ranges.lock();
        for part in ranges.marks.hidden.within(range_of(first, pages)) {
            let _ = self.tell_kernel(PageNo(part.start), part.len(), Advice::LinuxDoDump);
            ranges.marks.hidden.remove(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_cut_and_clipped() {
        let mut set = Intervals::default();
        set.insert(10..20);
        set.insert(30..40);
        set.remove(15..35);
        assert_eq!(set.within(0..100), [10..15, 35..40]);
        set.insert(12..38);
        assert_eq!(set.within(11..36), [11..12, 12..36]);
        set.remove(0..100);
        assert!(set.within(0..100).is_empty());
    }
}
