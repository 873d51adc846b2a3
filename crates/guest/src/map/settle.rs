//! What a quiescent guest settles.
//!
//! Owns: the decisions that need a look at the guest itself, by a [`Witness`]. Each step stops
//! when a message is outstanding, and leaves the rest for the next time.

use super::contents::Contents;
use super::{SpaceMap, overlap};
use crate::Vpn;
use overspill_base::PageNo;
use std::collections::HashSet;
use std::ops::Range;

/// What the kernel says about a range now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// One registered mapping covers it, and nothing is outstanding.
    Registered,
    /// None, or several, and nothing is outstanding.
    NotRegistered,
    /// A message is outstanding.
    Changing,
}

/// Looks at the guest while the map decides what was true.
pub trait Witness {
    /// Whether one registered mapping covers `place`.
    fn look(&mut self, place: &Range<Vpn>) -> Look;

    /// What the pages of `place`, which is registered, are. A place that was unmapped and then
    /// taken by a neighbour that grew is registered too, but new.
    fn pages(&mut self, place: &Range<Vpn>) -> Pages;
}

/// What a range has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pages {
    /// Pages in memory.
    pub present: bool,
    /// Marks of pages that are out.
    pub marked: bool,
}

type Places = Vec<Range<Vpn>>;

/// Content that was not found at its place.
#[derive(Clone, Debug)]
pub(super) struct Unkept {
    pub(super) place: Range<Vpn>,
    pub(super) contents: Contents,
}

impl SpaceMap {
    /// True if something is in doubt that a quiescent guest would settle.
    pub fn is_in_doubt(&self) -> bool {
        !(self.limbo.is_empty()
            && self.aside.is_empty()
            && self.ghosts.is_empty()
            && self.recent.is_empty()
            && self.unkept.is_empty()
            && self.removing.is_empty())
    }

    /// Settles what is in doubt, as far as the guest is quiescent now. All messages that could be
    /// read must be applied.
    pub fn settle(&mut self, witness: &mut dyn Witness) {
        let _ = self
            .settle_limbo(witness)
            .and_then(|()| self.settle_ghosts(witness))
            .and_then(|()| self.settle_claims(witness))
            .and_then(|()| self.settle_doubts(witness))
            .and_then(|()| self.settle_moves(witness))
            .and_then(|()| self.settle_removals(witness));
    }

    /// What was being removed is what is there now: no move from there is outstanding.
    fn settle_removals(&mut self, witness: &mut dyn Witness) -> Option<()> {
        if let Some(first) = self.removing.first() {
            is_quiescent(witness, first)?;
        }
        for place in std::mem::take(&mut self.removing) {
            let dropped = self.live.bound.unbind(&place);
            self.forget(dropped);
        }
        Some(())
    }

    /// What waits is put over what is there: all that was to be released has been.
    fn settle_limbo(&mut self, witness: &mut dyn Witness) -> Option<()> {
        if let Some(first) = self.limbo.first() {
            is_quiescent(witness, &first.target)?;
        }
        std::mem::take(&mut self.limbo).into_iter().for_each(|waiting| self.admit(waiting));
        Some(())
    }

    /// What was never unmapped was left mapped.
    fn settle_ghosts(&mut self, witness: &mut dyn Witness) -> Option<()> {
        while let Some(ghost) = self.ghosts.first().cloned() {
            if is_registered(witness, &ghost)? {
                self.live.believed.insert(ghost.clone());
            }
            self.ghosts.remove(ghost);
        }
        self.moves.clear();
        Some(())
    }

    /// What is still there was never unmapped.
    fn settle_claims(&mut self, witness: &mut dyn Witness) -> Option<()> {
        while let Some(claim) = self.aside.last_mut() {
            let Some(place) = claim.believed.first().cloned() else {
                let rest = self.aside.pop().expect("just seen");
                self.live.put(rest);
                continue;
            };
            // Asked before: what is seen while nothing is outstanding later has not moved away.
            let pages = witness.pages(&place);
            let is_registered = is_registered(witness, &place)?;
            let contents = claim.take(&place);
            // What has something else by now was unmapped.
            let is_free = !self.live.believed.overlaps(&place);
            if is_registered && is_free && contents.is_kept(pages) {
                self.live.put(contents);
            } else {
                self.unkept.push(Unkept { place, contents });
            }
        }
        Some(())
    }

    /// What is no longer registered is no longer in doubt.
    fn settle_doubts(&mut self, witness: &mut dyn Witness) -> Option<()> {
        for place in self.live.doubtful.iter().cloned().collect::<Vec<_>>() {
            if !is_registered(witness, &place)? {
                self.live.doubtful.remove(place);
            }
        }
        Some(())
    }

    /// Rule 9: content that a message took along from a place that had grown into another's is
    /// found by its marks, if it can be nothing else's.
    fn settle_moves(&mut self, witness: &mut dyn Witness) -> Option<()> {
        if !self.recent.is_empty() {
            let (missing, misplaced) = self.look_along_moves(witness)?;
            for place in misplaced {
                let contents = self.live.take(&place);
                self.live.believed.insert(place.clone());
                self.unkept.push(Unkept { place, contents });
            }
            if let ([there], [Unkept { place: here, .. }]) = (&*missing, &*self.unkept)
                && Vpn::pages(there) == Vpn::pages(here)
            {
                let Unkept { place, contents } = self.unkept.remove(0);
                self.live.put(contents.moved(place.start, there.start));
            }
        }
        self.recent.clear();
        for Unkept { contents, .. } in std::mem::take(&mut self.unkept) {
            self.forget(contents.bound.iter());
        }
        Some(())
    }

    /// Returns the places of recent moves that have marks but no content in the map, and those that
    /// have content but no marks.
    fn look_along_moves(&self, witness: &mut dyn Witness) -> Option<(Places, Places)> {
        let places =
            self.recent.iter().flat_map(|m| [m.from.clone(), m.to.run(Vpn::pages(&m.from))]);
        let (mut missing, mut misplaced) = (Vec::new(), Vec::new());
        for place in places.collect::<HashSet<_>>() {
            let has_content = !self.live.bound.is_free(&place);
            let pages = witness.pages(&place);
            if !is_registered(witness, &place)? {
                continue;
            }
            let out = self.live.unmarked.overlaps(&place);
            if has_content && !(pages.present || pages.marked || out) {
                misplaced.push(place);
            } else if !has_content && pages.marked {
                missing.push(place);
            }
        }
        Some((missing, misplaced))
    }

    /// True if it is in doubt whether something in `place` was unmapped.
    pub(super) fn is_claimed(&self, place: &Range<Vpn>) -> bool {
        self.aside.iter().any(|claim| claim.knows(place))
            || self.unkept.iter().any(|unkept| overlap(&unkept.place, place))
    }

    /// True if a page's content is in doubt.
    pub(super) fn is_in_question(&self, page: PageNo) -> bool {
        let unkept = self.unkept.iter().map(|unkept| &unkept.contents);
        self.aside.iter().chain(unkept).any(|contents| contents.has(page))
    }
}

/// `None` if a message is outstanding; any place will do.
fn is_quiescent(witness: &mut dyn Witness, place: &Range<Vpn>) -> Option<()> {
    (witness.look(place) != Look::Changing).then_some(())
}

/// Whether all of `place` is registered, by several mappings perhaps: a part may have got another
/// protection, which makes no message. `None` if the guest is changing.
fn is_registered(witness: &mut dyn Witness, place: &Range<Vpn>) -> Option<bool> {
    match witness.look(place) {
        Look::Changing => None,
        Look::Registered => Some(true),
        Look::NotRegistered if Vpn::pages(place) <= 1 => Some(false),
        Look::NotRegistered => {
            let middle = place.start.plus(Vpn::pages(place) / 2);
            let is_start = is_registered(witness, &(place.start..middle))?;
            Some(is_start && is_registered(witness, &(middle..place.end))?)
        }
    }
}
