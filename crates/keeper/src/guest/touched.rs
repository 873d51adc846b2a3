//! What is known of a guest's memory that has no userfaultfd.
//!
//! Owns: what a userfaultfd would be registered for, which pages are out, and how memory is
//! protected.
//! Invariants: where the kernel has guards nothing is shut, and the guards are the marks. Without
//! them what is out is shut (PROT_NONE), and what the program may do with it is kept here. What is
//! shut and not out holds zeros, and is opened when it is touched: a child has such of its parent's
//! what it begins with zeros in.
//! A run that is shut is a mapping, and parts another: a process may have 65530 (sysctl
//! vm.max_map_count). So the more there are, the more comes with what is touched, and when there
//! are [`RUNS_MAX`] nothing goes that would be one more.
//! Not here: who waits, and the agent, which does all this (`touches`).

use crate::guest::agent::{Leaving, Protection};
use overspill_agent::Barrier;
use overspill_agent::gate::access;
use overspill_guest::Vpn;
use overspill_guest::map::Event;
use overspill_guest::mappings::{self, Mapping};
use overspill_guest::pagemap::Entry;
use rangemap::{RangeMap, RangeSet};
use std::ops::Range;

/// Runs that may be shut, at most, and until when windows are pages.
const RUNS_MAX: usize = 1 << 14;
const RUNS_EASY: usize = RUNS_MAX / 4;
/// So often a window grows to twice its size until all runs are there, which makes 16 MiB.
const GROWTHS: usize = 12;

/// What may be done with memory; `None` if it can be read and written, and no more.
pub(crate) type Protected = Option<Protection>;

/// What nobody may touch, each with what may be done with it when it is open.
type Shut = RangeMap<Vpn, Protected>;

/// What keeps touches away, which a child has as its parent had it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Closed {
    /// What has guards: also what held zeros when it went out, which is on no device.
    pub(crate) marks: RangeSet<Vpn>,
    pub(crate) shut: Shut,
}

/// What is known of a guest's memory.
#[derive(Debug)]
pub(crate) struct Touched {
    barrier: Barrier,
    /// What a userfaultfd would be registered for.
    pub(crate) registered: RangeSet<Vpn>,
    /// What is out.
    marks: RangeSet<Vpn>,
    shut: Shut,
    /// What can not only be read and written; `None` if that may not be so any more.
    protections: Option<RangeMap<Vpn, Protection>>,
}

impl Touched {
    pub(crate) fn new(barrier: Barrier) -> Self {
        let (registered, marks) = (RangeSet::new(), RangeSet::new());
        Self { barrier, registered, marks, shut: Shut::new(), protections: None }
    }

    pub(crate) fn barrier(&self) -> Barrier {
        self.barrier
    }

    pub(crate) fn closed(&self) -> Closed {
        let marks = match self.barrier {
            Barrier::Guard => self.marks.clone(),
            Barrier::NoAccess => RangeSet::new(),
        };
        Closed { marks, shut: self.shut.clone() }
    }

    /// Takes what its parent had when it was forked.
    pub(crate) fn set_closed(&mut self, Closed { marks, shut }: &Closed) {
        (self.marks, self.shut) = (marks.clone(), shut.clone());
    }

    /// Notes what has just gone out.
    pub(crate) fn mark(&mut self, place: Range<Vpn>) {
        if self.barrier == Barrier::NoAccess {
            let (_, protection) = self.protection(place.start).unwrap_or_default();
            let new: Vec<_> = self.shut.gaps(&place).collect();
            self.shut.extend(new.into_iter().map(|gap| (gap, protection)));
        }
        self.marks.insert(place);
    }

    /// Notes what is open, and not out any more.
    pub(crate) fn open(&mut self, place: Range<Vpn>) {
        self.shut.remove(place.clone());
        self.marks.remove(place);
    }

    /// Notes what an event has done.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Removed(place) => self.open(place.clone()),
            Event::Unmapped(place) => {
                self.open(place.clone());
                self.registered.remove(place.clone());
            }
            Event::Remapped { from, to, pages } => {
                let left = event.left();
                let there =
                    |run: &Range<Vpn>| to.plus(run.start.0 - from.0)..to.plus(run.end.0 - from.0);
                let marks = self.marks_in(&left);
                self.marks.remove(left.clone());
                self.marks.extend(marks.iter().map(there));
                let shut = self.shut_in(&left);
                self.shut.extend(
                    shut.map(|run| (there(&run.place), run.protection)).collect::<Vec<_>>(),
                );
                self.registered.insert(to.run(*pages));
            }
        }
    }

    /// True if the content of a page is out.
    pub(crate) fn is_out(&self, at: Vpn) -> bool {
        self.marks.contains(&at)
    }

    /// True if nobody may touch a page, whatever the program may do with it.
    pub(crate) fn is_shut(&self, at: Vpn) -> bool {
        self.shut.contains_key(&at)
    }

    pub(crate) fn marks_in(&self, place: &Range<Vpn>) -> RangeSet<Vpn> {
        self.marks.overlapping(place).map(|run| within(run, place)).collect()
    }

    fn shut_in<'t>(&'t self, place: &'t Range<Vpn>) -> impl Iterator<Item = Leaving> + 't {
        let runs = self.shut.overlapping(place);
        runs.map(|(run, protection)| Leaving { place: within(run, place), protection: *protection })
    }

    /// What is to be cleared in a place so that nothing of it is out or shut.
    pub(crate) fn to_clear(&self, place: &Range<Vpn>) -> Vec<Leaving> {
        match self.barrier {
            Barrier::Guard => self.marks_in(place).into_iter().map(Leaving::from).collect(),
            Barrier::NoAccess => self.shut_in(place).collect(),
        }
    }

    /// Calls `each` for the parts of a run that the page table has `entry` for, as the marks
    /// change it.
    pub(crate) fn overlay(
        &self,
        run: Range<Vpn>,
        entry: Entry,
        mut each: impl FnMut(Range<Vpn>, Entry),
    ) {
        let mut at = run.start;
        for marked in self.marks_in(&run).iter() {
            if at < marked.start {
                each(at..marked.start, entry);
            }
            each(marked.clone(), Entry::Marked);
            at = marked.end;
        }
        if at < run.end {
            each(at..run.end, entry);
        }
    }

    // How it is protected.

    /// Has protections be looked for again.
    pub(crate) fn forget_protections(&mut self) {
        self.protections = None;
    }

    pub(crate) fn knows_protections(&self) -> bool {
        self.protections.is_some()
    }

    /// Takes protections from a text of `/proc/PID/maps`.
    pub(crate) fn set_protections(&mut self, maps: &str) {
        let special = |mapping: Mapping| Some((mapping.place.clone(), special(&mapping)?));
        let found = mappings::parse_list(maps).into_iter().filter_map(special);
        let mut found: RangeMap<_, _> = found.collect();
        for (run, protection) in self.shut.iter() {
            match protection {
                Some(protection) => found.insert(run.clone(), *protection),
                None => found.remove(run.clone()),
            }
        }
        self.protections = Some(found);
    }

    /// How a page is protected when it is open, and for how many pages from there on that is so,
    /// at most; `None` if that is not known.
    pub(crate) fn protection(&self, at: Vpn) -> Option<(u64, Protected)> {
        if let Some((run, protection)) = self.shut.get_key_value(&at) {
            return Some((run.end.0 - at.0, *protection));
        }
        let rest = at..Vpn(u64::MAX);
        let open =
            self.shut.overlapping(&rest).next().map_or(u64::MAX, |(run, _)| run.start.0 - at.0);
        let found = self.protections.as_ref()?.overlapping(&rest).next();
        Some(match found {
            Some((place, protection)) if place.contains(&at) => {
                (open.min(place.end.0 - at.0), Some(*protection))
            }
            Some((place, _)) => (open.min(place.start.0 - at.0), None),
            None => (open, None),
        })
    }

    /// Notes how a place is protected, what is shut of it when it is open.
    pub(crate) fn protect(&mut self, place: &Range<Vpn>, protection: Protected) {
        let shut: Vec<_> = self.shut_in(place).map(|run| (run.place, protection)).collect();
        self.shut.extend(shut);
        match (&mut self.protections, protection) {
            (None, _) => {}
            (Some(known), Some(protection)) => known.insert(place.clone(), protection),
            (Some(known), None) => known.remove(place.clone()),
        }
    }

    /// True if a page may be touched so, as far as is known without its mappings.
    pub(crate) fn allows(&self, at: Vpn, access: u64) -> bool {
        let protection = self.protection(at).filter(|_| self.registered.contains(&at));
        protection.is_some_and(|(_, protection)| match protection {
            None => access & access::EXECUTE == 0,
            Some(Protection::All) => true,
            Some(Protection::Read) => access & (access::WRITE | access::EXECUTE) == 0,
            Some(_) => false,
        })
    }

    /// How many pages from the start of a place on are alike, and whether those are shut.
    pub(crate) fn alike(&self, place: &Range<Vpn>) -> (u64, bool) {
        match self.shut_in(place).next() {
            Some(run) if run.place.start == place.start => (Vpn::pages(&run.place), true),
            Some(run) => (run.place.start.0 - place.start.0, false),
            None => (Vpn::pages(place), false),
        }
    }

    // How many mappings that makes.

    /// Where what is out comes when a page is touched.
    pub(crate) fn window(&self, at: Vpn) -> Range<Vpn> {
        let crowd = self.shut.len().saturating_sub(RUNS_EASY);
        let growths = GROWTHS * crowd / (RUNS_MAX - RUNS_EASY);
        let pages = 1 << growths.min(GROWTHS);
        Vpn(at.0 & !(pages - 1)).run(pages)
    }

    /// True if a run may be shut: there are few, or it is beside one.
    pub(crate) fn may_shut(&self, place: &Range<Vpn>) -> bool {
        let around = Vpn(place.start.0.saturating_sub(1))..place.end.plus(1);
        self.shut.len() < RUNS_MAX || self.shut.overlaps(&around)
    }
}

/// The part of a run that lies in a place.
fn within(run: &Range<Vpn>, place: &Range<Vpn>) -> Range<Vpn> {
    run.start.max(place.start)..run.end.min(place.end)
}

/// How memory is protected that can not only be read and written.
fn special(mapping: &Mapping) -> Protected {
    protection_of([mapping.is_readable, mapping.is_writable, mapping.is_executable])
}

/// By whether it can be read, written and executed.
pub(crate) fn protection_of(can: [bool; 3]) -> Protected {
    match can {
        [true, true, false] => None,
        [false, false, false] => Some(Protection::Nothing),
        [true, false, false] => Some(Protection::Read),
        [false, true, false] => Some(Protection::Write),
        [false, false, true] => Some(Protection::Execute),
        [true, false, true] => Some(Protection::ReadExecute),
        [false, true, true] => Some(Protection::WriteExecute),
        [true, true, true] => Some(Protection::All),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "a000-14000 rw-p 0 0:0 0\n14000-1e000 r--p 0 0:0 0\n";

    fn touched(barrier: Barrier) -> Touched {
        let mut touched = Touched::new(barrier);
        touched.registered.insert(Vpn(10).run(20));
        touched.set_protections(MAPS);
        touched.mark(Vpn(12).run(3));
        touched.mark(Vpn(20).run(3));
        touched
    }

    fn out(touched: &Touched, first: u64) -> usize {
        (first..first + 3).filter(|at| touched.is_out(Vpn(*at))).count()
    }

    #[test]
    fn marks_go_where_their_pages_go() {
        for barrier in [Barrier::Guard, Barrier::NoAccess] {
            let mut touched = touched(barrier);
            touched.apply(&Event::Remapped { from: Vpn(11), to: Vpn(51), pages: 5 });
            assert_eq!((out(&touched, 12), out(&touched, 52)), (0, 3));
            // A place that stays mapped (MREMAP_DONTUNMAP) holds zeros.
            assert_eq!(touched.is_shut(Vpn(12)), barrier == Barrier::NoAccess);
            touched.apply(&Event::Unmapped(Vpn(11).run(5)));
            assert!(!touched.is_shut(Vpn(12)));
            assert_eq!(touched.protection(Vpn(51)).unwrap().1, None);
            touched.apply(&Event::Removed(Vpn(53).run(1)));
            assert_eq!(out(&touched, 52), 2);
            let mut seen = Vec::new();
            touched.overlay(Vpn(51).run(5), Entry::Present, |run, entry| seen.push((run, entry)));
            let [present, out] = [Entry::Present, Entry::Marked];
            let all = [(51, present), (52, out), (53, present), (54, out), (55, present)]
                .map(|(at, entry)| (Vpn(at).run(1), entry));
            assert_eq!(seen, all);
        }
    }

    #[test]
    fn what_is_shut_is_opened_as_it_was() {
        let mut touched = touched(Barrier::NoAccess);
        let read = Some(Protection::Read);
        assert_eq!(touched.protection(Vpn(13)), Some((2, None)));
        assert_eq!(touched.protection(Vpn(21)), Some((2, read)));
        // As the kernel has it meanwhile.
        touched.set_protections("c000-f000 ---p 0 0:0 0\n14000-17000 ---p 0 0:0 0\n");
        assert_eq!(touched.protection(Vpn(13)), Some((2, None)));
        touched.open(Vpn(12).run(3));
        assert_eq!(touched.protection(Vpn(10)), Some((10, None)));
        touched.open(Vpn(20).run(3));
        assert_eq!(touched.protection(Vpn(21)), Some((2, read)));
    }

    #[test]
    fn what_is_shut_can_be_protected_in_another_way() {
        let mut touched = touched(Barrier::NoAccess);
        assert_eq!(touched.alike(&Vpn(10).run(13)), (2, false));
        assert_eq!(touched.alike(&Vpn(13).run(10)), (2, true));
        assert_eq!(touched.alike(&Vpn(15).run(3)), (3, false));
        touched.protect(&Vpn(10).run(4), Some(Protection::All));
        assert_eq!(touched.protection(Vpn(12)), Some((2, Some(Protection::All))));
        assert_eq!(touched.protection(Vpn(14)), Some((1, None)));
        let clear: Vec<_> =
            touched.to_clear(&Vpn(13).run(20)).iter().map(|run| run.place.clone()).collect();
        assert_eq!(clear, [Vpn(13).run(1), Vpn(14).run(1), Vpn(20).run(3)]);
    }

    #[test]
    fn the_more_there_are_the_more_comes() {
        let mut touched = Touched::new(Barrier::NoAccess);
        assert_eq!(touched.window(Vpn(77)), Vpn(77).run(1));
        for n in 0..RUNS_MAX as u64 {
            assert!(touched.may_shut(&Vpn(1).run(1)));
            touched.mark(Vpn(4 * n + 100).run(1));
        }
        assert_eq!(touched.window(Vpn(4097)), Vpn(4096).run(4096));
        assert!(!touched.may_shut(&Vpn(1).run(1)) && touched.may_shut(&Vpn(97).run(3)));
        touched.open(Vpn(0).run(2 * RUNS_MAX as u64 + 100));
        assert!((4..256).contains(&Vpn::pages(&touched.window(Vpn(0)))));
    }
}
