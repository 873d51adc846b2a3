//! Which parts of the reserved range are mapped.
//!
//! Owns: the allocation of address space, first fit from the bottom, and what is mapped where.
//! Invariants: mapped ranges do not overlap, and adjacent equal ones are joined. A range being
//! unmapped ([`Kind::Leaving`]) counts as not mapped for faults and as taken for allocation.
//! Not here: the kernel's view (`memory` changes it under the same lock).

use overspill_base::PageNo;
use overspill_engine::Pattern;
use rustix::mm::MprotectFlags;
use std::collections::{BTreeMap, BTreeSet};

/// How a program may access a range.
pub type Protection = MprotectFlags;

/// The reservation's own protection.
pub(crate) const PLAIN: Protection = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// What is mapped in a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Managed memory with this protection and expected access pattern.
    Managed(Protection, Pattern),
    /// A mapping of another kind that the program made here (a file, shared memory).
    Foreign,
    /// Being unmapped.
    Leaving,
}

impl Kind {
    /// True if reads, or writes, are allowed, as far as is known here.
    /// Whatever may be written or executed can be read.
    pub fn permits(self, write: bool) -> bool {
        match self {
            Self::Managed(protection, _) if write => protection.contains(MprotectFlags::WRITE),
            Self::Managed(protection, _) => !protection.is_empty(),
            Self::Foreign => true,
            Self::Leaving => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    pages: u32,
    kind: Kind,
}

/// A range of pages and what is mapped there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// First page.
    pub first: PageNo,
    /// Pages.
    pub pages: usize,
    /// What is mapped there.
    pub kind: Kind,
}

/// The map of the reserved range.
#[derive(Debug)]
pub struct Ranges {
    pages: u32,
    taken: BTreeMap<u32, Extent>,
    /// Sum of all extents.
    taken_pages: u32,
    /// How many pages may be taken, by the limits of the process.
    limit_pages: u32,
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
    pub fn new(pages: usize) -> Self {
        Self {
            pages: pages as u32,
            taken: BTreeMap::new(),
            taken_pages: 0,
            limit_pages: pages as u32,
            lowest_gap: 0,
            upper: None,
            refused: BTreeSet::new(),
            dumped: BTreeSet::new(),
        }
    }

    /// Finds `pages` free pages at a multiple of `align_pages`, and takes them. Once the map is
    /// divided, they are in its lower part.
    pub fn take(&mut self, pages: usize, align_pages: usize, kind: Kind) -> Option<PageNo> {
        // The page between the parts stays free, so that no mapping crosses the border.
        let end = self.upper.map_or(self.pages, |upper| upper - 1);
        let first = self.find(u32::try_from(pages).ok()?, align_pages as u32, end)?;
        self.set(PageNo(first), pages, Some(kind));
        Some(PageNo(first))
    }

    /// Sets how many pages may be taken; more may be already.
    pub fn limit(&mut self, pages: usize) {
        self.limit_pages = self.pages.min(u32::try_from(pages).unwrap_or(u32::MAX));
    }

    /// True if the limit allows that many more pages.
    pub fn allow(&self, more_pages: usize) -> bool {
        self.taken_pages as usize + more_pages <= self.limit_pages as usize
    }

    /// Makes the pages from `upper` on a separate part. False if something is mapped there.
    pub fn divide(&mut self, upper: PageNo) -> bool {
        let free = self.parts(PageNo(upper.0 - 1), (self.pages - upper.0) as usize + 1).is_empty();
        if free {
            self.upper = Some(upper.0);
        }
        free || self.upper == Some(upper.0)
    }

    /// As [`take`](Self::take), in the upper part.
    pub fn take_upper(&mut self, pages: usize, align_pages: usize, kind: Kind) -> Option<PageNo> {
        let pages = u32::try_from(pages).ok()?;
        let mut first = self.upper?;
        for (&start, extent) in self.taken.range(first..) {
            if first.checked_add(pages).is_some_and(|end| end <= start) {
                break;
            }
            first = (start + extent.pages).checked_next_multiple_of(align_pages as u32)?;
        }
        if first.checked_add(pages).is_none_or(|end| end > self.pages) {
            return None;
        }
        self.set(PageNo(first), pages as usize, Some(kind));
        Some(PageNo(first))
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

    /// Number of pages from `page` to the end of its managed mapping; 0 if it is not mapped.
    pub fn span(&self, page: PageNo) -> usize {
        match self.at(page) {
            Some((end, Kind::Managed(..))) => (end - page.0) as usize,
            _ => 0,
        }
    }

    /// The access pattern advised for the range around `page`.
    pub fn pattern(&self, page: PageNo) -> Pattern {
        match self.at(page) {
            Some((_, Kind::Managed(_, pattern))) => pattern,
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
    pub fn refuse(&mut self, page: PageNo) {
        self.refused.insert(page.0);
    }

    /// Removes and returns the inaccessible pages of a range.
    pub fn take_refused(&mut self, first: PageNo, pages: usize) -> Vec<PageNo> {
        let inside = first.0..first.0 + pages as u32;
        self.refused.extract_if(inside, |_| true).map(PageNo).collect()
    }

    /// What is mapped in a range, without gaps.
    pub fn parts(&self, first: PageNo, pages: usize) -> Vec<Part> {
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

    /// True if a page is managed memory that an instruction may touch in this way.
    pub fn permits_touch(&self, page: PageNo, touch: Protection) -> bool {
        let allowed = match self.at(page) {
            Some((_, Kind::Managed(allowed, _))) if !self.refused.contains(&page.0) => allowed,
            _ => return false,
        };
        // Whatever may be written or executed can be read.
        if touch == Protection::READ { !allowed.is_empty() } else { allowed.contains(touch) }
    }

    /// Returns how many pages from `first` on, at most `pages`, allow reads, or writes: what a
    /// system call that goes from byte to byte would touch.
    pub fn permitted(&self, first: PageNo, pages: usize, write: bool) -> usize {
        let end = first.0.saturating_add(u32::try_from(pages).unwrap_or(u32::MAX));
        let mut at = first.0;
        while at < end
            && let Some((to, _)) = self.at(PageNo(at)).filter(|(_, kind)| kind.permits(write))
        {
            at = to.min(end);
        }
        let refused = self.refused.range(first.0..at).next();
        (refused.copied().unwrap_or(at) - first.0) as usize
    }

    /// True if every page of the range is managed memory.
    pub fn is_managed(&self, first: PageNo, pages: usize) -> bool {
        let managed = |part: &Part| matches!(part.kind, Kind::Managed(..));
        let parts = self.parts(first, pages);
        parts.iter().all(managed) && parts.iter().map(|p| p.pages).sum::<usize>() == pages
    }

    /// Makes the whole range `kind`, or free.
    pub fn set(&mut self, first: PageNo, pages: usize, kind: Option<Kind>) {
        let (start, end) = (first.0, first.0 + pages as u32);
        self.cut(start);
        self.cut(end);
        let inside: Vec<u32> = self.taken.range(start..end).map(|(&s, _)| s).collect();
        for start in inside {
            self.taken_pages -= self.taken.remove(&start).map_or(0, |extent| extent.pages);
        }
        match kind {
            Some(kind) => {
                self.taken.insert(start, Extent { pages: end - start, kind });
                self.taken_pages += end - start;
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

    const MANAGED: Kind = Kind::Managed(PLAIN, Pattern::Normal);

    #[test]
    fn the_lowest_gap_that_fits_is_taken() {
        let mut ranges = Ranges::new(100);
        let a = ranges.take(10, 1, MANAGED).unwrap();
        let b = ranges.take(10, 1, Kind::Foreign).unwrap();
        assert_eq!((a, b), (PageNo(0), PageNo(10)));
        ranges.set(a, 10, None);
        assert_eq!(ranges.take(11, 1, MANAGED), Some(PageNo(20)));
        assert_eq!(ranges.take(4, 4, MANAGED), Some(PageNo(0)));
        assert_eq!(ranges.take(4, 8, MANAGED), Some(PageNo(32)));
        assert_eq!(ranges.take(100, 1, MANAGED), None);
    }

    #[test]
    fn equal_neighbours_that_became_one_are_not_taken_again() {
        let mut ranges = Ranges::new(100);
        let taken: Vec<_> = (0..5).map(|_| ranges.take(10, 1, MANAGED).unwrap().0).collect();
        assert_eq!(taken, [0, 10, 20, 30, 40]);
    }

    #[test]
    fn unmapping_the_middle_leaves_both_ends() {
        let mut ranges = Ranges::new(100);
        ranges.take(30, 1, MANAGED).unwrap();
        ranges.set(PageNo(10), 5, Some(Kind::Leaving));
        assert_eq!(ranges.span(PageNo(9)), 1);
        assert_eq!(ranges.span(PageNo(10)), 0);
        assert_eq!(ranges.span(PageNo(15)), 15);
        assert!(!ranges.is_managed(PageNo(5), 10) && ranges.is_managed(PageNo(5), 5));
        ranges.set(PageNo(10), 5, Some(MANAGED));
        assert_eq!(ranges.span(PageNo(0)), 30);
    }

    #[test]
    fn a_limit_counts_what_is_taken_however_it_is_cut_and_joined() {
        let mut ranges = Ranges::new(100);
        ranges.limit(50);
        let a = ranges.take(30, 1, MANAGED).unwrap();
        assert!(ranges.allow(20) && !ranges.allow(21));
        ranges.set(a.plus(10), 5, Some(Kind::Leaving));
        ranges.set(a.plus(10), 5, Some(MANAGED));
        ranges.set(a.plus(20), 20, Some(MANAGED));
        assert!(ranges.allow(10) && !ranges.allow(11));
        ranges.set(a, 15, None);
        assert!(ranges.allow(25) && !ranges.allow(26));
        ranges.limit(usize::MAX);
        assert!(ranges.allow(75) && !ranges.allow(76));
    }

    #[test]
    fn a_pattern_holds_for_its_range_and_splits_the_mapping() {
        let mut ranges = Ranges::new(100);
        ranges.set(PageNo(0), 30, Some(MANAGED));
        ranges.set(PageNo(10), 5, Some(Kind::Managed(PLAIN, Pattern::Random)));
        let patterns = [9, 10, 14, 15, 40].map(|page| ranges.pattern(PageNo(page)));
        let (normal, random) = (Pattern::Normal, Pattern::Random);
        assert_eq!(patterns, [normal, random, random, normal, normal]);
        assert!(ranges.is_managed(PageNo(0), 30));
        ranges.set(PageNo(10), 5, Some(MANAGED));
        assert_eq!(ranges.span(PageNo(0)), 30);
    }

    #[test]
    fn parts_are_clipped_to_the_range_asked_for() {
        let mut ranges = Ranges::new(100);
        ranges.set(PageNo(10), 10, Some(MANAGED));
        ranges.set(PageNo(20), 10, Some(Kind::Foreign));
        let parts = ranges.parts(PageNo(15), 10);
        assert_eq!(parts[0], Part { first: PageNo(15), pages: 5, kind: MANAGED });
        assert_eq!(parts[1], Part { first: PageNo(20), pages: 5, kind: Kind::Foreign });
    }
}
