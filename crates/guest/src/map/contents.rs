//! What is known of some addresses: of all, or of what is on its way or in doubt.
//!
//! Invariant: what is bound is believed.

use super::extents::{Extent, Extents};
use super::settle::Pages;
use crate::Vpn;
use overspill_base::PageNo;
use rangemap::RangeSet;
use std::ops::Range;

/// Addresses, and what is known of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    /// The pages of the engine they have.
    pub(super) bound: Extents,
    /// Registered for sure.
    pub(super) believed: RangeSet<Vpn>,
    /// Registered, with whatever was mapped there then, and not believed yet.
    pub(super) doubtful: RangeSet<Vpn>,
    /// Present when their content was being removed, and not seen absent since.
    pub(super) doomed: RangeSet<Vpn>,
    /// Out, and not marked yet.
    pub(super) unmarked: RangeSet<Vpn>,
}

impl Contents {
    fn sets(&mut self) -> [&mut RangeSet<Vpn>; 4] {
        [&mut self.believed, &mut self.doubtful, &mut self.doomed, &mut self.unmarked]
    }

    /// Cuts out what is within `place`.
    pub(super) fn take(&mut self, place: &Range<Vpn>) -> Self {
        let mut taken = Self::default();
        self.bound.unbind(place).into_iter().for_each(|extent| taken.bound.bind(extent));
        for (set, into) in self.sets().into_iter().zip(taken.sets()) {
            into.extend(clip(set, place));
            set.remove(place.clone());
        }
        taken
    }

    /// Adds what `others` has, at addresses of which nothing is known.
    pub(super) fn put(&mut self, mut others: Self) {
        others.bound.iter().for_each(|extent| self.bound.bind(extent));
        for (set, other) in self.sets().into_iter().zip(others.sets()) {
            set.extend(std::mem::take(other));
        }
    }

    /// Unbinds what is out and not marked within `place`.
    pub(super) fn drop_unmarked(&mut self, place: &Range<Vpn>) -> Vec<Extent> {
        let unmarked: Vec<_> = clip(&self.unmarked, place).collect();
        self.unmarked.remove(place.clone());
        unmarked.iter().flat_map(|place| self.bound.unbind(place)).collect()
    }

    /// Returns the same at the addresses that the way from `from` to `to` leads to.
    pub(super) fn moved(mut self, from: Vpn, to: Vpn) -> Self {
        let shift = |vpn: Vpn| Vpn(to.0 + (vpn.0 - from.0));
        for set in self.sets() {
            let moved = std::mem::take(set).into_iter().map(|p| shift(p.start)..shift(p.end));
            *set = moved.collect();
        }
        let mut bound = Extents::default();
        for extent in self.bound.iter() {
            bound.bind(Extent { at: shift(extent.at), ..extent });
        }
        Self { bound, ..self }
    }

    /// True if something in `place` is registered, as far as is known.
    pub(super) fn knows(&self, place: &Range<Vpn>) -> bool {
        self.believed.overlaps(place) || self.doubtful.overlaps(place)
    }

    /// True if some of it is still where it was, given what is there.
    pub(super) fn is_kept(&self, pages: Pages) -> bool {
        pages.present || pages.marked || !self.unmarked.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.believed.is_empty() && self.doubtful.is_empty()
    }

    pub(super) fn has(&self, page: PageNo) -> bool {
        self.bound.address_of(page).is_some()
    }
}

/// Iterates over the parts of a set within `place`.
pub(super) fn clip(set: &RangeSet<Vpn>, place: &Range<Vpn>) -> impl Iterator<Item = Range<Vpn>> {
    let place = place.clone();
    let overlapping = set.overlapping(place.clone());
    overlapping.map(move |range| range.start.max(place.start)..range.end.min(place.end))
}
