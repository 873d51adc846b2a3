//! The map of a forked child.
//!
//! Owns: what a child has of its parent's map (rule 12), and which page numbers of the two belong
//! together.

use super::contents::Contents;
use super::{Event, Extent, Extents, PieceSource, SpaceMap};
use crate::Vpn;
use overspill_base::PageNo;
use rangemap::RangeSet;
use std::ops::Range;

/// How much of a place one mapping of a child's covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Covered {
    /// Not even a part.
    Nothing,
    /// A part, or it is not known.
    Part,
    /// All.
    All,
}

/// Pages of a child, and those of its parent that were at the same addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// The parent's first page.
    pub from: PageNo,
    /// The child's.
    pub to: PageNo,
    /// How many.
    pub pages: u32,
}

impl SpaceMap {
    /// Makes the map of a child; this one is as it was when the message of the fork was read.
    /// `later` is what was read since, up to a moment at which nothing was outstanding, and `has`
    /// says what a child, which may run, has of a place now. Where pieces run out the child's pages
    /// are lost.
    pub fn fork(
        &self,
        later: &[Event],
        has: &mut dyn FnMut(&Range<Vpn>) -> Covered,
        source: &mut dyn PieceSource,
    ) -> (Self, Vec<Inherited>) {
        let (mut child, mut inherited) = (Self::new(), Vec::new());
        child.live = Contents { bound: Extents::default(), ..self.live.clone() };
        for extent in self.live.bound.iter() {
            child.inherit(extent, source, &mut inherited);
        }
        for late in self.recent.iter().filter(|late| has(&late.from) == Covered::All) {
            child.drop_gone(&late.to.run(Vpn::pages(&late.from)));
        }
        for event in later {
            if let Event::Remapped { from, to, pages } = event {
                child.moved_meanwhile(from.run(*pages), *to, has);
            }
        }
        (child, inherited)
    }

    /// Leaves out of a copy, which is to become a child's, what that does not have.
    pub fn leave_out(&mut self, place: &Range<Vpn>) {
        self.live.take(place);
    }

    /// A move that was made before the fork, unless the child still has what was moved: then
    /// nobody knows. A child that has neither, because it has unmapped the first since, was forked
    /// before.
    fn moved_meanwhile(
        &mut self,
        from: Range<Vpn>,
        to: Vpn,
        has: &mut dyn FnMut(&Range<Vpn>) -> Covered,
    ) {
        let target = to.run(Vpn::pages(&from));
        if has(&from) == Covered::All {
            return self.drop_gone(&target);
        }
        if has(&target) == Covered::Nothing {
            return;
        }
        let moved = self.live.take(&from).moved(from.start, to);
        let gone = self.live.take(&target);
        self.forget(gone.bound.iter());
        self.live.put(moved);
    }

    fn inherit(
        &mut self,
        extent: Extent,
        source: &mut dyn PieceSource,
        inherited: &mut Vec<Inherited>,
    ) {
        let mut rest = extent.place();
        while !rest.is_empty() {
            let taken = self.numbers.take(rest.start, &rest, source);
            let Some((place, to)) = taken else { return self.live.unmarked.remove(rest) };
            let pages = Vpn::pages(&place) as u32;
            let skipped = (place.start.0 - extent.at.0) as usize;
            inherited.push(Inherited { from: extent.first.plus(skipped), to, pages });
            self.live.bound.bind(Extent { at: place.start, first: to, pages });
            rest.start = place.end;
        }
    }

    /// Gives up what is believed of a child and not among the mappings that it has `registered`.
    /// The list was read while nothing was outstanding.
    pub fn confirm(&mut self, registered: &RangeSet<Vpn>) {
        let believed = self.live.believed.iter();
        let others: Vec<_> = believed.flat_map(|place| registered.gaps(place)).collect();
        for place in others {
            let gone = self.live.take(&place);
            self.forget(gone.bound.iter());
        }
    }
}
