//! The pages of all guests, as one space of the engine's.
//!
//! Owns: the translation of the engine's requests into calls on the guests that the pages belong
//! to.
//! Invariants: a page is looked up, and what is done there is done, under one hold of its guest. A
//! call that finds a message outstanding reads and applies it, and starts over with a new look.
//! What a page that moved out held is read before the hold ends.
//! Not here: which page an address has (`serve`), new mappings (`care`).

use crate::agent::{Agent, AgentError, Moved};
use crate::guest::{Guest, Owned};
use crate::pieces::Pieces;
use overspill_base::report::{Cause, Reports};
use overspill_base::shared::PageArena;
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, MutexGuard};
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, Mapped, MovingSpace, SpaceError, Unmapped};
use overspill_guest::Vpn;
use overspill_guest::map::{Look, Whereabouts};
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Filled, Refusal, Userfault};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::OnceLock;

/// The space.
#[derive(Debug)]
pub(crate) struct GuestSpace {
    pub(crate) pieces: Pieces,
    reports: OnceLock<Arc<Reports>>,
}

/// How often a batch is tried of which nothing moves because the guest changes.
const TRIES: u32 = 100;

/// A page of them.
static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// What to do about a page that could not be filled.
enum Next {
    Retry,
    /// It is there.
    Skip,
    Stop(SpaceError),
}

impl GuestSpace {
    /// Makes the space of a table with `pages` words.
    pub(crate) fn new(pages: usize) -> Self {
        Self { pieces: Pieces::new(pages), reports: OnceLock::new() }
    }

    /// Says once, and at powers of ten, what is not as it should be.
    pub(crate) fn report(&self, what: &'static str, line: String) {
        if let Some(reports) = self.reports.get() {
            reports.tell(Cause::of(what), line);
        }
    }

    /// Runs `f` with the guest that has `page`, and its address; [`SpaceError::Gone`] if it is
    /// nowhere. Waits while that is in doubt.
    fn at_page<R>(
        &self,
        page: PageNo,
        f: impl FnOnce(&Guest, MutexGuard<'_, Owned>, Vpn) -> R,
    ) -> Result<R, SpaceError> {
        let guest = self.pieces.owner(page).ok_or(SpaceError::Gone)?;
        loop {
            let mut owned = guest.hold();
            if guest.has_ended() {
                return Err(SpaceError::Gone);
            }
            match owned.map.find(page) {
                Whereabouts::At(at) => return Ok(f(&guest, owned, at)),
                Whereabouts::Nowhere => return Err(SpaceError::Gone),
                Whereabouts::Later => guest.catch_up(&mut owned),
            }
            drop(owned);
            std::thread::yield_now();
        }
    }

    /// Fills pages with `content`, or with zeros.
    fn fill(&self, first: PageNo, pages: usize, content: Option<&[u8]>) -> Mapped {
        let (mut done, mut most) = (0, usize::MAX);
        while done < pages {
            let page = first.plus(done);
            let step = self.at_page(page, |guest, mut owned, at| {
                let run = owned.map.run_of(page).map_or(1, |run| run.pages as usize);
                let place = at.run(run.min(pages - done).min(most) as u64);
                let filled = match content {
                    Some(content) => {
                        self.copy(guest, &mut owned, &place, &content[done * PAGE_SIZE..])
                    }
                    None => Ok(guest.userfault.zero(&place)),
                };
                let filled = match filled {
                    Ok(filled) => filled,
                    Err(next) => return (0, Some(next)),
                };
                if filled.pages > 0 {
                    let place = at.run(filled.pages as u64);
                    owned.map.seen_new(place.clone());
                    owned.map.marked(place);
                }
                let next = filled.stopped.map(|why| {
                    let at = at.plus(filled.pages as u64);
                    self.refused(guest, &mut owned, at, (why, pages_of(&place) > 1))
                });
                (filled.pages, next)
            });
            let (filled, next) = match step {
                Ok(step) => step,
                // The engine is about to be told that the guest gave it up; those behind it did
                // not.
                Err(SpaceError::Gone) if content.is_some() => (1, None),
                Err(stopped) => return Mapped { pages: done, stopped: Some(stopped) },
            };
            done += filled;
            most = if filled > 0 { usize::MAX } else { most };
            match next {
                None => {}
                Some(Next::Skip) => done += 1,
                Some(Next::Stop(stopped)) => return Mapped { pages: done, stopped: Some(stopped) },
                // Perhaps the run lies in two mappings.
                Some(Next::Retry) => {
                    most = 1;
                    std::thread::yield_now();
                }
            }
        }
        Mapped::all(pages)
    }

    /// Copies content to addresses that have a mark: what was dropped meanwhile is not brought back.
    ///
    /// # Errors
    /// The first page was dropped, and its number is the engine's to discard, or it may have moved.
    fn copy(
        &self,
        guest: &Guest,
        owned: &mut Owned,
        place: &Range<Vpn>,
        content: &[u8],
    ) -> Result<Filled, Next> {
        let out = guest.out_pages(owned, place);
        if out > 0 {
            return Ok(guest.userfault.copy(place.start, &content[..out * PAGE_SIZE]));
        }
        if guest.drop_gone(owned, &place.start.run(1)) {
            return Err(Next::Skip);
        }
        guest.catch_up(owned);
        Err(Next::Retry)
    }

    /// Decides what follows from a refusal at `at`; a run of several pages may have been refused
    /// as a whole.
    fn refused(
        &self,
        guest: &Guest,
        owned: &mut Owned,
        at: Vpn,
        (why, of_several): (Refusal, bool),
    ) -> Next {
        match why {
            Refusal::Changing => {
                guest.catch_up(owned);
                Next::Retry
            }
            Refusal::Present => self.over_mark(guest, owned, at),
            Refusal::NoMapping if of_several => Next::Retry,
            Refusal::NoMapping => self.without_mapping(guest, owned, at),
            Refusal::NoMemory => Next::Stop(SpaceError::Busy),
            Refusal::Gone => {
                guest.ended();
                Next::Stop(SpaceError::Gone)
            }
            Refusal::Unexpected(_) => {
                self.report("filling a page", format!("{}: a page at {at:?}: {why}", guest.name));
                Next::Stop(SpaceError::Refused)
            }
        }
    }

    /// UFFDIO_ZEROPAGE takes a mark for a page; zeros are to be copied there. The mark is of
    /// content that was zeros when it went out, so that nobody has it.
    fn over_mark(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> Next {
        if guest.entry(owned, at) != Ok(Entry::Marked) {
            guest.userfault.wake(&at.run(1));
            return Next::Skip;
        }
        match guest.userfault.copy(at, &ZEROS).stopped {
            None => {
                owned.map.marked(at.run(1));
                Next::Skip
            }
            Some(Refusal::Present) => Next::Retry,
            Some(why) => self.refused(guest, owned, at, (why, false)),
        }
    }

    /// A page is bound where nothing is registered: a message of it is outstanding, or was lost
    /// with the thread that would have waited for it.
    fn without_mapping(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> Next {
        match guest.userfault.look(&at.run(1)) {
            Ok(Look::NotRegistered) => {
                owned.map.drop_gone(&at.run(1));
                Next::Stop(SpaceError::Gone)
            }
            Ok(Look::Changing | Look::Registered) => {
                guest.catch_up(owned);
                Next::Retry
            }
            Err(why) => {
                guest.note(why);
                Next::Stop(SpaceError::Gone)
            }
        }
    }

    /// As [`move_out`](Self::move_out); while nothing moves because a message is outstanding, that
    /// is read first.
    fn move_some(
        &self,
        guest: &Guest,
        runs: &[Range<PageNo>],
        arena: (&PageArena, usize),
    ) -> Vec<Unmapped> {
        let mut tries = 0;
        loop {
            let mut owned = guest.hold();
            let ends = self.move_out(guest, &mut owned, runs, arena);
            let is_busy = |end: &Unmapped| end.moved == 0 && end.stopped == Some(SpaceError::Busy);
            if tries == TRIES || !ends.iter().all(is_busy) {
                return ends;
            }
            tries += 1;
            guest.catch_up(&mut owned);
            drop(owned);
            std::thread::yield_now();
        }
    }

    /// Moves out what it can of `runs`, pages of one guest, and reads it to `content`. Returns an
    /// end for each run.
    fn move_out(
        &self,
        guest: &Guest,
        owned: &mut Owned,
        runs: &[Range<PageNo>],
        arena: (&PageArena, usize),
    ) -> Vec<Unmapped> {
        let places: Vec<Result<Range<Vpn>, SpaceError>> =
            runs.iter().map(|run| movable(owned, run)).collect();
        let batch: Vec<Range<Vpn>> = places.iter().flatten().cloned().collect();
        let moved = match self.move_batch(owned, &batch, arena) {
            Ok(moved) => moved,
            Err(why) => {
                self.end_of_agent(guest, &why);
                return vec![stopped(SpaceError::Gone); runs.len()];
            }
        };
        let mut moved = batch.into_iter().zip(moved);
        let ends = places.into_iter().map(|place| match place {
            Err(why) => stopped(why),
            Ok(_) => {
                let (place, moved) = moved.next().expect("one for each place");
                self.end_of(guest, owned, &place, moved)
            }
        });
        ends.collect()
    }

    fn move_batch(
        &self,
        owned: &mut Owned,
        batch: &[Range<Vpn>],
        (arena, at): (&PageArena, usize),
    ) -> Result<Vec<Moved>, AgentError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let moved = owned.agent.move_out(batch)?;
        let pages: u64 = moved.iter().map(|moved| moved.pages).sum();
        if pages > 0 {
            // SAFETY: the places of the destination are the caller's alone until it knows what
            // moved, and lie in the arena.
            let content = unsafe {
                std::slice::from_raw_parts_mut(arena.address(at), pages as usize * PAGE_SIZE)
            };
            owned.agent.read(content)?;
        }
        Ok(moved)
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
            // Pinned, or shared with a relative.
            Errno::BUSY => SpaceError::Pinned,
            // Of another protection than staging: read-only, executable, locked.
            Errno::INVAL => SpaceError::Pinned,
            Errno::AGAIN | Errno::INTR | Errno::NOMEM => SpaceError::Busy,
            Errno::SRCH => {
                guest.ended();
                SpaceError::Gone
            }
            Errno::NOENT => self.why_absent(guest, owned, at),
            errno => {
                let line = format!("{}: a page at {at:?} cannot be moved: {errno}", guest.name);
                self.report("moving a page", line);
                SpaceError::Refused
            }
        }
    }

    /// A page that should be there is not: the guest has dropped it, and the message came before
    /// it did.
    fn why_absent(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> SpaceError {
        match guest.entry(owned, at) {
            Ok(Entry::Nothing | Entry::Guarded) if guest.drop_gone(owned, &at.run(1)) => {
                SpaceError::Gone
            }
            Ok(Entry::Nothing | Entry::Guarded) => SpaceError::Busy,
            Ok(Entry::Present) => SpaceError::Busy,
            Ok(Entry::Marked) => SpaceError::Missing,
            Err(_) => SpaceError::Gone,
        }
    }

    /// Without its agent a guest cannot be limited, and where its pages are is not known.
    fn end_of_agent(&self, guest: &Guest, why: &AgentError) {
        if !guest.has_ended() && !guest.is_over() {
            self.report("an agent", format!("{} is ended: {why}", guest.name));
        }
        guest.kill();
    }
}

fn pages_of(place: &Range<Vpn>) -> usize {
    (place.end.0 - place.start.0) as usize
}

fn stopped(why: SpaceError) -> Unmapped {
    Unmapped { moved: 0, stopped: Some(why) }
}

/// Returns the addresses of the start of a run, as far as they lie in order and may move.
fn movable(owned: &Owned, run: &Range<PageNo>) -> Result<Range<Vpn>, SpaceError> {
    let at = match owned.map.find(run.start) {
        Whereabouts::At(at) => at,
        Whereabouts::Later => return Err(SpaceError::Busy),
        Whereabouts::Nowhere => return Err(SpaceError::Gone),
    };
    let stays = |at: Vpn| owned.needed.contains(&at) || owned.map.is_doomed(&at.run(1));
    let in_order = owned.map.run_of(run.start).map_or(1, |run| u64::from(run.pages));
    let most = in_order.min((run.end.0 - run.start.0).into()).min(Agent::PAGES_MAX as u64);
    let pages = (0..most).take_while(|&n| !stays(at.plus(n))).count() as u64;
    if pages > 0 { Ok(at.run(pages)) } else { Err(SpaceError::Pinned) }
}

impl AddressSpace for GuestSpace {
    fn span(&self, page: PageNo) -> usize {
        let span = self.at_page(page, |_, owned, _| owned.map.run_of(page));
        span.ok().flatten().map_or(0, |run| run.pages as usize)
    }

    fn report_to(&self, _: &Stats, reports: &Arc<Reports>) {
        let _ = self.reports.set(reports.clone());
    }

    /// The guest has dropped them itself.
    fn zap(&self, _: PageNo, _: usize) {}

    fn wake(&self, page: PageNo) {
        let _ = self.at_page(page, |guest, _, at| guest.userfault.wake(&at.run(1)));
    }

    fn poison(&self, page: PageNo) {
        let poisoned = self.at_page(page, |guest, mut owned, at| {
            for _ in 0..100 {
                match guest.userfault.poison(at) {
                    Err(Refusal::Changing) => guest.catch_up(&mut owned),
                    // A page is there, or nobody waits any more.
                    Ok(()) | Err(Refusal::Present | Refusal::NoMapping | Refusal::Gone) => {
                        guest.userfault.wake(&at.run(1));
                        return true;
                    }
                    Err(Refusal::NoMemory | Refusal::Unexpected(_)) => break,
                }
            }
            self.report("a lost page", format!("{} is ended: it has lost a page", guest.name));
            guest.kill();
            false
        });
        let _ = poisoned;
    }
}

impl MovingSpace for GuestSpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        self.fill(first, content.len() / PAGE_SIZE, Some(content))
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        self.fill(first, pages, None)
    }

    /// A page that the guest has dropped, or whose number it gave up, is not missing: who waits for
    /// it asks again, and the engine is about to be told.
    fn find(&self, page: PageNo) -> bool {
        let found = self.at_page(page, |guest, mut owned, at| match guest.entry(&owned, at) {
            Ok(Entry::Present | Entry::Guarded) => {
                guest.userfault.wake(&at.run(1));
                true
            }
            Ok(Entry::Nothing) if guest.userfault.abilities().marks => {
                if !guest.drop_gone(&mut owned, &at.run(1)) {
                    guest.userfault.wake(&at.run(1));
                }
                true
            }
            Ok(Entry::Nothing | Entry::Marked) => false,
            Err(_) => true,
        });
        found.unwrap_or(true)
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        let mut ends = Vec::with_capacity(1);
        let run = first..first.plus(destination.len());
        self.unmap_runs(&[run], arena, destination, &mut ends);
        ends[0]
    }

    fn unmap_runs(
        &self,
        runs: &[Range<PageNo>],
        arena: &PageArena,
        destination: Range<usize>,
        ends: &mut Vec<Unmapped>,
    ) {
        let mut at = destination.start;
        let mut rest = runs;
        while let Some(first) = rest.first() {
            let Some(guest) = self.pieces.owner(first.start) else {
                ends.push(stopped(SpaceError::Gone));
                rest = &rest[1..];
                continue;
            };
            let (batch, later) = rest.split_at(self.batch_of(&guest, rest));
            let moved = self.move_some(&guest, batch, (arena, at));
            at += moved.iter().map(|end| end.moved).sum::<usize>();
            ends.extend(moved);
            rest = later;
        }
    }

    fn recycle(&self, arena: &PageArena, pages: Range<usize>) {
        arena.drop_pages(pages);
    }

    /// Guests move their pages themselves, and the pages keep their numbers.
    fn transfer(&self, _: PageNo, _: PageNo) -> Result<(), SpaceError> {
        Err(SpaceError::Refused)
    }
}

impl GuestSpace {
    /// Returns how many of the first runs are of one guest and fit into a request; at least one.
    fn batch_of(&self, guest: &Arc<Guest>, runs: &[Range<PageNo>]) -> usize {
        let mut pages = 0;
        let fitting = runs.iter().take(Agent::RUNS_MAX).take_while(|run| {
            pages += run.end.index() - run.start.index();
            let owner = self.pieces.owner(run.start);
            pages <= Agent::PAGES_MAX && owner.is_some_and(|owner| Arc::ptr_eq(&owner, guest))
        });
        fitting.count().max(1)
    }
}
