//! The pages of all guests, as one space of the engine's.
//!
//! Owns: the translation of the engine's requests into calls on the guests that the pages belong
//! to.
//! Invariants: a page is looked up, and what is done there is done, under one hold of its guest. A
//! call that finds a message outstanding reads and applies it, and starts over with a new look.
//! Nobody waits here for longer than a moment for what a guest is in the middle of: the front may
//! have stopped it, and wait for this thread. The engine then leaves the page where it is, and who
//! touches it asks again.
//! Not here: the way out (`moving`), which page an address has (`serve`), new mappings (`survey`).

use crate::arrivals::Arrivals;
use crate::guest::{Ended, Guest, pause};
use crate::owned::Owned;
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
use overspill_guest::userfault::{Filled, Refusal};
use std::ops::Range;
use std::sync::OnceLock;

/// The space.
#[derive(Debug)]
pub(crate) struct GuestSpace {
    pub(crate) pieces: Pieces,
    reports: OnceLock<Arc<Reports>>,
    arrivals: Option<Arrivals>,
}

/// How often it is tried, with pauses: longer than a guest takes that is not stopped meanwhile.
const TRIES: usize = 50;

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
    pub(crate) fn new(pages: usize, arrivals: Option<Arrivals>) -> Self {
        Self { pieces: Pieces::new(pages), reports: OnceLock::new(), arrivals }
    }

    /// Says once, and at powers of ten, what is not as it should be.
    pub(crate) fn report(&self, what: &'static str, line: String) {
        if let Some(reports) = self.reports.get() {
            reports.tell(Cause::of(what), line);
        }
    }

    /// Runs `f` with the guest that has `page`, and its address; [`SpaceError::Gone`] if it is
    /// nowhere, [`SpaceError::Changing`] if that is in doubt for longer than a moment; who waits
    /// for it is woken when it is not any more.
    fn at_page<R>(
        &self,
        page: PageNo,
        f: impl FnOnce(&Guest, MutexGuard<'_, Owned>, Vpn) -> R,
    ) -> Result<R, SpaceError> {
        let guest = self.pieces.owner(page).ok_or(SpaceError::Gone)?;
        for _ in 0..TRIES {
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
            pause();
        }
        guest.hold().all_stirred = true;
        guest.call_reader();
        Err(SpaceError::Changing)
    }

    /// Fills pages with `content`, or with zeros.
    fn fill(&self, first: PageNo, pages: usize, content: Option<&[u8]>) -> Mapped {
        let (mut done, mut most, mut tries) = (0, usize::MAX, 0);
        while done < pages {
            let page = first.plus(done);
            let step = self.at_page(page, |guest, mut owned, at| {
                if owned.is_forking() {
                    return (0, Some(Next::Stop(SpaceError::Changing)));
                }
                let run = owned.map.run_of(page).map_or(1, |run| run.pages as usize);
                let place = at.run(run.min(pages - done).min(most) as u64);
                let filled = match content {
                    Some(content) => {
                        self.copy(guest, &mut owned, &place, &content[done * PAGE_SIZE..])
                    }
                    None => Ok(guest.eye.zero(&place)),
                };
                let filled = match filled {
                    Ok(filled) => filled,
                    Err(next) => return (0, Some(next)),
                };
                if filled.pages > 0 {
                    guest.count_paged(filled.pages as i64);
                    let place = at.run(filled.pages as u64);
                    if let Some(arrivals) = &self.arrivals {
                        arrivals.note(guest.number, place.clone(), content.is_some());
                    }
                    owned.map.seen_new(place.clone());
                    owned.map.marked(place);
                }
                let next = filled.stopped.map(|why| {
                    let at = at.plus(filled.pages as u64);
                    self.refused(guest, &mut owned, at, (why, Vpn::pages(&place) > 1))
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
            (most, tries) = if filled > 0 { (usize::MAX, 0) } else { (most, tries + 1) };
            match next {
                None => {}
                Some(Next::Skip) => done += 1,
                Some(Next::Stop(stopped)) => return Mapped { pages: done, stopped: Some(stopped) },
                Some(Next::Retry) if tries > TRIES => {
                    return Mapped { pages: done, stopped: Some(SpaceError::Changing) };
                }
                // Perhaps the run lies in two mappings.
                Some(Next::Retry) => {
                    most = 1;
                    pause();
                }
            }
        }
        Mapped::all(pages)
    }

    /// Copies content to addresses that have a mark: what was dropped meanwhile is not brought
    /// back.
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
        let Some(known) = guest.known() else {
            return copy_to_child(guest, owned, place.start, &content[..PAGE_SIZE]);
        };
        let out = guest.out_pages(known, owned, place);
        if out > 0 {
            return Ok(guest.eye.copy(place.start, &content[..out * PAGE_SIZE]));
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
                self.report("filling a page", format!("{}: a page at {at:?}: {why}", guest.name()));
                Next::Stop(SpaceError::Refused)
            }
        }
    }

    /// UFFDIO_ZEROPAGE takes a mark for a page; zeros are to be copied there. The mark is of
    /// content that was zeros when it went out, so that nobody has it.
    fn over_mark(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> Next {
        let entry = guest.known().map(|known| guest.entry(known, owned, at));
        match entry.unwrap_or(Ok(Entry::Marked)) {
            Ok(Entry::Marked) => {}
            Ok(Entry::Present | Entry::Guarded) => {
                guest.eye.wake(&at.run(1));
                return Next::Skip;
            }
            // It may have moved since.
            Ok(Entry::Nothing) => {
                guest.catch_up(owned);
                return Next::Retry;
            }
            Err(_) => return Next::Stop(SpaceError::Gone),
        }
        match guest.eye.copy(at, &ZEROS).stopped {
            None => {
                owned.map.marked(at.run(1));
                Next::Skip
            }
            Some(Refusal::Present) if guest.known().is_none() => Next::Skip,
            Some(Refusal::Present) => Next::Retry,
            Some(why) => self.refused(guest, owned, at, (why, false)),
        }
    }

    /// A page is bound where nothing is registered: a message of it is outstanding, or was lost
    /// with the thread that would have waited for it.
    fn without_mapping(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> Next {
        match guest.eye.look(&at.run(1)) {
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
}

/// Copies content to a page of a child that is not attached to: zeros first, which the kernel
/// refuses where a mark is.
fn copy_to_child(
    guest: &Guest,
    owned: &mut Owned,
    at: Vpn,
    content: &[u8],
) -> Result<Filled, Next> {
    let is_unmarked = owned.map.unmarked(&at.run(1)).next().is_some();
    let zeros = if is_unmarked { None } else { Some(guest.eye.zero(&at.run(1))) };
    match zeros.map(|zeros| zeros.stopped) {
        None | Some(Some(Refusal::Present)) => Ok(guest.eye.copy(at, content)),
        Some(None) => {
            owned.map.drop_gone(&at.run(1));
            Err(Next::Skip)
        }
        Some(stopped) => Ok(Filled { pages: 0, stopped }),
    }
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
        let _ = self.at_page(page, |guest, _, at| guest.eye.wake(&at.run(1)));
    }

    fn poison(&self, page: PageNo) {
        let _ = self.at_page(page, |guest, mut owned, at| {
            for _ in 0..100 {
                match guest.eye.poison(at) {
                    Err(Refusal::Changing) => guest.catch_up(&mut owned),
                    // A page is there, or nobody waits any more.
                    Ok(()) | Err(Refusal::Present | Refusal::NoMapping | Refusal::Gone) => {
                        return guest.eye.wake(&at.run(1));
                    }
                    Err(Refusal::NoMemory | Refusal::Unexpected(_)) => break,
                }
            }
            self.report("a lost page", format!("{} is ended: it has lost a page", guest.name()));
            guest.kill();
        });
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
        let found = self.at_page(page, |guest, mut owned, at| {
            let has_marks = guest.eye.abilities().marks;
            let entry = guest.known().map(|known| guest.entry(known, &owned, at));
            let is_there = match entry.unwrap_or(Ok(Entry::Present)) {
                Ok(Entry::Present | Entry::Guarded) | Err(Ended) => true,
                // It, and what is there now, may have moved.
                Ok(Entry::Nothing | Entry::Marked) if guest.is_changing(&at.run(1)) => true,
                Ok(Entry::Nothing) if has_marks => guest.drop_gone(&mut owned, &at.run(1)),
                Ok(Entry::Nothing | Entry::Marked) => false,
            };
            if is_there {
                guest.eye.wake(&at.run(1));
            }
            is_there
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
    ) -> usize {
        self.move_all(runs, (arena, destination.start), ends)
    }

    fn copies_out(&self) -> bool {
        true
    }

    fn recycle(&self, arena: &PageArena, pages: Range<usize>) {
        arena.drop_pages(pages);
    }
}
