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
//!    there, which marks (9) tell; meanwhile the place is occupied. A second claim about a part of
//!    it divides it: each part was unmapped as a whole or not at all.
//! 7. \[growth\] Growth has no message. An address that is not believed is answered by zeros,
//!    which the kernel only takes where it is registered, new and empty; content never goes there.
//! 8. \[doomed\] `Removed` comes before the pages are dropped, and nothing says when that is done.
//!    Until the guest is quiescent nothing is filled there; then the pages are dropped here, too.
//!    Those that were present or marked are not evicted, nor taken for content that is out, before
//!    they were seen absent, or filled anew.
//! 9. \[marks\] The page table has a mark wherever content is out. It is the truth: a page that is
//!    neither present nor marked is new, whatever the map has for it ([`SpaceMap::drop_gone`]).
//!    The map then errs on one side: it keeps what may be gone, because a silent growth (7) can
//!    bring a message about a place whose former content moved and whose message is late. What
//!    could not be marked yet counts as marked: if it was unmapped and then grown into before it
//!    could be, it comes back.
//! 10. \[belief\] A range is believed when one registered mapping covers it and nothing was
//!     outstanding ([`SpaceMap::believe`]). Only what is believed has pages of the engine.
//! 11. \[old lengths\] Before Linux 6.16 a move that shrinks reports the length before. Its end is
//!     set aside when its source's end is unmapped alone; others' content may be there by then.
//! 12. \[children\] A forked child begins with its parent's map as it is when the message of the
//!     fork is read ([`SpaceMap::fork`]). Messages are late for a fork as for all else: what a move
//!     brought that the child's memory does not show, and what was set aside, the child does not
//!     get: a page that is out there is lost, not another one's. Nothing moves out of a child
//!     before its mappings were compared ([`SpaceMap::confirm`]): it has not all of its parent's
//!     (MADV_DONTFORK). Where it has zeros instead (MADV_WIPEONFORK) there are no marks (9). What
//!     another thread was dropping (8) the child has as it was: nobody drops its marks there. The
//!     copy that a child of which no message tells begins with must be without what is gone (9): it
//!     has no marks.
//!
//! Invariants ([`SpaceMap::check`]): what is bound is believed; no ghost is; no page number is in
//! two places.
//! Not here: reading messages and acting on them (`keeper`), pages' content (`engine`).
//! Rejected: catching the calls instead, 9 to 27 µs for every call of the program; tables by
//! address, which an `mremap` would rewrite.

mod children;
mod contents;
mod event;
mod extents;
mod pieces;
mod settle;
#[cfg(test)]
mod tests;

pub use children::{Covered, Inherited};
pub use event::Event;
pub use extents::{Extent, Extents};
pub use pieces::{Numbers, PIECE_PAGES, PieceNo, PieceSource};
pub use settle::{Look, Pages, Witness};

use crate::Vpn;
use contents::{Contents, clip};
use overspill_base::PageNo;
use rangemap::RangeSet;
use settle::Unkept;
use std::ops::Range;

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

/// A move.
#[derive(Clone, Hash, Debug)]
struct Move {
    from: Range<Vpn>,
    to: Vpn,
}

/// The map of one guest's addresses.
#[derive(Clone, Debug, Default)]
pub struct SpaceMap {
    live: Contents,
    ghosts: RangeSet<Vpn>,
    limbo: Vec<Waiting>,
    /// What `Unmapped` claimed.
    aside: Vec<Contents>,
    unkept: Vec<Unkept>,
    /// Those of which the source's `Unmapped` was not read.
    moves: Vec<Move>,
    /// All since the guest was last seen quiescent.
    recent: Vec<Move>,
    /// Where content is being removed.
    removing: RangeSet<Vpn>,
    numbers: Numbers,
    /// Numbers that no address has any more, and that the engine was not told of.
    forgotten: Vec<Range<PageNo>>,
}

impl SpaceMap {
    /// Makes the map of a guest of which nothing is known.
    pub fn new() -> Self {
        Self::default()
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
        self.shrink_moves(place);
        self.divide_claims(place);
        let unmapped = self.live.take(place);
        if !unmapped.is_empty() {
            self.aside.push(unmapped);
        }
        self.ghosts.remove(place.clone());
        self.removing.remove(place.clone());
        self.admit_waiting();
    }

    /// Rule 6: of what is set aside only a part may be unmapped now.
    fn divide_claims(&mut self, place: &Range<Vpn>) {
        let parts: Vec<Contents> = self.aside.iter_mut().map(|claim| claim.take(place)).collect();
        self.aside.extend(parts);
        self.aside.retain(|claim| !claim.is_empty());
    }

    /// Rule 11: the end of a source is unmapped while its start is a ghost.
    fn shrink_moves(&mut self, place: &Range<Vpn>) {
        for Move { from, to } in std::mem::take(&mut self.moves) {
            if place.start > from.start && place.start < from.end && place.end >= from.end {
                self.set_aside(&to.run(Vpn::pages(&from)), to.plus(place.start.0 - from.start.0));
                self.moves.push(Move { from: from.start..place.start, to });
            } else if place.start > from.start || place.end < from.end {
                // Another thread's hole in what was left, at most.
                self.moves.push(Move { from, to });
            }
        }
    }

    /// Sets aside what a move onto `target` brought to `start` and behind. That of a move that
    /// waits may be where something else is.
    fn set_aside(&mut self, target: &Range<Vpn>, start: Vpn) {
        let place = start..target.end;
        let waiting = self.limbo.iter_mut().find(|waiting| waiting.target == *target);
        let ends: Vec<Contents> = match waiting {
            Some(waiting) => {
                waiting.target.end = start;
                waiting.parts().map(|part| part.take(&place)).collect()
            }
            None => vec![self.live.take(&place)],
        };
        self.divide_claims(&place);
        self.aside.extend(ends.into_iter().filter(|end| !end.is_empty()));
    }

    fn remapped(&mut self, from: Range<Vpn>, to: Vpn) {
        let target = to.run(Vpn::pages(&from));
        let contents = self.take_source(&from).moved(from.start, to);
        let claims = self.aside.iter_mut().map(|claim| claim.take(&from).moved(from.start, to));
        let claims = claims.filter(|claim| !claim.is_empty()).collect();
        self.aside.retain(|claim| !claim.is_empty());
        self.ghosts.insert(from.clone());
        self.removing.remove(from.clone());
        self.moves.push(Move { from: from.clone(), to });
        self.recent.push(Move { from, to });
        self.limbo.push(Waiting { target, contents, claims });
        self.admit_waiting();
    }

    /// Takes out what a move took along: of the map or, if nothing is there, of a move that waits.
    fn take_source(&mut self, from: &Range<Vpn>) -> Contents {
        let is_known = self.live.knows(from) || self.is_claimed(from);
        let mut waiting = self.limbo.iter_mut().rev();
        match waiting.find(|waiting| !is_known && overlap(&waiting.target, from)) {
            Some(waiting) => waiting.contents.take(from),
            None => self.live.take(from),
        }
    }

    fn removed(&mut self, place: &Range<Vpn>) {
        let waiting = self.limbo.iter_mut().flat_map(Waiting::parts);
        let everywhere = waiting.chain(&mut self.aside).chain([&mut self.live]);
        // Where the mark is missing, nothing will tell whether it was dropped.
        let dropped: Vec<Extent> =
            everywhere.flat_map(|contents| contents.drop_unmarked(place)).collect();
        self.forget(dropped);
        self.removing.insert(place.clone());
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
        target.is_empty()
            || !(self.live.knows(target)
                || self.is_claimed(target)
                || self.ghosts.overlaps(target)
                || self.limbo[..n].iter().any(|before| overlap(&before.target, target)))
    }

    /// Puts what was moved at its target, whatever was there: that is gone, and a claim about it
    /// is true.
    fn admit(&mut self, Waiting { target, contents, claims }: Waiting) {
        if target.is_empty() {
            return;
        }
        let elsewhere = self.aside.iter_mut().chain([&mut self.live]);
        let gone: Vec<Extent> = elsewhere.flat_map(|c| c.take(&target).bound.into_vec()).collect();
        self.forget(gone);
        self.aside.retain(|claim| !claim.is_empty());
        self.ghosts.remove(target);
        self.live.put(contents);
        self.aside.extend(claims);
    }

    fn forget(&mut self, extents: impl IntoIterator<Item = Extent>) {
        self.forgotten.extend(extents.into_iter().map(|extent| extent.numbers()));
    }

    /// Drops what the map has for addresses that were seen neither present nor marked.
    pub fn drop_gone(&mut self, place: &Range<Vpn>) {
        let gone = self.live.bound.unbind(place);
        self.forget(gone);
        self.live.doomed.remove(place.clone());
        self.live.unmarked.remove(place.clone());
    }

    /// Notes pages that were present or marked when an [`Event::Removed`] was read (rule 8).
    pub fn doom(&mut self, there: Range<Vpn>) {
        self.live.doomed.insert(there);
    }

    /// Iterates over what is doomed.
    pub fn doomed(&self) -> impl Iterator<Item = &Range<Vpn>> {
        self.live.doomed.iter()
    }

    /// Ends rule 8 for pages that were seen absent, or filled by a call that fails on present ones.
    pub fn seen_new(&mut self, place: Range<Vpn>) {
        self.live.doomed.remove(place);
    }

    /// True if the content of a page of `place` is being removed, as far as is known: what is there
    /// now may be new.
    pub fn is_removing(&self, place: &Range<Vpn>) -> bool {
        self.removing.overlaps(place)
    }

    /// True if a page of `place` is doomed.
    pub fn is_doomed(&self, place: &Range<Vpn>) -> bool {
        self.live.doomed.overlaps(place)
    }

    /// Notes pages that went out while a message was outstanding, so that they could not be marked.
    pub fn leave_unmarked(&mut self, place: Range<Vpn>) {
        self.live.unmarked.insert(place);
    }

    /// Notes that pages are marked, or present again.
    pub fn marked(&mut self, place: Range<Vpn>) {
        self.live.unmarked.remove(place);
    }

    /// Iterates over what is out and not marked within `place`.
    pub fn unmarked(&self, place: &Range<Vpn>) -> impl Iterator<Item = Range<Vpn>> {
        clip(&self.live.unmarked, place)
    }

    /// True while all threads of the guest are to be held (rule 5).
    pub fn must_hold_threads(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// Notes that `place` was registered, with whatever was mapped there then. Until it is believed
    /// it counts as occupied.
    pub fn doubt(&mut self, place: Range<Vpn>) {
        self.live.doubtful.insert(place);
    }

    /// Notes that one registered mapping covers `place` (rule 10). The caller has seen it in the
    /// list of mappings, registered it, seen it there again, and seen that nothing is outstanding,
    /// without reading a message about it in between.
    pub fn believe(&mut self, place: Range<Vpn>) {
        self.live.doubtful.remove(place.clone());
        self.live.believed.insert(place);
    }

    /// True if nothing about `place` is in doubt, so that it may be registered as a whole.
    pub fn is_settled(&self, place: &Range<Vpn>) -> bool {
        !(self.is_claimed(place)
            // If the place has another mapping already, registered it would look like the same.
            || self.live.unmarked.overlaps(place)
            || self.ghosts.overlaps(place)
            || self.limbo.iter().any(|waiting| overlap(&waiting.target, place)))
    }

    /// Returns the parts of `place`, which [`is_settled`](Self::is_settled), that are not believed.
    pub fn unknown(&self, place: &Range<Vpn>) -> Vec<Range<Vpn>> {
        self.live.believed.gaps(place).collect()
    }

    /// Returns what an address has.
    pub fn at(&self, at: Vpn) -> AtAddress {
        if self.must_hold_threads() || self.is_claimed(&at.run(1)) || self.removing.contains(&at) {
            return AtAddress::Later;
        }
        match self.live.bound.page_at(at) {
            Some(page) => AtAddress::Page(page),
            None if self.live.believed.contains(&at) => AtAddress::Unbound,
            None => AtAddress::Unknown,
        }
    }

    /// Returns where a page is.
    pub fn find(&self, page: PageNo) -> Whereabouts {
        if self.must_hold_threads() || self.is_in_question(page) {
            return Whereabouts::Later;
        }
        match self.live.bound.address_of(page) {
            Some(at) if self.removing.contains(&at) => Whereabouts::Later,
            Some(at) => Whereabouts::At(at),
            None => Whereabouts::Nowhere,
        }
    }

    /// Returns the rest of the run of bound addresses that one is in, from there on.
    pub fn run_from(&self, at: Vpn) -> Option<Extent> {
        self.live.bound.run_at(at)
    }

    /// Iterates over the extents within `place`.
    pub fn bound(&self, place: Range<Vpn>) -> impl Iterator<Item = Extent> {
        self.live.bound.within(place)
    }

    /// Iterates over the ranges that are believed.
    pub fn believed(&self) -> impl Iterator<Item = &Range<Vpn>> {
        self.live.believed.iter()
    }

    /// Gives an address that is [`AtAddress::Unbound`] a page, and its neighbours in `new` theirs,
    /// at most [`PIECE_PAGES`] in all. None of those may have a mark: what is out, and not known
    /// here, is lost (12), and would become zeros. `None` if there are no more pieces.
    pub fn bind(
        &mut self,
        at: Vpn,
        new: &Range<Vpn>,
        source: &mut dyn PieceSource,
    ) -> Option<Extent> {
        let believed = self.live.believed.get(&at)?;
        let before = self.live.bound.within(believed.start..at).last().map(|e| e.place().end);
        let after = self.live.bound.within(at..believed.end).next().map(|e| e.at);
        let gap = before.unwrap_or(believed.start).max(new.start)
            ..after.unwrap_or(believed.end).min(new.end);
        let (place, first) = self.numbers.take(at, &gap, source)?;
        let extent = Extent { at: place.start, first, pages: Vpn::pages(&place) as u32 };
        self.live.bound.bind(extent);
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
        let ended = std::mem::take(self);
        let limbo = ended.limbo.into_iter().flat_map(|w| w.claims.into_iter().chain([w.contents]));
        let unkept = ended.unkept.into_iter().map(|unkept| unkept.contents);
        let all = limbo.chain(ended.aside).chain(unkept).chain([ended.live]);
        (self.numbers, self.forgotten) = (ended.numbers, ended.forgotten);
        self.forget(all.flat_map(|contents| contents.bound.into_vec()));
    }

    /// Verifies the invariants.
    ///
    /// # Errors
    /// The first that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        for extent in self.live.bound.iter() {
            if self.live.believed.gaps(&extent.place()).next().is_some() {
                return Err(format!("{extent:?} is bound, but not believed"));
            }
        }
        if let Some(ghost) = self.ghosts.iter().find(|ghost| self.live.believed.overlaps(ghost)) {
            return Err(format!("{ghost:?} is a ghost, and believed"));
        }
        let limbo = self.limbo.iter().flat_map(|w| w.claims.iter().chain([&w.contents]));
        let unkept = self.unkept.iter().map(|unkept| &unkept.contents);
        let all = limbo.chain(&self.aside).chain(unkept).chain([&self.live]);
        let mut taken = RangeSet::new();
        for numbers in all.flat_map(|contents| contents.bound.iter()).map(|e| e.numbers()) {
            if taken.overlaps(&numbers) {
                return Err(format!("{numbers:?} are in two places"));
            }
            taken.insert(numbers);
        }
        Ok(())
    }
}

impl Waiting {
    fn parts(&mut self) -> impl Iterator<Item = &mut Contents> {
        self.claims.iter_mut().chain([&mut self.contents])
    }
}

fn overlap(a: &Range<Vpn>, b: &Range<Vpn>) -> bool {
    a.start < b.end && b.start < a.end
}
