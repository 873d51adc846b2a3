//! What a program has advised about its mappings for forks and core dumps.
//!
//! Owns: the ranges that a forked child finds wiped, the ranges excluded from core dumps, and which
//! blocks of the reservation core dumps contain at all.
//! Invariants: a mark belongs to a mapping and is removed with it.
//! Not here: advising the kernel ([`crate::dumps`], [`crate::advice`]), fork itself (`preload`).

use overspill_base::PageNo;
use rangemap::RangeSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// Marks of all mappings, in pages.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Zeros in a forked child.
    wiped: RangeSet<u32>,
    /// Excluded from core dumps by the program.
    hidden: RangeSet<u32>,
    /// Blocks that core dumps contain.
    dumped: BTreeSet<u32>,
}

impl Marks {
    /// Marks a range to be wiped in forked children, or no longer.
    pub(crate) fn set_wiped(&mut self, pages: Range<u32>, wiped: bool) {
        change(&mut self.wiped, pages, wiped);
    }

    /// The parts of a range that forked children find wiped.
    pub(crate) fn wiped_in(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        within(&self.wiped, pages)
    }

    /// Marks a range as excluded from core dumps, or no longer.
    pub(crate) fn set_hidden(&mut self, pages: Range<u32>, hidden: bool) {
        change(&mut self.hidden, pages, hidden);
    }

    /// The parts of a range that the program has excluded from core dumps.
    pub(crate) fn hidden_in(&self, pages: Range<u32>) -> Vec<Range<u32>> {
        within(&self.hidden, pages)
    }

    /// Marks a block as dumped; true if it was not.
    pub(crate) fn set_dumped(&mut self, block: u32) -> bool {
        self.dumped.insert(block)
    }

    /// Copies the marks for forked children to the range where the content moves.
    pub(crate) fn move_wiped(&mut self, from: PageNo, to: PageNo, pages: usize) {
        for part in self.wiped_in(range_of(from, pages)) {
            let start = part.start - from.0 + to.0;
            self.set_wiped(start..start + part.len() as u32, true);
        }
    }
}

/// The parts of `pages` that are in `set`.
fn within(set: &RangeSet<u32>, pages: Range<u32>) -> Vec<Range<u32>> {
    let clip = |part: &Range<u32>| part.start.max(pages.start)..part.end.min(pages.end);
    set.overlapping(&pages).map(clip).filter(|part| !part.is_empty()).collect()
}

/// Adds `pages` to a set or removes them; the set does not accept an empty range.
fn change(set: &mut RangeSet<u32>, pages: Range<u32>, put: bool) {
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
