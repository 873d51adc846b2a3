//! The pages of a pool, as the engine sees them.
//!
//! Owns: [`words`], one per page, and what publishing and unpublishing a page does to them. Pages
//! are requested through [`Words`], never touched by address, so there are no faults and no thread
//! to wake: a thread that finds a page absent makes the engine bring it in and asks again.
//! Not here: bringing pages in, and guards (`overspill`); frames and their memory (`engine`).

pub mod words;

use overspill_base::{FrameNo, PageNo};
use overspill_engine::{AddressSpace, BufferPool, Unpublished};
use words::Words;

/// A space whose pages have words instead of addresses.
#[derive(Debug)]
pub struct PoolSpace {
    words: Words,
}

impl PoolSpace {
    /// Creates a space of the pages in `words`.
    pub fn new(words: Words) -> Self {
        Self { words }
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &Words {
        &self.words
    }
}

impl AddressSpace for PoolSpace {
    fn span(&self, page: PageNo) -> usize {
        self.words.len().saturating_sub(page.index())
    }

    fn zap(&self, first: PageNo, pages: usize) {
        (0..pages).for_each(|n| self.words.take_away(first.plus(n)));
    }

    fn wake(&self, _: PageNo) {}

    fn poison(&self, _: PageNo) {}
}

impl BufferPool for PoolSpace {
    fn publish(&self, page: PageNo, frame: FrameNo) {
        self.words.publish(page, frame);
    }

    fn unpublish(&self, page: PageNo) -> Unpublished {
        self.words.unpublish(page)
    }
}
