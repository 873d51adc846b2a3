//! Calls that threads make, as steps.

use super::signals;
use super::space::{Space, Told};
use super::world::{PLACE, State, Step};
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use std::ops::Range;

/// Most pages of a call, or of touches in order.
const RUN_PAGES: u64 = 24;

impl State {
    /// Part of a mapping.
    fn some_place(&mut self, space: usize) -> Option<Range<Vpn>> {
        let mappings: Vec<_> =
            self.spaces[space].mappings.iter().map(|(place, _)| place.clone()).collect();
        let place = self.random.choice(&mappings)?;
        let start = self.random.u64(place.start.0..place.end.0);
        let pages = self.random.u64(1..=RUN_PAGES).min(place.end.0 - start);
        Some(Vpn(start).run(pages))
    }

    pub(super) fn free_place(&mut self, space: usize, pages: u64) -> Option<Range<Vpn>> {
        let start = self.random.u64(PLACE.start.0..PLACE.end.0 - pages);
        let place = Vpn(start).run(pages);
        (!self.spaces[space].mappings.overlaps(&place)).then_some(place)
    }

    pub(super) fn touches(&mut self, space: usize) -> Option<Vec<Step>> {
        let writes = self.random.bool();
        let place = self.some_place(space)?;
        let touch = Vpn::each(&place).map(|at| {
            self.contents += u64::from(writes);
            Step::Touch { at, write: writes.then_some(self.contents) }
        });
        Some(touch.collect())
    }

    pub(super) fn remove(&mut self, space: usize) -> Option<Vec<Step>> {
        let place = self.some_place(space)?;
        if self.barrier().is_some() {
            return Some(signals::remove(&place));
        }
        let mut steps = Vec::new();
        if self.spaces[space].has_registered(&place) {
            self.tell(space, Told::Event(Event::Removed(place.clone())), &mut steps);
            self.spaces[space].fading.extend(Vpn::each(&place));
        }
        steps.extend(Vpn::each(&place).map(Step::Drop));
        Some(steps)
    }

    pub(super) fn unmap(&mut self, space: usize) -> Option<Vec<Step>> {
        let place = self.some_place(space)?;
        if self.barrier().is_some() {
            return Some(signals::unmap(place));
        }
        let mut steps = Vec::new();
        if self.spaces[space].has_registered(&place) {
            self.tell(space, Told::Event(Event::Unmapped(place.clone())), &mut steps);
        }
        self.spaces[space].unmap(&place);
        Some(steps)
    }

    pub(super) fn map(&mut self, space: usize) -> Option<Vec<Step>> {
        let pages = self.random.u64(1..=2 * RUN_PAGES);
        let place = self.free_place(space, pages)?;
        if self.spaces[space].mapped_pages() + pages <= self.habits.pages_max {
            self.spaces[space].mappings.insert(place, false);
        }
        None
    }

    pub(super) fn relocate(&mut self, space: usize) -> Option<Vec<Step>> {
        let from = self.some_place(space)?;
        if let Some(barrier) = self.barrier() {
            return Some(signals::relocate(from, barrier));
        }
        let has_fork = |step: &Step| matches!(step, Step::Tell(Told::Fork(_)));
        if !self.habits.moves_at_forks && self.is_in(space, has_fork) {
            return None;
        }
        let pages = Vpn::pages(&from);
        let to = self.free_place(space, pages)?.start;
        let mut steps = Vec::new();
        if self.spaces[space].has_registered(&from) {
            let event = Event::Remapped { from: from.start, to, pages };
            self.tell(space, Told::Event(event), &mut steps);
            self.tell(space, Told::Event(Event::Unmapped(from.clone())), &mut steps);
        }
        self.spaces[space].relocate(&from, to);
        Some(steps)
    }

    /// Only of who has something registered where that is so of guests: others are nobody's.
    pub(super) fn may_fork(&self, space: usize) -> bool {
        let is_guest = self.barrier().is_some() || self.spaces[space].has_registered(&PLACE);
        self.spaces.len() < self.habits.spaces_max && is_guest
    }

    pub(super) fn fork(&mut self, space: usize) -> Option<Vec<Step>> {
        if !self.may_fork(space) {
            return None;
        }
        let has_move = |step: &Step| matches!(step, Step::Tell(Told::Event(_)));
        if !self.habits.moves_at_forks && self.is_in(space, has_move) {
            return None;
        }
        let (child, parent) = (self.spaces.len(), &self.spaces[space]);
        let born = Space {
            mappings: parent.mappings.clone(),
            pages: parent.pages.clone(),
            marks: parent.marks.clone(),
            truth: parent.truth.clone(),
            fading: parent.fading.clone(),
            ..Space::new()
        };
        self.spaces.push(born);
        self.add_threads(child, 1, false);
        let mut steps = Vec::new();
        self.tell(space, Told::Fork(child), &mut steps);
        steps.push(Step::Release(child));
        Some(steps)
    }
}
