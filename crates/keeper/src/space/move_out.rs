//! Moving pages out of guests.
//!
//! Owns: the batches that agents are asked for, and what the kernel's answers mean.
//! Invariants: the pages of a batch are looked up, moved and marked under one hold of their guest,
//! which is as short as that: its faults wait for it. An agent that is of no use any more ends its
//! guest: where its pages are is not known.
//! Not here: which pages are to leave (`engine`), the way back (`fill`).

use crate::guest::agent::{AgentError, Leaving, Moved, Mover, PAGES_MAX, Protection, RUNS_MAX};
use crate::guest::events::pause;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use crate::space::guest_space::GuestSpace;
use overspill_base::shared::PageArena;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{SpaceError, Unmapped};
use overspill_guest::Vpn;
use overspill_guest::map::Whereabouts;
use overspill_guest::pagemap::Entry;
use rustix::io::Errno;
use std::ops::Range;

/// How often a batch is tried of which nothing moves because the guest changes.
const TRIES: u32 = 100;
/// So many pages are taken for shared from one that is: to find that out of each takes a try.
const SHARED_PAGES: u64 = 512;

impl GuestSpace {
    /// Moves out what it can of `runs`, and appends an end for each; returns how many batches that
    /// took.
    pub(crate) fn move_all(
        &self,
        runs: &[Range<PageNo>],
        (arena, mut at): (&PageArena, usize),
        ends: &mut Vec<Unmapped>,
    ) -> usize {
        let (mut rest, mut batches) = (runs, 0);
        while !rest.is_empty() {
            let next = &rest[..rest.len().min(RUNS_MAX)];
            let Some((guest, runs)) = self.pieces.owner_of_first(next) else {
                ends.push(stopped(SpaceError::Gone));
                rest = &rest[1..];
                continue;
            };
            let (batch, later) = rest.split_at(batch_of(&rest[..runs]));
            let moved = self.move_some(&guest, batch, (arena, at));
            at += moved.iter().map(|end| end.moved).sum::<usize>();
            ends.extend(moved);
            rest = later;
            batches += 1;
        }
        batches
    }

    /// As [`move_out`](Self::move_out); while nothing moves because a message is outstanding, that
    /// is read first. Not while a child is about to get its pages: those are locked here, and
    /// whoever gives them waits for that.
    fn move_some(
        &self,
        guest: &Guest,
        runs: &[Range<PageNo>],
        arena: (&PageArena, usize),
    ) -> Vec<Unmapped> {
        let mut tries = 0;
        loop {
            let ends = self.move_out(guest, runs, arena);
            let is_busy = |end: &Unmapped| end.moved == 0 && end.stopped == Some(SpaceError::Busy);
            if tries == TRIES || !ends.iter().all(is_busy) {
                return ends;
            }
            tries += 1;
            let mut owned = guest.hold();
            guest.catch_up(&mut owned);
            if owned.is_forking() {
                return ends;
            }
            drop(owned);
            pause();
        }
    }

    /// Moves out what it can of `runs`, pages of one guest, and reads it. Returns an end for each
    /// run.
    fn move_out(
        &self,
        guest: &Guest,
        runs: &[Range<PageNo>],
        arena: (&PageArena, usize),
    ) -> Vec<Unmapped> {
        let moved = self.try_move_out(guest, runs, arena);
        moved.unwrap_or_else(|why| {
            self.end_of_agent(guest, &why);
            vec![stopped(SpaceError::Gone); runs.len()]
        })
    }

    /// Where the agent fills pages, faults wait for it with the guest held: who moves pages takes
    /// the two in the same order then, and nothing has to be made its own to be taken out.
    fn try_move_out(
        &self,
        guest: &Guest,
        runs: &[Range<PageNo>],
        arena: (&PageArena, usize),
    ) -> Result<Vec<Unmapped>, AgentError> {
        let first = guest.source.fills_by_agent().then(|| guest.hold());
        let mut agent = guest.agent();
        let Some(agent) = agent.as_deref_mut() else { return Ok(pinned(runs)) };
        if let Some(mut owned) = first {
            let ends = self.move_held(guest, &mut owned, agent, runs)?;
            read_moved(agent, &ends, arena)?;
            return Ok(ends);
        }
        self.make_own(guest, agent, runs)?;
        let ends = self.move_held(guest, &mut guest.hold(), agent, runs)?;
        read_moved(agent, &ends, arena)?;
        Ok(ends)
    }

    /// Has the agent make pages the guest's own, if relatives may have them: those the kernel does
    /// not move. Its write to a page that is missing by now is a fault like any other, and served
    /// meanwhile.
    fn make_own(
        &self,
        guest: &Guest,
        agent: &mut dyn Mover,
        runs: &[Range<PageNo>],
    ) -> Result<(), AgentError> {
        let mut owned = guest.hold();
        let has_relatives = guest.has_relatives.load(Relaxed);
        if !has_relatives && owned.shared.is_empty() {
            return Ok(());
        }
        let leaving = runs.iter().filter_map(|run| movable(guest, &owned, run).ok());
        let mut places: Vec<Range<Vpn>> = leaving.map(|leaving| leaving.place).collect();
        if !has_relatives {
            places.retain(|place| owned.shared.overlaps(place));
        }
        places.iter().for_each(|place| owned.shared.remove(place.clone()));
        drop(owned);
        if places.is_empty() {
            return Ok(());
        }
        agent.make_own(&places, &mut || {
            guest.catch_up(&mut guest.hold());
            let pages = places.iter().flat_map(Vpn::each);
            pages.for_each(|page| _ = guest.source.zero(&page.run(1)));
        })
    }

    /// Looks up where runs are, and has them moved and marked.
    fn move_held(
        &self,
        guest: &Guest,
        owned: &mut Owned,
        agent: &mut dyn Mover,
        runs: &[Range<PageNo>],
    ) -> Result<Vec<Unmapped>, AgentError> {
        let leaving: Vec<Result<Leaving, SpaceError>> =
            runs.iter().map(|run| movable(guest, owned, run)).collect();
        let batch: Vec<Leaving> = leaving.iter().flatten().cloned().collect();
        let mut moved = agent.move_out(&batch)?.into_iter();
        let ends = leaving.into_iter().map(|leaving| match leaving {
            Err(why) => stopped(why),
            Ok(Leaving { place, .. }) => {
                let moved = moved.next().expect("one for each place");
                self.end_of(guest, owned, &place, moved)
            }
        });
        Ok(ends.collect())
    }

    /// Marks what moved, and says why the rest did not.
    fn end_of(
        &self,
        guest: &Guest,
        owned: &mut Owned,
        place: &Range<Vpn>,
        moved: Moved,
    ) -> Unmapped {
        if moved.pages > 0 {
            guest.count_paged(-(moved.pages as i64));
            guest.mark(owned, place.start.run(moved.pages));
        }
        let at = place.start.plus(moved.pages);
        let stopped = moved.stopped.filter(|_| at < place.end);
        let stopped = stopped.map(|errno| self.why_not_moved(guest, owned, at, errno));
        Unmapped { moved: moved.pages as usize, stopped }
    }

    /// The meaning of UFFDIO_MOVE's errnos, for a page of a guest.
    fn why_not_moved(&self, guest: &Guest, owned: &mut Owned, at: Vpn, errno: Errno) -> SpaceError {
        match errno {
            // Pinned, or shared with a relative that was forked before the attach.
            Errno::BUSY => {
                note_busy(guest, owned, at);
                SpaceError::Pinned
            }
            // Of another protection than staging: read-only, executable, locked.
            Errno::INVAL => {
                owned.still.note_protected(at);
                SpaceError::Pinned
            }
            // Staging was touched, as mlockall does: it is emptied before the next request.
            Errno::EXIST => SpaceError::Busy,
            Errno::AGAIN | Errno::INTR | Errno::NOMEM => SpaceError::Busy,
            Errno::SRCH => {
                guest.ended();
                SpaceError::Gone
            }
            Errno::NOENT => self.why_absent(guest, owned, at),
            errno => {
                let line = format!("{}: a page at {at:?} cannot be moved: {errno}", guest.name());
                self.report("moving a page", line);
                SpaceError::Refused
            }
        }
    }

    /// A page that should be there is not: the guest has dropped it, and the message came before
    /// it did.
    fn why_absent(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> SpaceError {
        let Some(handles) = guest.handles() else { return SpaceError::Busy };
        match guest.entry(handles, owned, at) {
            Ok(Entry::Nothing | Entry::Guarded) if guest.drop_gone(owned, &at.run(1)) => {
                SpaceError::Gone
            }
            Ok(Entry::Nothing | Entry::Guarded) => SpaceError::Busy,
            Ok(Entry::Present) => SpaceError::Busy,
            Ok(Entry::Marked) if guest.is_changing(&at.run(1)) => SpaceError::Busy,
            Ok(Entry::Marked) => SpaceError::Missing,
            Err(_) => SpaceError::Gone,
        }
    }
}

/// Notes a page that did not move: if a relative has it, so it has others.
fn note_busy(guest: &Guest, owned: &mut Owned, at: Vpn) {
    let is_shared =
        guest.handles().is_some_and(|handles| handles.process.is_shared(at) == Ok(true));
    if is_shared {
        guest.has_relatives.store(true, Relaxed);
    }
    owned.shared.insert(at.run(if is_shared { SHARED_PAGES } else { 1 }));
}

/// Reads what has moved to the place of the first.
fn read_moved(
    agent: &mut dyn Mover,
    ends: &[Unmapped],
    (arena, at): (&PageArena, usize),
) -> Result<(), AgentError> {
    let pages: usize = ends.iter().map(|end| end.moved).sum();
    // SAFETY: the places of the destination are the caller's alone until it knows what moved, and
    // lie in the arena.
    let content = unsafe { std::slice::from_raw_parts_mut(arena.address(at), pages * PAGE_SIZE) };
    agent.read(content)
}

/// Returns how many of the first runs fit into a request; at least one.
fn batch_of(runs: &[Range<PageNo>]) -> usize {
    let mut pages = 0;
    let fitting = runs.iter().take_while(|run| {
        pages += run.end.index() - run.start.index();
        pages <= PAGES_MAX
    });
    fitting.count().max(1)
}

fn stopped(why: SpaceError) -> Unmapped {
    Unmapped { moved: 0, stopped: Some(why) }
}

fn pinned(runs: &[Range<PageNo>]) -> Vec<Unmapped> {
    vec![stopped(SpaceError::Pinned); runs.len()]
}

/// Returns the addresses of the start of a run, as far as they lie in order and may move.
fn movable(guest: &Guest, owned: &Owned, run: &Range<PageNo>) -> Result<Leaving, SpaceError> {
    if owned.is_forking() || guest.source.is_under_way() {
        return Err(SpaceError::Busy);
    }
    if !owned.is_confirmed || owned.is_leaving {
        return Err(SpaceError::Pinned);
    }
    let at = match owned.map.find(run.start) {
        Whereabouts::At(at) => at,
        Whereabouts::Later => return Err(SpaceError::Busy),
        Whereabouts::Nowhere => return Err(SpaceError::Gone),
    };
    let stays = |at: Vpn| {
        let (page, map) = (at.run(1), &owned.map);
        owned.needed.contains(&at) || map.is_doomed(&page) || map.is_removing(&page)
    };
    let in_order = owned.map.run_from(at).map_or(1, |run| u64::from(run.pages));
    let protection = guest.source.protection(at, &owned.still);
    let (protected_pages, protection) = protection.ok_or(SpaceError::Pinned)?;
    if !protection.is_none_or(Protection::may_move) {
        return Err(SpaceError::Pinned);
    }
    let most = in_order.min((run.end.0 - run.start.0).into()).min(PAGES_MAX as u64);
    let most = most.min(protected_pages);
    let pages = (0..most).take_while(|&n| !stays(at.plus(n))).count() as u64;
    let place = at.run(pages);
    match pages > 0 && guest.source.may_go_out(&place) {
        true => Ok(Leaving { place, protection }),
        false => Err(SpaceError::Pinned),
    }
}
