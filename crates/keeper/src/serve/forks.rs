//! Children that guests fork.
//!
//! Owns: the way from the message of a fork to a guest that has its parent's pages.
//! Invariants: a forked child reads what its parent had, never zeros for what was out, nor another
//! page. It is served from the start, with what its userfaultfd alone can tell: a page that may be
//! out is filled with zeros first, which the kernel refuses where a mark is. Nothing moves out of
//! it before it is attached to, which the front does if it lives long enough: most children
//! execute another program before. A child that cannot get its pages is ended by SIGBUS when it
//! misses one.
//! Not here: which of the front's processes it is, which its agent finds out (`guest::attach`).
//! Rejected: attaching at once, 1 to 5 ms of two CPUs for what ends in 1; giving pages on demand,
//! for which the parent's would have to stay as they were at the fork.

use super::letters::NOT_NOW;
use crate::guest::source::FaultSource;
use crate::guest::state::Guest;
use crate::guest::state::{Fork, Forked};
use crate::serve::shared::Shared;
use overspill_base::stats::Event;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::Relaxed;
use overspill_engine::Worker;
use overspill_guest::Vpn;
use overspill_guest::map::{Covered, Inherited, SpaceMap, Whereabouts};
use overspill_guest::userfault::Refusal;
use rangemap::RangeSet;
use rustix::io::Errno;
use std::ops::Range;

/// Where the numbers of children start: those of other guests come from the front.
const FIRST_CHILD: u64 = 1 << 63;
/// A place is halved so often to find a part of it.
const PART_DEPTH: u32 = 6;

/// Takes a child, at a moment at which nothing of its parent is outstanding: what was, may be from
/// before the fork. If it is to be waited for, the parent is looked at again soon. A parent that is
/// not attached to has been forked itself a moment ago, so one thread, which has nothing
/// outstanding but the fork.
fn next_child(guest: &Guest) -> Option<Forked> {
    let mut owned = guest.hold();
    if !owned.has_children() {
        return None;
    }
    guest.catch_up(&mut owned);
    if guest.handles().is_some() && guest.has_outstanding() {
        guest.look_again();
        return None;
    }
    owned.take_forked()
}

impl Shared {
    /// Makes guests of what `guest` has forked.
    pub(crate) fn take_children(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        while let Some(forked) = next_child(guest) {
            self.readers.call_all();
            self.bear(worker, guest, forked);
            guest.hold().has_forked();
        }
    }

    /// Gives a child its parent's pages: nothing fills or moves them meanwhile.
    fn bear(&self, worker: &mut Worker, parent: &Arc<Guest>, mut forked: Forked) {
        // Relaxed: only a number.
        let number = FIRST_CHILD | self.forks.fetch_add(1, Relaxed);
        let source = forked.source.take().expect("only such a fork is taken");
        let child = match parent.child(number, source) {
            Ok(child) => Arc::new(child),
            Err(errno) => return self.is_lost_child(parent, forked.fork, errno),
        };
        if forked.fork != Fork::Told {
            forked.leave_out();
            register(&*child.source, &forked.map);
        }
        self.engine.stats().count(Event::processes);
        let mut has = |place: &_| covered(&*child.source, place);
        let mut source = self.space.pieces.of(&child);
        let (map, inherited) = forked.map.fork(&forked.later, &mut has, &mut source);
        let is_registered = |place: &&_| child.source.may_cover(place);
        if let Some(place) = map.believed().filter(is_registered).last() {
            child.source.set_anchor(place.start);
        }
        child.source.set_closed(&forked.closed);
        let mut owned = child.hold();
        owned.map = map;
        if owned.map.doomed().next().is_some() {
            owned.still.dooms();
        }
        if forked.fork != Fork::Told {
            owned.wipe(forked.kept.wiped);
        }
        drop(owned);
        let mut runs = inherited.iter().map(|run| ((run.from, run.to), run.pages as usize));
        // What is not out the child has: it was there when it was forked, and has not moved since.
        let shared =
            runs.try_for_each(|(ends, pages)| self.engine.share(worker, ends, pages, |_| true));
        if let Err(why) = shared {
            let line = format!("{} will be ended: {why}", child.name());
            self.space.report("a forked child", line);
            child.kill();
        }
        let is_copy = forked.fork != Fork::Told;
        if is_copy && let Err(why) = self.mark_copy(&child, &inherited) {
            let line = format!("{} will be ended: its pages cannot be marked: {why}", child.name());
            self.space.report("a forked child", line);
            child.kill();
        }
        let birth = match forked.fork {
            Fork::Told => None,
            Fork::Asked(fork) => Some((parent.number, fork)),
        };
        self.admit(&child, birth);
        self.has_come(parent, &child, forked.fork);
    }

    /// A child cannot be followed: without its pages it ends itself.
    fn is_lost_child(&self, parent: &Arc<Guest>, fork: Fork, errno: Errno) {
        let line = format!("a child of {} ends: {errno}", parent.name());
        self.space.report("a forked child", line);
        if let Fork::Asked(fork) = fork {
            parent.came(fork, NOT_NOW);
        }
    }

    /// Marks what is out of a child that was made without the kernel's message: marks are not
    /// copied then.
    fn mark_copy(&self, child: &Guest, inherited: &[Inherited]) -> Result<(), Refusal> {
        let owned = child.hold();
        let pages =
            inherited.iter().flat_map(|run| (0..run.pages as usize).map(|n| run.to.plus(n)));
        let places = pages.filter(|page| self.engine.is_out(*page)).filter_map(|page| match owned
            .map
            .find(page)
        {
            Whereabouts::At(at) => Some(at.run(1)),
            Whereabouts::Later | Whereabouts::Nowhere => None,
        });
        let out: RangeSet<Vpn> = places.collect();
        out.iter().try_for_each(|place| child.source.mark(place))?;
        Ok(())
    }

    fn admit(&self, child: &Arc<Guest>, birth: Option<(u64, u64)>) {
        self.guests.lock().insert(child.number, child.clone());
        match self.readers.listen(child) {
            // Without descriptors nothing else works either.
            Ok(()) => child.source.parts().into_iter().for_each(|source| {
                self.front.forked(child.number, source, birth);
            }),
            Err(errno) => {
                let line = format!("{} is not served: {errno}", child.name());
                self.space.report("a forked child", line);
                child.kill();
            }
        }
        self.call_care();
    }
}

/// Registers what a map believes in with the userfaultfd of a copy. Where that has no mapping any
/// more, or another one, nothing is registered.
fn register(source: &dyn FaultSource, map: &SpaceMap) {
    map.believed().for_each(|place| register_what_is(source, place));
}

/// What a child has of a place, of which it may unmap parts while its parent is asked.
fn covered(source: &dyn FaultSource, place: &Range<Vpn>) -> Covered {
    match source.may_cover(place) {
        true => Covered::All,
        false if has_part(source, place, PART_DEPTH) => Covered::Part,
        false => Covered::Nothing,
    }
}

/// True if a part is covered, as far as so many halvings tell.
fn has_part(source: &dyn FaultSource, place: &Range<Vpn>, depth: u32) -> bool {
    let pages = Vpn::pages(place);
    if source.may_cover(place) {
        return true;
    }
    if pages <= 1 || depth == 0 {
        return pages > 1 && source.may_cover(&place.start.run(1));
    }
    let middle = place.start.plus(pages / 2);
    [place.start..middle, middle..place.end].iter().any(|half| has_part(source, half, depth - 1))
}

fn register_what_is(source: &dyn FaultSource, place: &Range<Vpn>) {
    if source.register(place).is_ok() || Vpn::pages(place) <= 1 {
        return;
    }
    let middle = place.start.plus(Vpn::pages(place) / 2);
    register_what_is(source, &(place.start..middle));
    register_what_is(source, &(middle..place.end));
}
