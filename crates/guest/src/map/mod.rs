//! The map of a guest's addresses: what a keeper may believe about an address space that changes
//! under it.
//!
//! Owns: which addresses are registered for sure, which pages of the engine they have, and the
//! rules by which messages that come late are applied. The kernel changes an address space under a
//! lock of its own and queues the message afterwards; two threads' messages may be queued in the
//! other order than their changes. What is believed here is right whenever the guest is
//! *quiescent*: no operation that makes a message is between its start and the reading of it. The
//! kernel says when that is ([`Look`]).
//!
//! The rules (numbers in brackets are used in the code):
//!
//! 1. \[one owner\] Whoever holds the map exclusively reads one message and applies it before
//!    anything else is done in this space. A longer read goes on while the thread that it has woken
//!    queues its next message, and takes that too.
//! 2. \[no reading amid moves\] While the agent moves pages out, no message is read: an unread one
//!    keeps the kernel from moving what is mapped there next.
//! 3. \[ghosts\] The place that a `Remapped` left is a ghost until its `Unmapped` is read, or
//!    until the guest is quiescent; then it was left mapped (`MREMAP_DONTUNMAP`), and is empty.
//! 4. \[limbo\] A `Remapped` onto a place that is occupied, or a ghost, waits until that was
//!    released. What it moves leaves the map at once: the `Unmapped` of where it was may be read
//!    first.
//! 5. \[hold\] While one waits, all threads are held ([`SpaceMap::must_hold_threads`]): who made it
//!    still sits in the kernel, and nobody makes another one. The sequence of three would not say
//!    whose content is where.
//! 6. \[claims\] Since Linux 6.12 `Unmapped` is a claim: a `mmap(MAP_FIXED)` that fails sends it as
//!    well. What was there is set aside until the guest is quiescent, and put back if it is still
//!    there; meanwhile the place is occupied.
//! 7. \[growth\] Growth has no message. An address that is not believed is answered by zeros,
//!    which the kernel only takes where it is registered, new and empty; content never goes there.
//! 8. \[doomed\] `Removed` comes before the pages are dropped. Those that were present then are
//!    not evicted before they were seen absent, or filled anew.
//! 9. \[marks\] Since Linux 6.4 the page table has a mark wherever content is out. It is the truth:
//!    a page that is neither present nor marked is new, whatever the map has for it
//!    ([`SpaceMap::drop_gone`]). The map then errs on one side: it keeps what may be gone, because
//!    a silent growth (7) can bring a message about a place whose former content moved and whose
//!    message is late. Without marks `Removed` drops at once, and that history loses a page.
//! 10. \[belief\] A range is believed when one registered mapping covers it and nothing was
//!     outstanding ([`SpaceMap::believe`]). Only what is believed has pages of the engine.
//! 11. \[old lengths\] Before Linux 6.16 a move that shrinks reports the length before. Its end is
//!     set aside when its source's end is unmapped alone.
//!
//! Invariants ([`SpaceMap::check`]): what is bound is believed; no ghost is; no page number is in
//! two places.
//! Not here: reading messages and acting on them (`keeper`), pages' content (`engine`).
//! Rejected: catching the calls instead, 9 to 27 µs for every call of the program; tables by
//! address, which an `mremap` would rewrite.

mod contents;
mod event;
mod extents;
mod pieces;
#[cfg(test)]
mod tests;

pub use event::Event;
pub use extents::{Extent, Extents};
pub use pieces::{Numbers, PIECE_PAGES, PieceNo, PieceSource};

use crate::Vpn;
use contents::{Contents, clip};
use overspill_base::PageNo;
use rangemap::RangeSet;
use std::collections::HashSet;
use std::ops::Range;

/// What the kernel says about a range now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// One registered mapping covers it, and nothing is outstanding.
    Registered,
    /// Not, and nothing is outstanding.
    NotRegistered,
    /// A message is outstanding.
    Changing,
}

/// Looks at the guest while the map decides what was true.
pub trait Witness {
    /// Whether a registered mapping covers `place`.
    fn look(&mut self, place: &Range<Vpn>) -> Look;

    /// Whether what the map has for `place`, which is registered, is still there. A place that was
    /// unmapped and then taken by a neighbour that grew is registered too, but new.
    fn has_kept(&mut self, place: &Range<Vpn>) -> bool;
}

/// What an address has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtAddress {
    /// This page of the engine.
    Page(PageNo),
    /// It is registered, and has no page yet: [`SpaceMap::bind`].
    Unbound,
    /// Nothing is known, so only zeros may be put there.
    Unknown,
    /// To be asked again when the guest is quiescent.
    Later,
}

/// Where a page of the engine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// At this address.
    At(Vpn),
    /// To be asked again when the guest is quiescent.
    Later,
    /// Nowhere: the guest gave it up. The engine is to discard it.
    Nowhere,
}

/// A `Remapped` that waits for its target.
#[derive(Clone, Debug)]
struct Waiting {
    target: Range<Vpn>,
    contents: Contents,
    /// What was set aside at the source: still in doubt, at the target now.
    claims: Vec<Contents>,
}

/// A move of which the source's `Unmapped` was not read.
#[derive(Clone, Hash, Debug)]
struct Move {
    from: Range<Vpn>,
    to: Vpn,
}

/// In which rules kernels differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelRules {
    /// The page table has marks where content is out (rule 9): Linux 6.4 and later.
    pub has_marks: bool,
    /// Rule 6: Linux 6.12 and later.
    pub unmaps_are_claims: bool,
    /// Rule 11: before Linux 6.16.
    pub has_old_lengths: bool,
}

/// The map of one guest's addresses.
#[derive(Clone, Debug, Default)]
pub struct SpaceMap {
    rules: KernelRules,
    bound: Extents,
    believed: RangeSet<Vpn>,
    /// Registered, and not believed yet: whatever was there then.
    doubtful: RangeSet<Vpn>,
    ghosts: RangeSet<Vpn>,
    doomed: RangeSet<Vpn>,
    limbo: Vec<Waiting>,
    aside: Vec<Contents>,
    /// Content that was not found at its place.
    unkept: Vec<(Range<Vpn>, Vec<Extent>)>,
    moves: Vec<Move>,
    /// All moves since the guest was last seen quiescent.
    recent: Vec<Move>,
    numbers: Numbers,
    /// Where content was removed, and has not been looked for since.
    unsure: RangeSet<Vpn>,
    /// Numbers that no address has any more, and that the engine was not told of.
    forgotten: Vec<Range<PageNo>>,
}

impl SpaceMap {
    /// Makes the map of a guest of which nothing is known.
    pub fn new(rules: KernelRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Applies the message just read.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Unmapped(place) => self.unmapped(place),
            Event::Remapped { from, to, pages } => self.remapped(from.run(*pages), *to),
            Event::Removed(place) => self.removed(place),
        }
    }

    fn unmapped(&mut self, place: &Range<Vpn>) {
        if self.rules.has_old_lengths {
            self.shrink_moves(place);
        }
        let unmapped = self.take(place);
        if !self.rules.unmaps_are_claims {
            self.forget(unmapped.bound);
        } else if !unmapped.is_empty() {
            self.aside.push(unmapped);
        }
        self.ghosts.remove(place.clone());
        self.admit_waiting();
    }

    /// Rule 11: the end of a source is unmapped while its start is a ghost.
    fn shrink_moves(&mut self, place: &Range<Vpn>) {
        let moves = std::mem::take(&mut self.moves);
        for Move { from, to } in moves {
            let cut = place.start.max(from.start)..place.end.min(from.end);
            if cut.is_empty() {
                self.moves.push(Move { from, to });
            } else if cut.start > from.start && cut.end == from.end {
                let end = Vpn(to.0 + (cut.start.0 - from.start.0))..to.plus(pages(&from));
                self.set_aside(&end);
                self.moves.push(Move { from: from.start..cut.start, to });
            }
        }
    }

    /// Sets aside what a move brought to `place`.
    fn set_aside(&mut self, place: &Range<Vpn>) {
        let waiting = self.limbo.iter_mut().find(|waiting| waiting.target.end == place.end);
        let contents = match waiting {
            Some(waiting) => {
                waiting.target.end = place.start;
                waiting.contents.take(place)
            }
            None => self.take(place),
        };
        if !contents.is_empty() {
            self.aside.push(contents);
        }
    }

    fn remapped(&mut self, from: Range<Vpn>, to: Vpn) {
        let target = to.run(pages(&from));
        let contents = self.take_source(&from).moved(from.start, to);
        let claims = self.aside.iter_mut().map(|claim| claim.take(&from).moved(from.start, to));
        let claims = claims.filter(|claim| !claim.is_empty()).collect();
        self.aside.retain(|claim| !claim.is_empty());
        self.ghosts.insert(from.clone());
        self.moves.push(Move { from: from.clone(), to });
        self.recent.push(Move { from, to });
        self.limbo.push(Waiting { target, contents, claims });
        self.admit_waiting();
    }

    /// Takes out what a move took along: of the map or, if nothing is there, of a move that waits.
    fn take_source(&mut self, from: &Range<Vpn>) -> Contents {
        let is_known = self.is_known(from) || self.is_claimed(from);
        let mut waiting = self.limbo.iter_mut().rev();
        match waiting.find(|waiting| !is_known && overlap(&waiting.target, from)) {
            Some(waiting) => waiting.contents.take(from),
            None => self.take(from),
        }
    }

    fn removed(&mut self, place: &Range<Vpn>) {
        if self.rules.has_marks {
            return self.unsure.insert(place.clone());
        }
        let limbo =
            self.limbo.iter_mut().flat_map(|w| w.claims.iter_mut().chain([&mut w.contents]));
        let mut dropped = self.bound.unbind(place);
        for contents in limbo.chain(&mut self.aside) {
            dropped.extend(contents.take_bound(place));
        }
        self.forget(dropped);
    }

    /// Takes the ranges where content was removed: what is neither present nor marked there is to
    /// be dropped by [`drop_gone`](Self::drop_gone).
    pub fn take_unsure(&mut self) -> RangeSet<Vpn> {
        std::mem::take(&mut self.unsure)
    }

    /// Drops what the map has for addresses that were seen neither present nor marked.
    pub fn drop_gone(&mut self, place: &Range<Vpn>) {
        let gone = self.bound.unbind(place);
        self.forget(gone);
        self.doomed.remove(place.clone());
    }

    /// Marks pages that were present when a [`Event::Removed`] was read (rule 8).
    pub fn doom(&mut self, present: Range<Vpn>) {
        self.doomed.insert(present);
    }

    /// Ends rule 8 for pages that were filled by a call that fails on present ones.
    pub fn seen_new(&mut self, place: Range<Vpn>) {
        self.doomed.remove(place);
    }

    /// Iterates over the parts of `place` that are doomed.
    pub fn doomed(&self, place: &Range<Vpn>) -> impl Iterator<Item = Range<Vpn>> {
        clip(&self.doomed, place)
    }

    /// True while all threads of the guest are to be held (rule 5).
    pub fn must_hold_threads(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// True if something is in doubt that a quiescent guest would settle.
    pub fn is_in_doubt(&self) -> bool {
        let is_settled = self.limbo.is_empty() && self.aside.is_empty() && self.ghosts.is_empty();
        !is_settled || !self.recent.is_empty() || !self.unkept.is_empty()
    }

    /// Settles what is in doubt, as far as the guest is quiescent now. All messages that could be
    /// read must be applied.
    pub fn settle(&mut self, witness: &mut dyn Witness) {
        if !self.limbo.is_empty() && witness.look(&self.limbo[0].target) == Look::Changing {
            return;
        }
        std::mem::take(&mut self.limbo).into_iter().for_each(|waiting| self.admit(waiting));
        let _ = self
            .settle_ghosts(witness)
            .and_then(|()| self.settle_claims(witness))
            .and_then(|()| self.settle_doubts(witness))
            .and_then(|()| self.settle_moves(witness));
    }

    /// What is no longer registered is no longer in doubt. `None` if the guest is changing.
    fn settle_doubts(&mut self, witness: &mut dyn Witness) -> Option<()> {
        for place in self.doubtful.iter().cloned().collect::<Vec<_>>() {
            match witness.look(&place) {
                Look::Changing => return None,
                Look::Registered => {}
                Look::NotRegistered => self.doubtful.remove(place),
            }
        }
        Some(())
    }

    /// `None` if the guest is changing.
    fn settle_ghosts(&mut self, witness: &mut dyn Witness) -> Option<()> {
        while let Some(ghost) = self.ghosts.first().cloned() {
            match witness.look(&ghost) {
                Look::Changing => return None,
                Look::Registered => self.believed.insert(ghost.clone()),
                Look::NotRegistered => {}
            }
            self.ghosts.remove(ghost);
        }
        self.moves.clear();
        Some(())
    }

    fn settle_claims(&mut self, witness: &mut dyn Witness) -> Option<()> {
        while let Some(mut claim) = self.aside.pop() {
            while let Some(place) = claim.believed.last().cloned() {
                let look = witness.look(&place);
                if look == Look::Changing {
                    self.aside.push(claim);
                    return None;
                }
                let part = claim.take(&place);
                if look == Look::Registered && witness.has_kept(&place) {
                    self.put(part);
                } else {
                    self.unkept.push((place, part.bound));
                }
            }
            claim.doubtful.drain(..).for_each(|place| self.doubtful.insert(place));
        }
        Some(())
    }

    /// Rule 9: content that a message took along from a place that had grown into another's is
    /// found by its marks, if it can be nothing else's. `None` if the guest is changing.
    fn settle_moves(&mut self, witness: &mut dyn Witness) -> Option<()> {
        if self.rules.has_marks && !self.recent.is_empty() {
            let (missing, misplaced) = self.look_along_moves(witness)?;
            for place in misplaced {
                let bound = self.bound.unbind(&place);
                self.unkept.push((place, bound));
            }
            if let ([there], [(here, _)]) = (&*missing, &*self.unkept)
                && pages(there) == pages(here)
            {
                let (here, lost) = self.unkept.remove(0);
                self.believed.insert(there.clone());
                lost.into_iter().for_each(|e| self.bound.bind(e.moved(here.start, there.start)));
            }
        }
        self.recent.clear();
        for (_, bound) in std::mem::take(&mut self.unkept) {
            self.forget(bound);
        }
        Some(())
    }

    /// Returns the places of recent moves that have marks but no content in the map, and those that
    /// have content but no marks.
    fn look_along_moves(
        &self,
        witness: &mut dyn Witness,
    ) -> Option<(Vec<Range<Vpn>>, Vec<Range<Vpn>>)> {
        let places = self.recent.iter().flat_map(|m| [m.from.clone(), m.to.run(pages(&m.from))]);
        let (mut missing, mut misplaced) = (Vec::new(), Vec::new());
        for place in places.collect::<HashSet<_>>() {
            let has_content = !self.bound.is_free(&place);
            match witness.look(&place) {
                Look::Changing => return None,
                Look::Registered if has_content != witness.has_kept(&place) => {
                    (if has_content { &mut misplaced } else { &mut missing }).push(place);
                }
                _ => {}
            }
        }
        Some((missing, misplaced))
    }

    /// Applies the moves that waited for a place that is free now.
    fn admit_waiting(&mut self) {
        while let Some(n) = (0..self.limbo.len()).find(|&n| self.may_enter(n)) {
            let waiting = self.limbo.remove(n);
            self.admit(waiting);
        }
    }

    /// True if the target of the `n`th waiting move is free, also of moves that wait longer.
    fn may_enter(&self, n: usize) -> bool {
        let target = &self.limbo[n].target;
        let is_free = |place: &Range<Vpn>| {
            !self.is_known(place)
                && !self.is_claimed(place)
                && !self.ghosts.overlaps(place)
                && !self.limbo[..n].iter().any(|before| overlap(&before.target, place))
        };
        target.is_empty() || is_free(target)
    }

    /// True if it is in doubt whether something in `place` was unmapped.
    fn is_claimed(&self, place: &Range<Vpn>) -> bool {
        let mut claimed = self.aside.iter().flat_map(|c| c.believed.iter().chain(&c.doubtful));
        claimed.any(|claimed| overlap(claimed, place))
    }

    /// True if something in `place` is registered, as far as is known.
    fn is_known(&self, place: &Range<Vpn>) -> bool {
        self.believed.overlaps(place) || self.doubtful.overlaps(place)
    }

    /// Puts what was moved at its target, whatever was there: that is gone, and a claim about it
    /// is true.
    fn admit(&mut self, Waiting { target, contents, claims }: Waiting) {
        if target.is_empty() {
            return;
        }
        let mut gone = self.take(&target).bound;
        gone.extend(self.aside.iter_mut().flat_map(|claim| claim.take(&target).bound));
        self.aside.retain(|claim| !claim.is_empty());
        self.forget(gone);
        self.ghosts.remove(target);
        self.put(contents);
        self.aside.extend(claims);
    }

    fn take(&mut self, place: &Range<Vpn>) -> Contents {
        let contents = Contents {
            bound: self.bound.unbind(place),
            believed: clip(&self.believed, place).collect(),
            doubtful: clip(&self.doubtful, place).collect(),
            doomed: clip(&self.doomed, place).collect(),
        };
        for set in [&mut self.believed, &mut self.doubtful, &mut self.doomed] {
            set.remove(place.clone());
        }
        contents
    }

    fn put(&mut self, contents: Contents) {
        contents.believed.into_iter().for_each(|place| self.believed.insert(place));
        contents.doubtful.into_iter().for_each(|place| self.doubtful.insert(place));
        contents.doomed.into_iter().for_each(|place| self.doomed.insert(place));
        contents.bound.into_iter().for_each(|extent| self.bound.bind(extent));
    }

    fn forget(&mut self, extents: Vec<Extent>) {
        self.forgotten.extend(extents.iter().map(Extent::numbers));
    }

    /// Notes that `place` was registered, with whatever was mapped there then. Until it is believed
    /// it counts as occupied.
    pub fn doubt(&mut self, place: Range<Vpn>) {
        self.doubtful.insert(place);
    }

    /// Notes that one registered mapping covers `place` (rule 10). The caller has seen it in the
    /// list of mappings, registered it, seen it there again, and seen that nothing is outstanding,
    /// without reading a message in between.
    pub fn believe(&mut self, place: Range<Vpn>) {
        self.doubtful.remove(place.clone());
        self.believed.insert(place);
    }

    /// Iterates over the parts of `place` that may be registered: nothing is known of them.
    pub fn unknown(&self, place: &Range<Vpn>) -> Vec<Range<Vpn>> {
        let mut known = self.believed.clone();
        known.extend(self.ghosts.iter().cloned());
        known.extend(self.limbo.iter().map(|waiting| waiting.target.clone()));
        let claimed =
            self.aside.iter().flat_map(|claim| claim.believed.iter().chain(&claim.doubtful));
        known.extend(claimed.cloned());
        known.gaps(place).collect()
    }

    /// Returns what an address has.
    pub fn at(&self, at: Vpn) -> AtAddress {
        let claimed = |claim: &Contents| claim.believed.iter().any(|place| place.contains(&at));
        if self.must_hold_threads() || self.aside.iter().any(claimed) {
            return AtAddress::Later;
        }
        match self.bound.page_at(at) {
            Some(page) => AtAddress::Page(page),
            None if self.believed.contains(&at) => AtAddress::Unbound,
            None => AtAddress::Unknown,
        }
    }

    /// Returns where a page is.
    pub fn find(&self, page: PageNo) -> Whereabouts {
        let unkept = || self.unkept.iter().flat_map(|(_, bound)| bound);
        if self.must_hold_threads()
            || self.aside.iter().any(|claim| claim.has(page))
            || unkept().any(|extent| extent.numbers().contains(&page))
        {
            return Whereabouts::Later;
        }
        self.bound.address_of(page).map_or(Whereabouts::Nowhere, Whereabouts::At)
    }

    /// Returns the rest of the run of bound addresses that a page is in, from there on.
    pub fn run_of(&self, page: PageNo) -> Option<Extent> {
        self.bound.run_at(self.bound.address_of(page)?)
    }

    /// Iterates over the extents within `place`.
    pub fn bound(&self, place: Range<Vpn>) -> impl Iterator<Item = Extent> {
        self.bound.within(place)
    }

    /// Iterates over the ranges that are believed.
    pub fn believed(&self) -> impl Iterator<Item = &Range<Vpn>> {
        self.believed.iter()
    }

    /// Gives an address that is [`AtAddress::Unbound`] a page, and its neighbours theirs, at most
    /// [`PIECE_PAGES`] in all. `None` if there are no more pieces.
    pub fn bind(&mut self, at: Vpn, source: &mut dyn PieceSource) -> Option<Extent> {
        let block = at.0 / u64::from(PIECE_PAGES) * u64::from(PIECE_PAGES);
        let block = Vpn(block).run(u64::from(PIECE_PAGES));
        let believed = clip(&self.believed, &block).find(|place| place.contains(&at))?;
        let before = self.bound.within(believed.start..at).last().map(|e| e.place().end);
        let after = self.bound.within(at..believed.end).next().map(|e| e.at);
        let gap = before.unwrap_or(believed.start)..after.unwrap_or(believed.end);
        let (place, first) = self.numbers.take(at, &gap, source)?;
        let extent = Extent { at: place.start, first, pages: pages(&place) as u32 };
        self.bound.bind(extent);
        Some(extent)
    }

    /// Takes the numbers of pages that the guest gave up. The engine discards them; then
    /// [`release`](Self::release) them.
    pub fn take_forgotten(&mut self) -> Vec<Range<PageNo>> {
        std::mem::take(&mut self.forgotten)
    }

    /// Gives back numbers that the engine has discarded.
    pub fn release(&mut self, numbers: Range<PageNo>, source: &mut dyn PieceSource) {
        self.numbers.release(numbers, source);
    }

    /// Gives up everything: the guest has ended, or has executed another program.
    pub fn end(&mut self) {
        let whole = Vpn(0)..Vpn(u64::MAX);
        let mut gone = self.take(&whole).bound;
        let limbo = self.limbo.drain(..).flat_map(|w| w.claims.into_iter().chain([w.contents]));
        gone.extend(limbo.chain(self.aside.drain(..)).flat_map(|contents| contents.bound));
        gone.extend(self.unkept.drain(..).flat_map(|(_, bound)| bound));
        self.forget(gone);
        self.ghosts.clear();
        self.unsure.clear();
        self.moves.clear();
        self.recent.clear();
    }

    /// Verifies the invariants.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        for extent in self.bound.iter() {
            let place = extent.place();
            if self.believed.gaps(&place).next().is_some() {
                return Err(format!("{extent:?} is bound, but not believed"));
            }
        }
        if let Some(ghost) = self.ghosts.iter().find(|ghost| self.believed.overlaps(ghost)) {
            return Err(format!("{ghost:?} is a ghost, and believed"));
        }
        let limbo = self.limbo.iter().flat_map(|w| w.claims.iter().chain([&w.contents]));
        let elsewhere = limbo.chain(&self.aside);
        let elsewhere = elsewhere.flat_map(|contents| contents.bound.iter().copied());
        let elsewhere =
            elsewhere.chain(self.unkept.iter().flat_map(|(_, bound)| bound.iter().copied()));
        let mut taken = RangeSet::new();
        for numbers in self.bound.iter().chain(elsewhere).map(|extent| extent.numbers()) {
            if taken.overlaps(&numbers) {
                return Err(format!("{numbers:?} are in two places"));
            }
            taken.insert(numbers);
        }
        Ok(())
    }
}

fn pages(place: &Range<Vpn>) -> u64 {
    place.end.0 - place.start.0
}

fn overlap(a: &Range<Vpn>, b: &Range<Vpn>) -> bool {
    a.start < b.end && b.start < a.end
}
