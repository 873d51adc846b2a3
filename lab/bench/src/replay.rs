//! An address space in plain memory, for replaying accesses without kernel faults.
//!
//! Owns: a page's place, whether it is present, and the lock that makes moving it atomic against
//! touching it.
//! Invariants: a page is read and written only with its lock held. Places are never freed, so
//! nothing is allocated during a measurement.
//! Not here: waiting. A thread that finds a page missing asks the engine and looks again.
//! Rejected: a heap block per present page, whose allocator would be measured too.

use overspill_base::shared::{PageArena, PageBuf};
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{AddressSpace, Mapped, MovingSpace, SpaceError, Unmapped};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of a page as a program sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Missing,
    Present,
    Poisoned,
}

/// The result of looking at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look<R> {
    /// It is present; the result of the callback.
    Present(R),
    /// A fault.
    Missing,
    /// Its content is lost.
    Poisoned,
}

/// Adjacent pages, each present or not.
pub(crate) struct ReplaySpace {
    arena: PageArena,
    pages: Vec<Mutex<Seen>>,
}

impl ReplaySpace {
    /// Makes `pages` pages, none present.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new(pages: usize) -> std::io::Result<Self> {
        let places = (0..pages).map(|_| Mutex::new(Seen::Missing)).collect();
        Ok(Self { arena: PageArena::new(pages)?, pages: places })
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Runs `f` on the content of `page` if it is present.
    pub(crate) fn look<R>(&self, page: PageNo, f: impl FnOnce(&mut [u8]) -> R) -> Look<R> {
        let seen = self.lock(page);
        match *seen {
            Seen::Present => Look::Present(f(&mut self.content(page, &seen))),
            Seen::Missing => Look::Missing,
            Seen::Poisoned => Look::Poisoned,
        }
    }

    fn lock(&self, page: PageNo) -> MutexGuard<'_, Seen> {
        self.pages[page.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the place of a page whose lock is held, as the guard proves.
    fn content(&self, page: PageNo, _held: &MutexGuard<'_, Seen>) -> PageBuf {
        // SAFETY: the arena lives as long as self, and the page's lock excludes every other handle:
        // this is the only function that makes one, and none outlives its caller's guard.
        unsafe { self.arena.page(page.index()) }
    }

    fn fill(&self, page: PageNo, write: impl FnOnce(&mut [u8])) {
        let mut seen = self.lock(page);
        if *seen == Seen::Missing {
            write(&mut self.content(page, &seen));
            *seen = Seen::Present;
        }
    }

    fn take(&self, page: PageNo, read: impl FnOnce(&[u8])) -> Result<(), SpaceError> {
        let mut seen = self.lock(page);
        if *seen != Seen::Present {
            return Err(SpaceError::Missing);
        }
        read(&self.content(page, &seen));
        *seen = Seen::Missing;
        Ok(())
    }
}

impl AddressSpace for ReplaySpace {
    fn span(&self, page: PageNo) -> usize {
        self.pages.len() - page.index()
    }

    fn zap(&self, first: PageNo, pages: usize) {
        (0..pages).for_each(|n| *self.lock(first.plus(n)) = Seen::Missing);
    }

    fn wake(&self, _: PageNo) {}

    fn poison(&self, page: PageNo) {
        *self.lock(page) = Seen::Poisoned;
    }
}

impl MovingSpace for ReplaySpace {
    fn map(&self, first: PageNo, content: &[u8]) -> Mapped {
        for (n, page) in content.chunks_exact(PAGE_SIZE).enumerate() {
            self.fill(first.plus(n), |place| place.copy_from_slice(page));
        }
        Mapped::all(content.len() / PAGE_SIZE)
    }

    fn map_zeros(&self, first: PageNo, pages: usize) -> Mapped {
        (0..pages).for_each(|n| self.fill(first.plus(n), |place| place.fill(0)));
        Mapped::all(pages)
    }

    fn find(&self, page: PageNo) -> bool {
        *self.lock(page) == Seen::Present
    }

    fn unmap(&self, first: PageNo, arena: &PageArena, destination: Range<usize>) -> Unmapped {
        let pages = destination.len();
        for (n, index) in destination.enumerate() {
            let taken = self.take(first.plus(n), |content| {
                // SAFETY: the engine reserved this destination page for this call.
                unsafe { arena.page(index) }.copy_from_slice(content);
            });
            if let Err(error) = taken {
                return Unmapped { moved: n, stopped: Some(error) };
            }
        }
        Unmapped { moved: pages, stopped: None }
    }

    fn recycle(&self, _: &PageArena, _: Range<usize>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ReplaySpace {
        ReplaySpace::new(4).unwrap()
    }

    fn first_byte(space: &ReplaySpace, page: u32) -> Look<u8> {
        space.look(PageNo(page), |content| content[0])
    }

    #[test]
    fn a_page_leaves_with_its_last_content_and_comes_back() {
        let (space, arena) = (space(), PageArena::new(2).unwrap());
        space.map_zeros(PageNo(1), 2);
        space.look(PageNo(2), |content| content[0] = 7);
        let unmapped = space.unmap(PageNo(1), &arena, 0..2);
        assert_eq!(unmapped, Unmapped { moved: 2, stopped: None });
        assert_eq!(first_byte(&space, 2), Look::Missing);
        // SAFETY: the only handle.
        let landed = unsafe { arena.page(1) };
        space.map(PageNo(2), &landed);
        assert_eq!(first_byte(&space, 2), Look::Present(7));
    }

    #[test]
    fn a_present_page_stays_as_it_is() {
        let space = space();
        space.map(PageNo(0), &[5; PAGE_SIZE]);
        space.map_zeros(PageNo(0), 1);
        assert_eq!(first_byte(&space, 0), Look::Present(5));
    }

    #[test]
    fn unmapping_stops_at_a_hole() {
        let (space, arena) = (space(), PageArena::new(2).unwrap());
        space.map_zeros(PageNo(0), 1);
        let unmapped = space.unmap(PageNo(0), &arena, 0..2);
        assert_eq!(unmapped, Unmapped { moved: 1, stopped: Some(SpaceError::Missing) });
    }

    #[test]
    fn poison_stays_and_what_is_zapped_is_missing() {
        let space = space();
        space.map(PageNo(3), &[9; PAGE_SIZE]);
        assert_eq!(first_byte(&space, 3), Look::Present(9));
        space.poison(PageNo(0));
        assert_eq!(first_byte(&space, 0), Look::Poisoned);
        space.zap(PageNo(3), 1);
        assert_eq!(first_byte(&space, 3), Look::Missing);
    }
}
