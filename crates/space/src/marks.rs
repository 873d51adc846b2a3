//! What a program has said about its mappings for a fork and for a core dump.
//!
//! Owns: ranges that a forked child finds wiped, ranges a core dump leaves out, and which blocks of
//! the reservation a core dump has at all. Invariants: a mark belongs to a mapping and goes with
//! it.
//! Not here: telling the kernel ([`crate::dumps`]), fork itself (`preload`).

use overspill_base::PageNo;
use rangemap::RangeSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// Marks of all mappings, in pages.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Zeros in a forked child.
    pub(crate) wiped: RangeSet<u32>,
    /// Left out of core dumps by the program.
    pub(crate) hidden: RangeSet<u32>,
    /// Blocks that core dumps have.
    pub(crate) dumped: BTreeSet<u32>,
}

impl Marks {
    /// What a child finds is the mapping's, and goes with it.
    pub(crate) fn forget_wiped(&mut self, pages: Range<u32>) {
        change(&mut self.wiped, pages, false);
    }

    /// What a child finds of a range holds for another one, where its content moves.
    pub(crate) fn move_wiped(&mut self, from: PageNo, to: PageNo, pages: usize) {
        for part in within(&self.wiped, range_of(from, pages)) {
            let start = part.start - from.0 + to.0;
            self.wiped.insert(start..start + part.len() as u32);
        }
    }
}

/// What of `pages` is in `set`.
pub(crate) fn within(set: &RangeSet<u32>, pages: Range<u32>) -> Vec<Range<u32>> {
    let clip = |part: &Range<u32>| part.start.max(pages.start)..part.end.min(pages.end);
    set.overlapping(&pages).map(clip).filter(|part| !part.is_empty()).collect()
}

/// Takes `pages` out of a set; an empty range is no range to it.
pub(crate) fn change(set: &mut RangeSet<u32>, pages: Range<u32>, put: bool) {
    match put {
        _ if pages.is_empty() => {}
        true => set.insert(pages),
        false => set.remove(pages),
    }
}

/// Pages as the sets have them.
pub(crate) fn range_of(first: PageNo, pages: usize) -> Range<u32> {
    first.0..first.0 + pages as u32
}
