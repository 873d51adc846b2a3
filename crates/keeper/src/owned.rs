//! What only the holder of a guest uses.
//!
//! Owns: the map, and what waits for something: faults for their turn, children for their pages,
//! what was found in memory for the engine.
//! Not here: what the guest itself is asked (`guest`).

use crate::eye::{Eye, EyeParts};
use crate::kept::Kept;
use crate::still::Still;
use crate::touched::Closed;
use overspill_guest::Vpn;
use overspill_guest::map::{Event, SpaceMap};
use overspill_guest::pagemap::Pagemap;
use overspill_guest::userfault::Fault;
use rangemap::RangeSet;

use rustix::io::Errno;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How a fork became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fork {
    /// By a message, which has brought the child's userfaultfd.
    Told,
    /// By letters, under this number.
    Asked(u64),
}

/// A child of which the fork was read, the map that its parent had then, and what was read since.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) fork: Fork,
    /// `None` while there is no child yet.
    pub(crate) eye: Option<EyeParts>,
    pub(crate) map: SpaceMap,
    pub(crate) later: Vec<Event>,
    /// What its parent kept from it, if that is not the kernel's message's to tell.
    pub(crate) kept: Kept,
    /// What kept touches of its parent away, and of it.
    pub(crate) closed: Closed,
}

impl Forked {
    /// Leaves out what the child does not have. The page table of what begins with zeros is empty.
    pub(crate) fn leave_out(&mut self) {
        let Kept { wiped, absent } = &self.kept;
        for place in absent.iter() {
            self.map.leave_out(place);
            self.closed.shut.remove(place.clone());
        }
        absent.iter().chain(wiped.iter()).for_each(|place| self.closed.marks.remove(place.clone()));
    }
}

/// What only the holder of a guest uses.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    pub(crate) map: SpaceMap,
    /// Whether the map was compared with the mappings of a forked child.
    pub(crate) is_confirmed: bool,
    /// Whether it is about to be let go: nothing new becomes the engine's, and nothing goes out.
    pub(crate) is_leaving: bool,
    /// Pages that did not move, perhaps because relatives have them, too.
    pub(crate) shared: RangeSet<Vpn>,
    /// Children whose fork was read, and those of them that have not got their pages yet.
    forked: Vec<Forked>,
    forking: usize,
    /// Forks that letters have asked for so far.
    forks: u64,
    /// What its children do not have.
    pub(crate) kept: Kept,
    /// Faults that were read and not served.
    pub(crate) waiting: Vec<Fault>,
    /// What was in memory in mappings when they were believed, and the engine was not told of.
    new: Vec<Range<Vpn>>,
    /// Pages of those, and since when there has been no room for some.
    pub(crate) new_pages: u64,
    new_since: Option<Instant>,
    /// Where threads may wait for a page that is no longer there, or anywhere for one that could
    /// not be found.
    pub(crate) stirred: Vec<Range<Vpn>>,
    pub(crate) all_stirred: bool,
    /// Pages that stay in memory.
    pub(crate) needed: RangeSet<Vpn>,
    /// What waits for the guest to stand still.
    pub(crate) still: Still,
}

impl Owned {
    pub(crate) fn new(map: SpaceMap) -> Self {
        Self { map, ..Self::default() }
    }

    /// Has those who wait for what is no longer there ask again. Nothing is in doubt.
    pub(crate) fn wake_stirred(&mut self, eye: &Eye) {
        self.stirred.drain(..).for_each(|place| eye.wake(&place));
        if std::mem::take(&mut self.all_stirred) {
            eye.wake_all();
        }
    }

    /// Notes that the guest has forked, as its map is now.
    pub(crate) fn note_fork(&mut self, eye: EyeParts) {
        self.add_fork(Fork::Told, Some(eye), Closed::default());
    }

    fn add_fork(&mut self, fork: Fork, eye: Option<EyeParts>, closed: Closed) {
        let (map, later, kept) = (self.map.clone(), Vec::new(), self.kept.clone());
        self.forked.push(Forked { fork, eye, map, later, kept, closed });
        self.forking += 1;
    }

    /// Has a child begin with zeros there, and its children, too.
    pub(crate) fn wipe(&mut self, wiped: RangeSet<Vpn>) {
        wiped.iter().for_each(|place| self.map.drop_gone(place));
        self.kept.wiped = wiped;
    }

    /// Notes that the guest is about to fork, as its map is now, and what keeps touches away.
    /// Returns the fork's number.
    pub(crate) fn begin_fork(&mut self, closed: Closed) -> u64 {
        self.forks += 1;
        self.add_fork(Fork::Asked(self.forks), None, closed);
        self.forks
    }

    /// Notes what tells of the child of such a fork; false if nobody knows of that.
    pub(crate) fn is_forked(&mut self, fork: u64, eye: EyeParts) -> bool {
        let mut forked = self.forked.iter_mut();
        let forked = forked.find(|forked| forked.fork == Fork::Asked(fork));
        let is_known = forked.is_some();
        if let Some(forked) = forked {
            forked.eye = Some(eye);
        }
        is_known
    }

    /// Notes that no child comes of such a fork, if it has not been taken.
    pub(crate) fn end_fork(&mut self, fork: u64) {
        let before = self.forked.len();
        self.forked.retain(|forked| forked.fork != Fork::Asked(fork));
        self.forking -= before - self.forked.len();
    }

    /// Notes an event of the guest, for children that have no pages yet: it may be from before
    /// their fork.
    pub(crate) fn note_event(&mut self, event: &Event) {
        self.forked.iter_mut().for_each(|forked| forked.later.push(event.clone()));
        self.kept.follow(event);
    }

    /// True if children wait to be taken.
    pub(crate) fn has_children(&self) -> bool {
        self.forked.iter().any(|forked| forked.eye.is_some())
    }

    /// Takes a child that is to get its pages; [`Owned::has_forked`] says that it has.
    pub(crate) fn take_forked(&mut self) -> Option<Forked> {
        let ready = self.forked.iter().rposition(|forked| forked.eye.is_some())?;
        Some(self.forked.swap_remove(ready))
    }

    /// Notes that a child has its pages.
    pub(crate) fn has_forked(&mut self) {
        self.forking -= 1;
    }

    /// True while a child is about to get its pages: what is out stays as it is.
    pub(crate) fn is_forking(&self) -> bool {
        self.forking > 0
    }

    /// Notes what is in memory in mappings that are believed now.
    ///
    /// # Errors
    /// The address space has ended.
    pub(crate) fn add_new(
        &mut self,
        pagemap: &Pagemap,
        places: &[Range<Vpn>],
    ) -> Result<(), Errno> {
        let Self { new, new_pages, .. } = self;
        places.iter().try_for_each(|place| {
            pagemap.present(place, |run| {
                *new_pages += Vpn::pages(&run);
                new.push(run);
            })
        })
    }

    /// Notes what is in memory in a place that is believed, of which the engine knows nothing, as
    /// `is_new` says of pages.
    ///
    /// # Errors
    /// The address space has ended.
    pub(crate) fn add_new_of(
        &mut self,
        pagemap: &Pagemap,
        place: &Range<Vpn>,
        is_new: impl Fn(&Self, Vpn) -> bool,
    ) -> Result<(), Errno> {
        let mut found = RangeSet::new();
        pagemap.present(place, |run| {
            found.extend(Vpn::each(&run).filter(|at| is_new(self, *at)).map(|at| at.run(1)));
        })?;
        self.new_pages += found.iter().map(Vpn::pages).sum::<u64>();
        self.new.extend(found);
        Ok(())
    }

    /// Notes what was taken, and the engine had no room for; returns how long there has been some.
    pub(crate) fn add_new_again(&mut self, rest: Vec<Range<Vpn>>) -> Duration {
        self.new_pages += rest.iter().map(Vpn::pages).sum::<u64>();
        self.new.extend(rest);
        self.new_since.get_or_insert_with(Instant::now).elapsed()
    }

    /// Takes the runs in memory of which the engine knows nothing yet.
    pub(crate) fn take_new(&mut self) -> Vec<Range<Vpn>> {
        if self.new.is_empty() {
            self.new_since = None;
        }
        self.new_pages = 0;
        std::mem::take(&mut self.new)
    }
}
