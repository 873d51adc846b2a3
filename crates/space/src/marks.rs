//! What a program has advised about its mappings for forks and core dumps.
//!
//! Owns: the ranges that a forked child finds wiped, the ranges excluded from core dumps, and which
//! blocks of the reservation core dumps contain at all.
//! Invariants: a mark belongs to a mapping and is removed with it.
//! Not here: advising the kernel ([`crate::dumps`]), fork itself (`preload`).

use overspill_base::PageNo;
use rangemap::RangeSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// Marks of all mappings, in pages.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Zeros in a forked child.
    pub(crate) wiped: RangeSet<u32>,
    /// Excluded from core dumps by the program.
    pub(crate) hidden: RangeSet<u32>,
    /// Blocks that core dumps contain.
    pub(crate) dumped: BTreeSet<u32>,
}

impl Marks {
    /// Removes the marks for forked children of a range that is unmapped.
    pub(crate) fn forget_wiped(&mut self, pages: Range<u32>) {
        change(&mut self.wiped, pages, false);
    }

    /// Copies the marks for forked children to the range where the content moves.
    pub(crate) fn move_wiped(&mut self, from: PageNo, to: PageNo, pages: usize) {
        for part in within(&self.wiped, range_of(from, pages)) {
            let start = part.start - from.0 + to.0;
            self.wiped.insert(start..start + part.len() as u32);
        }
    }
}

/// The parts of `pages` that are in `set`.
pub(crate) fn within(set: &RangeSet<u32>, pages: Range<u32>) -> Vec<Range<u32>> {
    let clip = |part: &Range<u32>| part.start.max(pages.start)..part.end.min(pages.end);
    set.overlapping(&pages).map(clip).filter(|part| !part.is_empty()).collect()
}

/// Adds `pages` to a set or removes them; the set does not accept an empty range.
pub(crate) fn change(set: &mut RangeSet<u32>, pages: Range<u32>, put: bool) {
    match put {
        _ if pages.is_empty() => {}
        true => set.insert(pages),
        false => set.remove(pages),
    }
}

/// A range of pages in the sets' type.
pub(crate) fn range_of(first: PageNo, pages: usize) -> Range<u32> {
    first.0..first.0 + pages as u32
}
