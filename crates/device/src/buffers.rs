//! Memory through which a queue's requests pass.
//!
//! Owns: which pages of an arena are in a request.
//! Invariants: a page is in one request at a time. A request's pages are adjacent, so that they are
//! moved as one piece, and as near to the start as possible: what is beyond the usual pages is for
//! larger requests only, and is not even resident as long as there are none.

use overspill_base::shared::{PageArena, PageBuf};
use std::ops::Range;

/// Pages for one request at least.
pub(crate) struct Buffers {
    arena: PageArena,
    usual: usize,
    taken: Box<[bool]>,
}

impl Buffers {
    /// Gives out the pages of `arena`, which has at least those of a request. Requests of less than
    /// `usual` pages share that many.
    pub(crate) fn of(arena: PageArena, usual: usize) -> Self {
        let taken = vec![false; arena.pages()].into();
        Self { arena, usual, taken }
    }

    /// Lets smaller requests share `usual` pages from now on, at most all there are.
    pub(crate) fn set_usual(&mut self, usual: usize) {
        self.usual = usual.min(self.taken.len());
    }

    /// Takes adjacent pages into `taken`; false if there are not as many beside each other. The
    /// caller drops no arena while a request has such a page, and gives the page back once.
    pub(crate) fn take(&mut self, pages: usize, taken: &mut Vec<PageBuf>) -> bool {
        let Some(run) = self.free_run(pages) else { return false };
        self.taken[run.clone()].fill(true);
        // SAFETY: a page is not taken again before it was given back, when its request has
        // completed; until then the caller keeps the arena. If not, a device would write to memory
        // with another owner.
        taken.extend(run.map(|page| unsafe { self.arena.page(page) }));
        true
    }

    fn free_run(&self, pages: usize) -> Option<Range<usize>> {
        let (least, mut free) = (pages.max(1), 0);
        let last = self.taken[..pages.max(self.usual)].iter().position(|&taken| {
            free = if taken { 0 } else { free + 1 };
            free == least
        })?;
        let first = last + 1 - least;
        Some(first..first + pages)
    }

    /// Takes a page back.
    pub(crate) fn give(&mut self, page: &PageBuf) {
        let index = self.index_of(page);
        self.taken[index] = false;
    }

    /// The number of a page in the arena.
    pub(crate) fn index_of(&self, page: &PageBuf) -> usize {
        self.arena.index_of(page).expect("it was taken from the arena")
    }
}
