//! The way of pages into guests.
//!
//! Owns: filling, and what the kernel's refusals mean.
//! Invariant: a call that finds a message outstanding reads and applies it, and starts over with a
//! new look.
//! Not here: the way out (`move_out`), which page an address has (`serve`).

use super::guest_space::{GuestSpace, TRIES};
use crate::guest::events::pause;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{Mapped, SpaceError};
use overspill_guest::Vpn;
use overspill_guest::map::Look;
use overspill_guest::pagemap::Entry;
use overspill_guest::userfault::{Filled, Refusal};
use std::ops::Range;

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
    /// Fills pages with `content`, or with zeros.
    pub(crate) fn fill(&self, first: PageNo, pages: usize, content: Option<&[u8]>) -> Mapped {
        let (mut done, mut most, mut tries) = (0, usize::MAX, 0);
        while done < pages {
            let page = first.plus(done);
            let step = self.at_page(page, |guest, mut owned, at| {
                if owned.is_forking() {
                    return (0, Some(Next::Stop(SpaceError::Changing)));
                }
                let run = owned.map.run_from(at).map_or(1, |run| run.pages as usize);
                let place = at.run(run.min(pages - done).min(most) as u64);
                let filled = match content {
                    Some(content) => {
                        self.copy(guest, &mut owned, &place, &content[done * PAGE_SIZE..])
                    }
                    None => Ok(guest.source.zero(&place)),
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
        let Some(handles) = guest.handles() else {
            return copy_to_child(guest, owned, place.start, &content[..PAGE_SIZE]);
        };
        let out = guest.out_pages(handles, owned, place);
        if out > 0 {
            return Ok(guest.source.copy(place.start, &content[..out * PAGE_SIZE]));
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
        let entry = guest.handles().map(|handles| guest.entry(handles, owned, at));
        match entry.unwrap_or(Ok(Entry::Marked)) {
            Ok(Entry::Marked) => {}
            Ok(Entry::Present | Entry::Guarded) => {
                guest.source.wake(&at.run(1));
                return Next::Skip;
            }
            // It may have moved since.
            Ok(Entry::Nothing) => {
                guest.catch_up(owned);
                return Next::Retry;
            }
            Err(_) => return Next::Stop(SpaceError::Gone),
        }
        match guest.source.copy(at, &ZEROS).stopped {
            None => {
                owned.map.marked(at.run(1));
                Next::Skip
            }
            Some(Refusal::Present) if guest.handles().is_none() => Next::Skip,
            Some(Refusal::Present) => Next::Retry,
            Some(why) => self.refused(guest, owned, at, (why, false)),
        }
    }

    /// A page is bound where nothing is registered: a message of it is outstanding, or was lost
    /// with the thread that would have waited for it.
    fn without_mapping(&self, guest: &Guest, owned: &mut Owned, at: Vpn) -> Next {
        match guest.source.look(&at.run(1)) {
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
    let zeros = if is_unmarked { None } else { Some(guest.source.zero(&at.run(1))) };
    match zeros.map(|zeros| zeros.stopped) {
        None | Some(Some(Refusal::Present)) => Ok(guest.source.copy(at, content)),
        Some(None) => {
            owned.map.drop_gone(&at.run(1));
            Err(Next::Skip)
        }
        Some(stopped) => Ok(Filled { pages: 0, stopped }),
    }
}
