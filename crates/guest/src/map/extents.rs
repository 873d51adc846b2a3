//! Which addresses have which pages of the engine: a map in both directions.
//!
//! Owns: runs of addresses bound to runs of page numbers.
//! Invariants: a page number is bound to one address at most, and an address to one page. Both maps
//! hold the same runs.
//! Rejected: a word for each address beside the engine's word for each page: it would be of the
//! size of what was touched, and a run is not.

use crate::Vpn;
use overspill_base::PageNo;
use std::collections::BTreeMap;
use std::ops::Range;

/// Addresses in order, bound to page numbers in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First address.
    pub at: Vpn,
    /// Its page number.
    pub first: PageNo,
    /// Pages.
    pub pages: u32,
}

impl Extent {
    /// Returns its addresses.
    pub fn place(&self) -> Range<Vpn> {
        self.at.run(u64::from(self.pages))
    }

    /// Returns its page numbers.
    pub fn numbers(&self) -> Range<PageNo> {
        self.first..self.first.plus(self.pages as usize)
    }

    /// Returns the part of it within `place`, which it overlaps.
    fn within(&self, place: &Range<Vpn>) -> Self {
        let start = self.at.max(place.start);
        let end = self.place().end.min(place.end);
        let skipped = (start.0 - self.at.0) as usize;
        Self { at: start, first: self.first.plus(skipped), pages: (end.0 - start.0) as u32 }
    }

    fn joins(&self, next: &Self) -> bool {
        self.place().end == next.at && self.numbers().end == next.first
    }
}

/// The map.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    by_address: BTreeMap<Vpn, Extent>,
    by_number: BTreeMap<PageNo, Extent>,
}

impl Extents {
    /// Returns the page at an address.
    pub fn page_at(&self, at: Vpn) -> Option<PageNo> {
        self.run_at(at).map(|run| run.first)
    }

    /// Returns the rest of the extent that an address is in, from there on.
    pub fn run_at(&self, at: Vpn) -> Option<Extent> {
        let (_, extent) = self.by_address.range(..=at).next_back()?;
        let rest = at..extent.place().end;
        (!rest.is_empty()).then(|| extent.within(&rest))
    }

    /// Returns the address of a page.
    pub fn address_of(&self, page: PageNo) -> Option<Vpn> {
        let (_, extent) = self.by_number.range(..=page).next_back()?;
        let at = extent.at.plus(u64::from(page.0 - extent.first.0));
        extent.numbers().contains(&page).then_some(at)
    }

    /// Iterates over what is bound within `place`, cut at its borders, in the order of addresses.
    pub fn within(&self, place: Range<Vpn>) -> impl Iterator<Item = Extent> {
        let before = self.by_address.range(..place.start).next_back();
        let inside = self.by_address.range(place.start..place.end.max(place.start));
        let all = before.into_iter().chain(inside).map(|(_, extent)| *extent);
        all.filter_map(move |extent| {
            let reaches = extent.place().end > place.start && !place.is_empty();
            reaches.then(|| extent.within(&place))
        })
    }

    /// True if nothing is bound within `place`.
    pub fn is_free(&self, place: &Range<Vpn>) -> bool {
        self.within(place.clone()).next().is_none()
    }

    /// Binds addresses that have no pages to pages that have no addresses.
    ///
    /// # Panics
    /// In debug builds, if one of them has.
    pub fn bind(&mut self, extent: Extent) {
        debug_assert!(self.is_free(&extent.place()), "{extent:?} is bound already");
        let mut whole = extent;
        if let Some((_, &before)) = self.by_address.range(..extent.at).next_back()
            && before.joins(&whole)
        {
            self.erase(&before);
            whole = Extent { pages: before.pages + whole.pages, ..before };
        }
        if let Some((_, &after)) = self.by_address.range(extent.at..).next()
            && whole.joins(&after)
        {
            self.erase(&after);
            whole.pages += after.pages;
        }
        self.enter(whole);
    }

    /// Unbinds what is within `place`, and returns it in the order of addresses.
    pub fn unbind(&mut self, place: &Range<Vpn>) -> Vec<Extent> {
        let bound: Vec<Extent> = self.within(place.clone()).collect();
        for part in &bound {
            let whole = *self.by_address.range(..=part.at).next_back().expect("just seen").1;
            self.erase(&whole);
            let (left, right) = (whole.at..part.at, part.place().end..whole.place().end);
            for rest in [left, right].iter().filter(|rest| !rest.is_empty()) {
                self.enter(whole.within(rest));
            }
        }
        bound
    }

    /// Iterates over all, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_address.values().copied()
    }

    /// Returns all, in the order of addresses.
    pub fn into_vec(self) -> Vec<Extent> {
        self.by_address.into_values().collect()
    }

    fn enter(&mut self, extent: Extent) {
        self.by_address.insert(extent.at, extent);
        self.by_number.insert(extent.first, extent);
    }

    fn erase(&mut self, extent: &Extent) {
        self.by_address.remove(&extent.at);
        self.by_number.remove(&extent.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn extent(at: u64, first: u32, pages: u32) -> Extent {
        Extent { at: Vpn(at), first: PageNo(first), pages }
    }

    #[test]
    fn neighbours_in_both_orders_are_one_extent() {
        let mut map = Extents::default();
        map.bind(extent(10, 0, 2));
        map.bind(extent(14, 4, 2));
        map.bind(extent(12, 2, 2));
        assert_eq!(map.iter().collect::<Vec<_>>(), [extent(10, 0, 6)]);
        // Neighbours by address only.
        map.bind(extent(16, 100, 1));
        assert_eq!(map.iter().count(), 2);
    }

    #[test]
    fn what_is_cut_out_of_the_middle_leaves_both_ends() {
        let mut map = Extents::default();
        map.bind(extent(10, 0, 6));
        assert_eq!(map.unbind(&(Vpn(12)..Vpn(13))), [extent(12, 2, 1)]);
        assert_eq!(map.address_of(PageNo(2)), None);
        assert_eq!(map.address_of(PageNo(3)), Some(Vpn(13)));
        assert_eq!(map.page_at(Vpn(11)), Some(PageNo(1)));
        assert_eq!(map.page_at(Vpn(12)), None);
    }

    /// Against a map page by page: binds and unbinds of up to 8 pages among 64.
    #[test]
    fn does_the_same_as_a_map_of_single_pages() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut map, mut naive) = (Extents::default(), HashMap::new());
        for step in 0..20_000u32 {
            let (at, pages) = (rng.u64(0..64), rng.u64(1..9));
            let place = Vpn(at).run(pages);
            if rng.bool() {
                let unbound = map.unbind(&place);
                let naively = (at..at + pages).filter_map(|at| naive.remove(&at));
                let numbers = unbound.iter().flat_map(|e| e.first.0..e.numbers().end.0);
                assert!(numbers.eq(naively), "{step}");
            } else if map.is_free(&place) {
                // Numbers that follow those before it, sometimes.
                let first = if rng.bool() { at as u32 } else { 1000 + step * 8 };
                if (0..pages as u32).all(|n| map.address_of(PageNo(first + n)).is_none()) {
                    map.bind(extent(at, first, pages as u32));
                    (0..pages)
                        .for_each(|n| assert!(naive.insert(at + n, first + n as u32).is_none()));
                }
            }
            for at in 0..72 {
                let page = map.page_at(Vpn(at));
                assert_eq!(page.map(|page| page.0), naive.get(&at).copied());
                assert!(page.is_none_or(|page| map.address_of(page) == Some(Vpn(at))));
            }
        }
    }
}
