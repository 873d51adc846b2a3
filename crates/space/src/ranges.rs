//! Which parts of the reserved range are mapped.
//!
//! Owns: the allocation of address space, first fit from the bottom, and what is mapped where.
//! Invariants: mapped ranges do not overlap, and adjacent equal ones are joined. A range being
//! unmapped ([`Kind::Leaving`]) counts as not mapped for faults and as taken for allocation.
//! Not here: the kernel's view (`memory` changes it under the same lock).

use overspill_base::PageNo;
use overspill_engine::Pattern;
use std::collections::{BTreeMap, BTreeSet};

/// What is mapped in a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Memory of a region, with its expected access pattern.
    Mapped(Pattern),
    /// Being unmapped.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    pages: u32,
    kind: Kind,
}

/// A range of pages and what is mapped there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// First page.
    pub(crate) first: PageNo,
    /// Pages.
    pub(crate) pages: usize,
    /// What is mapped there.
    pub(crate) kind: Kind,
}

/// Where a mapping is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    /// In all of the range, or its lower part once it is divided.
    Lower,
    /// In the upper part.
    Upper,
}

/// The map of the reserved range.
#[derive(Debug)]
pub(crate) struct Ranges {
    pages: u32,
    taken: BTreeMap<u32, Extent>,
    /// There is no known gap below this page.
    lowest_gap: u32,
    /// Where the upper part starts, if there is one.
    upper: Option<u32>,
    /// Pages made inaccessible because they were touched while unmapped.
    refused: BTreeSet<u32>,
    /// Blocks that core dumps contain.
    pub(crate) dumped: BTreeSet<u32>,
}

impl Ranges {
    /// An empty map of `pages` pages.
    pub(crate) fn new(pages: usize) -> Self {
        Self {
            pages: pages as u32,
            taken: BTreeMap::new(),
            lowest_gap: 0,
            upper: None,
            refused: BTreeSet::new(),
            dumped: BTreeSet::new(),
        }
    }

    /// Finds `pages` free pages at a multiple of `align_pages`, and takes them.
    pub(crate) fn take(&mut self, half: Half, pages: usize, align_pages: usize) -> Option<PageNo> {
        let (pages, align) = (u32::try_from(pages).ok()?, align_pages as u32);
        let first = match half {
            // The page between the parts stays free, so that no mapping crosses the border.
            Half::Lower => {
                self.find(pages, align, self.upper.map_or(self.pages, |upper| upper - 1))?
            }
            Half::Upper => self.find_upper(pages, align)?,
        };
        self.set(PageNo(first), pages as usize, Some(Kind::Mapped(Pattern::Normal)));
        Some(PageNo(first))
    }

    /// Makes the pages from `upper` on a separate part. False if something is mapped there.
    pub(crate) fn divide(&mut self, upper: PageNo) -> bool {
        let free = self.parts(PageNo(upper.0 - 1), (self.pages - upper.0) as usize + 1).is_empty();
        if free {
            self.upper = Some(upper.0);
        }
        free || self.upper == Some(upper.0)
    }

    fn find_upper(&self, pages: u32, align: u32) -> Option<u32> {
        let mut first = self.upper?;
        for (&start, extent) in self.taken.range(first..) {
            if first.checked_add(pages).is_some_and(|end| end <= start) {
                break;
            }
            first = (start + extent.pages).checked_next_multiple_of(align)?;
        }
        first.checked_add(pages).is_some_and(|end| end <= self.pages).then_some(first)
    }

    /// Finds `pages` free pages at a multiple of `align`, below `end`.
    fn find(&mut self, pages: u32, align: u32, end: u32) -> Option<u32> {
        // An extent that starts below the hint may reach past it.
        let before = self.taken.range(..self.lowest_gap).next_back();
        let reach = before.map_or(0, |(&start, extent)| start + extent.pages);
        let mut gap = self.lowest_gap.max(reach);
        let mut lowest = None;
        let after = self.taken.range(gap..).map(|(&start, extent)| (start, start + extent.pages));
        let after = after.take_while(|&(start, _)| start < end);
        for (start, end) in after.chain([(end, end)]) {
            if start > gap {
                lowest.get_or_insert(gap);
                let aligned = gap.checked_next_multiple_of(align)?;
                if aligned.checked_add(pages).is_some_and(|end| end <= start) {
                    self.lowest_gap = lowest.unwrap_or(gap);
                    return Some(aligned);
                }
            }
            gap = gap.max(end);
        }
        None
    }

    /// Number of pages from `page` to the end of its mapping; 0 if it is not mapped.
    pub(crate) fn span(&self, page: PageNo) -> usize {
        match self.at(page) {
            Some((end, Kind::Mapped(_))) => (end - page.0) as usize,
            _ => 0,
        }
    }

    /// The access pattern advised for the range around `page`.
    pub(crate) fn pattern(&self, page: PageNo) -> Pattern {
        match self.at(page) {
            Some((_, Kind::Mapped(pattern))) => pattern,
            _ => Pattern::Normal,
        }
    }

    /// The end of the extent that contains `page`, and its kind.
    fn at(&self, page: PageNo) -> Option<(u32, Kind)> {
        let (&start, extent) = self.taken.range(..=page.0).next_back()?;
        let end = start + extent.pages;
        (page.0 < end).then_some((end, extent.kind))
    }

    /// Records that a page is inaccessible until something is mapped there.
    pub(crate) fn refuse(&mut self, page: PageNo) {
        self.refused.insert(page.0);
    }

    /// Removes and returns the inaccessible pages of a range.
    pub(crate) fn take_refused(&mut self, first: PageNo, pages: usize) -> Vec<PageNo> {
        let inside = first.0..first.0 + pages as u32;
        self.refused.extract_if(inside, |_| true).map(PageNo).collect()
    }

    /// What is mapped in a range, without gaps.
    pub(crate) fn parts(&self, first: PageNo, pages: usize) -> Vec<Part> {
        let (start, end) = (first.0, first.0 + pages as u32);
        let before = self.taken.range(..start).next_back();
        before
            .into_iter()
            .chain(self.taken.range(start..end))
            .filter_map(|(&from, extent)| {
                let (lo, hi) = (from.max(start), (from + extent.pages).min(end));
                let pages = hi.checked_sub(lo).filter(|&n| n > 0)? as usize;
                Some(Part { first: PageNo(lo), pages, kind: extent.kind })
            })
            .collect()
    }

    /// Makes the whole range `kind`, or free.
    pub(crate) fn set(&mut self, first: PageNo, pages: usize, kind: Option<Kind>) {
        let (start, end) = (first.0, first.0 + pages as u32);
        self.cut(start);
        self.cut(end);
        let inside: Vec<u32> = self.taken.range(start..end).map(|(&s, _)| s).collect();
        for start in inside {
            self.taken.remove(&start);
        }
        match kind {
            Some(kind) => {
                self.taken.insert(start, Extent { pages: end - start, kind });
                self.join(start);
                self.join(end);
            }
            None => self.lowest_gap = self.lowest_gap.min(start),
        }
    }

    /// Splits the extent that contains `page`, so that an extent starts there.
    fn cut(&mut self, page: u32) {
        let Some((&start, extent)) = self.taken.range_mut(..page).next_back() else { return };
        let end = start + extent.pages;
        if end > page {
            extent.pages = page - start;
            let kind = extent.kind;
            self.taken.insert(page, Extent { pages: end - page, kind });
        }
    }

    /// Joins the extent that starts at `page` with the one before it, if they are equal.
    fn join(&mut self, page: u32) {
        let Some(&second) = self.taken.get(&page) else { return };
        let Some((&start, first)) = self.taken.range_mut(..page).next_back() else { return };
        if start + first.pages == page && first.kind == second.kind && second.kind != Kind::Leaving
        {
            first.pages += second.pages;
            self.taken.remove(&page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORMAL: Option<Kind> = Some(Kind::Mapped(Pattern::Normal));

    fn take(ranges: &mut Ranges, pages: usize, align_pages: usize) -> Option<PageNo> {
        ranges.take(Half::Lower, pages, align_pages)
    }

    #[test]
    fn the_lowest_gap_that_fits_is_taken() {
        let mut ranges = Ranges::new(100);
        let a = take(&mut ranges, 10, 1).unwrap();
        let b = take(&mut ranges, 10, 1);
        assert_eq!((a, b), (PageNo(0), Some(PageNo(10))));
        ranges.set(a, 10, None);
        assert_eq!(take(&mut ranges, 11, 1), Some(PageNo(20)));
        assert_eq!(take(&mut ranges, 4, 4), Some(PageNo(0)));
        assert_eq!(take(&mut ranges, 4, 8), Some(PageNo(32)));
        assert_eq!(take(&mut ranges, 100, 1), None);
    }

    #[test]
    fn equal_neighbours_that_became_one_are_not_taken_again() {
        let mut ranges = Ranges::new(100);
        let taken: Vec<_> = (0..5).map(|_| take(&mut ranges, 10, 1).unwrap().0).collect();
        assert_eq!(taken, [0, 10, 20, 30, 40]);
    }

    #[test]
    fn each_half_has_its_own_gaps() {
        let mut ranges = Ranges::new(100);
        assert_eq!(ranges.take(Half::Upper, 1, 1), None, "it is not divided");
        assert!(ranges.divide(PageNo(50)));
        assert_eq!(ranges.take(Half::Upper, 30, 1), Some(PageNo(50)));
        assert_eq!(ranges.take(Half::Upper, 30, 1), None);
        assert_eq!(take(&mut ranges, 50, 1), None, "one page lies between them");
        assert_eq!(take(&mut ranges, 49, 1), Some(PageNo(0)));
        ranges.set(PageNo(60), 5, None);
        assert_eq!(ranges.take(Half::Upper, 5, 1), Some(PageNo(60)));
    }

    #[test]
    fn unmapping_the_middle_leaves_both_ends() {
        let mut ranges = Ranges::new(100);
        take(&mut ranges, 30, 1).unwrap();
        ranges.set(PageNo(10), 5, Some(Kind::Leaving));
        assert_eq!(ranges.span(PageNo(9)), 1);
        assert_eq!(ranges.span(PageNo(10)), 0);
        assert_eq!(ranges.span(PageNo(15)), 15);
        ranges.set(PageNo(10), 5, NORMAL);
        assert_eq!(ranges.span(PageNo(0)), 30);
    }

    #[test]
    fn a_pattern_holds_for_its_range_and_splits_the_mapping() {
        let mut ranges = Ranges::new(100);
        ranges.set(PageNo(0), 30, NORMAL);
        ranges.set(PageNo(10), 5, Some(Kind::Mapped(Pattern::Random)));
        let patterns = [9, 10, 14, 15, 40].map(|page| ranges.pattern(PageNo(page)));
        let (normal, random) = (Pattern::Normal, Pattern::Random);
        assert_eq!(patterns, [normal, random, random, normal, normal]);
        ranges.set(PageNo(10), 5, NORMAL);
        assert_eq!(ranges.span(PageNo(0)), 30);
    }

    #[test]
    fn parts_are_clipped_to_the_range_asked_for() {
        let mut ranges = Ranges::new(100);
        ranges.set(PageNo(10), 10, NORMAL);
        ranges.set(PageNo(20), 10, Some(Kind::Leaving));
        let [first, second] = ranges.parts(PageNo(15), 10)[..] else { panic!("two parts") };
        assert_eq!(first, Part { first: PageNo(15), pages: 5, kind: NORMAL.unwrap() });
        assert_eq!(second, Part { first: PageNo(20), pages: 5, kind: Kind::Leaving });
    }
}
