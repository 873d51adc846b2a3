//! What is known of a range of addresses, taken out of the map as one thing.

use super::extents::Extent;
use crate::Vpn;
use overspill_base::PageNo;
use rangemap::RangeSet;
use std::ops::Range;

/// Pages on their way, or in doubt.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub(super) bound: Vec<Extent>,
    pub(super) believed: Vec<Range<Vpn>>,
    pub(super) doubtful: Vec<Range<Vpn>>,
    pub(super) doomed: Vec<Range<Vpn>>,
}

impl Contents {
    /// Returns the same at the addresses that the way from `from` to `to` leads to.
    pub(super) fn moved(self, from: Vpn, to: Vpn) -> Self {
        let shift = |place: Range<Vpn>| {
            Vpn(to.0 + (place.start.0 - from.0))..Vpn(to.0 + (place.end.0 - from.0))
        };
        Self {
            bound: self.bound.into_iter().map(|extent| extent.moved(from, to)).collect(),
            believed: self.believed.into_iter().map(shift).collect(),
            doubtful: self.doubtful.into_iter().map(shift).collect(),
            doomed: self.doomed.into_iter().map(shift).collect(),
        }
    }

    /// Cuts out what is within `place`.
    pub(super) fn take(&mut self, place: &Range<Vpn>) -> Self {
        Self {
            bound: self.take_bound(place),
            believed: cut(&mut self.believed, place),
            doubtful: cut(&mut self.doubtful, place),
            doomed: cut(&mut self.doomed, place),
        }
    }

    /// Cuts out the pages within `place`, without what is known of the place.
    pub(super) fn take_bound(&mut self, place: &Range<Vpn>) -> Vec<Extent> {
        let (inside, outside) = split(std::mem::take(&mut self.bound), place);
        self.bound = outside;
        inside
    }

    pub(super) fn is_empty(&self) -> bool {
        self.believed.is_empty() && self.doubtful.is_empty()
    }

    pub(super) fn has(&self, page: PageNo) -> bool {
        self.bound.iter().any(|extent| extent.numbers().contains(&page))
    }
}

/// Splits extents into their parts within `place` and those outside.
fn split(extents: Vec<Extent>, place: &Range<Vpn>) -> (Vec<Extent>, Vec<Extent>) {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for extent in extents {
        let whole = extent.place();
        let parts = [
            (whole.start..whole.end.min(place.start), false),
            (whole.start.max(place.start)..whole.end.min(place.end), true),
            (whole.start.max(place.end)..whole.end, false),
        ];
        for (part, is_inside) in parts.into_iter().filter(|(part, _)| part.start < part.end) {
            let list = if is_inside { &mut inside } else { &mut outside };
            list.push(extent.within(&part));
        }
    }
    (inside, outside)
}

/// Takes what is within `place` out of a list of ranges.
fn cut(list: &mut Vec<Range<Vpn>>, place: &Range<Vpn>) -> Vec<Range<Vpn>> {
    let mut rest: RangeSet<Vpn> = list.drain(..).collect();
    let inside = clip(&rest, place).collect();
    if !place.is_empty() {
        rest.remove(place.clone());
    }
    list.extend(rest);
    inside
}

/// Iterates over the parts of a set within `place`.
pub(super) fn clip(set: &RangeSet<Vpn>, place: &Range<Vpn>) -> impl Iterator<Item = Range<Vpn>> {
    let place = place.clone();
    let overlapping = (!place.is_empty()).then(|| set.overlapping(place.clone()));
    overlapping
        .into_iter()
        .flatten()
        .map(move |range| range.start.max(place.start)..range.end.min(place.end))
}
