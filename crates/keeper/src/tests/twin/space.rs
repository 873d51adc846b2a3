//! One address space in ordinary memory, as the kernel keeps it.
//!
//! Owns: mappings, pages, marks, what nobody has read yet, and *truth*: what each address would
//! hold if nobody paged anything.
//! Not here: the threads that change it (`world`).

use super::gate::Page;
use super::world::Content;
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use overspill_guest::userfault::Fault;
use rangemap::RangeMap;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// What is told of an address space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Event(Event),
    /// With the child.
    Fork(usize),
}

/// One address space.
#[derive(Debug)]
pub(super) struct Space {
    /// Whether a mapping is registered.
    pub(super) mappings: RangeMap<Vpn, bool>,
    /// What relatives share is one.
    pub(super) pages: BTreeMap<Vpn, Arc<Content>>,
    pub(super) marks: BTreeSet<Vpn>,
    pub(super) truth: BTreeMap<Vpn, Content>,
    /// What is being dropped, in it or when it was forked: zeros are right there, too.
    pub(super) fading: BTreeSet<Vpn>,
    pub(super) faults: VecDeque<Fault>,
    pub(super) events: VecDeque<(usize, Told)>,
    pub(super) outstanding: u32,
    /// Children of which the message was read.
    pub(super) brought: VecDeque<usize>,
    /// What was moved out, and not read.
    pub(super) moved: Vec<Arc<Content>>,
    pub(super) bell: Arc<OwnedFd>,
    /// Where its letters are.
    pub(super) page: Page,
    pub(super) is_held: bool,
    pub(super) has_ended: bool,
    pub(super) has_agent: bool,
    /// Whether it was let go: nobody is told of what it does.
    pub(super) is_free: bool,
}

impl Space {
    pub(super) fn new() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self {
            mappings: RangeMap::new(),
            pages: BTreeMap::new(),
            marks: BTreeSet::new(),
            truth: BTreeMap::new(),
            fading: BTreeSet::new(),
            faults: VecDeque::new(),
            events: VecDeque::new(),
            outstanding: 0,
            brought: VecDeque::new(),
            moved: Vec::new(),
            bell: Arc::new(eventfd(0, flags).unwrap()),
            page: Page::default(),
            is_held: false,
            has_ended: false,
            has_agent: true,
            is_free: false,
        }
    }

    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    pub(super) fn has_registered(&self, place: &Range<Vpn>) -> bool {
        self.mappings.overlapping(place).any(|(_, registered)| *registered)
    }

    /// True if one mapping, which is registered, covers a place.
    pub(super) fn is_covered(&self, place: &Range<Vpn>) -> bool {
        let covers = |mapping: &Range<Vpn>| mapping.end >= place.end;
        self.mappings.get_key_value(&place.start).is_some_and(|(at, on)| *on && covers(at))
    }

    /// True if one mapping covers a place.
    pub(super) fn is_mapped(&self, place: &Range<Vpn>) -> bool {
        let mapping = self.mappings.get_key_value(&place.start);
        mapping.is_some_and(|(mapping, _)| mapping.end >= place.end)
    }

    pub(super) fn drop_page(&mut self, at: Vpn) {
        self.pages.remove(&at);
        self.marks.remove(&at);
        self.truth.remove(&at);
        self.fading.remove(&at);
    }

    pub(super) fn unmap(&mut self, place: &Range<Vpn>) {
        Vpn::each(place).for_each(|at| self.drop_page(at));
        self.mappings.remove(place.clone());
    }

    pub(super) fn relocate(&mut self, from: &Range<Vpn>, to: Vpn) {
        let is_registered = self.mappings.get(&from.start) == Some(&true);
        for (n, at) in Vpn::each(from).enumerate() {
            let there = to.plus(n as u64);
            self.pages.remove(&at).map(|page| self.pages.insert(there, page));
            self.truth.remove(&at).map(|content| self.truth.insert(there, content));
            if self.fading.remove(&at) {
                self.fading.insert(there);
            }
            if self.marks.remove(&at) {
                self.marks.insert(there);
            }
        }
        self.mappings.remove(from.clone());
        self.mappings.insert(to.run(Vpn::pages(from)), is_registered);
    }

    pub(super) fn end(&mut self) {
        let bell = self.bell.clone();
        *self = Self { bell, has_ended: true, ..Self::new() };
        self.ring();
    }

    pub(super) fn mapped_pages(&self) -> u64 {
        self.mappings.iter().map(|(place, _)| Vpn::pages(place)).sum()
    }
}
