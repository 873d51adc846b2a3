//! The pages of a pool, as the engine sees them.
//!
//! Owns: [`words`], one per page, and what revealing and hiding a page means for them. Pages are used
//! by asking ([`Words`]), never by touching an address, so nobody faults and nobody is to be woken:
//! whoever finds a page absent has the engine bring it and asks again.
//! Not here: bringing pages, and guards (`overspill`); frames and their homes (`engine`).

pub mod words;

use overspill_base::shared::PageArena;
use overspill_base::{FrameNo, PageNo};
use overspill_engine::{AddressSpace, Hidden, Mapped, SpaceError, Unmapped};
use std::ops::Range;
use words::Words;

/// A space of pages that have words instead of addresses.
#[derive(Debug)]
pub struct PoolSpace {
    words: Words,
}

impl PoolSpace {
    /// A space of the pages that `words` has.
    pub fn new(words: Words) -> Self {
        Self { words }
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &Words {
        &self.words
    }
}

/// What moves pages is never called: they stay in the homes of their frames.
impl AddressSpace for PoolSpace {
    fn span(&self, page: PageNo) -> usize {
        self.words.len().saturating_sub(page.index())
    }

    fn reveal(&self, page: PageNo, frame: FrameNo) {
        self.words.reveal(page, frame);
    }

    fn hide(&self, page: PageNo) -> Hidden {
        self.words.hide(page)
    }

    fn zap(&self, first: PageNo, pages: usize) {
        (0..pages).for_each(|n| self.words.take_away(first.plus(n)));
    }

    fn map(&self, _: PageNo, _: &[u8]) -> Mapped {
        Mapped { pages: 0, stopped: Some(SpaceError::Gone) }
    }

    fn map_zeros(&self, _: PageNo, _: usize) -> Mapped {
        Mapped { pages: 0, stopped: Some(SpaceError::Gone) }
    }

    fn find(&self, _: PageNo) -> bool {
        true
    }

    fn unmap(&self, _: PageNo, _: &PageArena, _: Range<usize>) -> Unmapped {
        Unmapped { moved: 0, stopped: Some(SpaceError::Pinned) }
    }

    fn recycle(&self, _: &PageArena, _: Range<usize>) {}

    fn transfer(&self, _: PageNo, _: PageNo) -> Result<(), SpaceError> {
        Err(SpaceError::Missing)
    }

    fn wake(&self, _: PageNo) {}

    fn poison(&self, _: PageNo) {}
}
