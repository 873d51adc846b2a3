//! A region: a slice of bytes larger than memory.

use crate::error::Error;
use crate::pager::Pager;
use overspill_base::sync::Arc;
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_space::{Advice, Protection};
use std::ops::{Deref, DerefMut};

/// Zeroed memory of which only a part is in memory at any time. Unmapped when dropped.
///
/// Use it as the `[u8]` it is, from any thread, also as the buffer of system calls. A touch of a page
/// that is out blocks until it is read. If that fails the toucher gets SIGBUS, and the reason is in
/// [`Overspill::last_trouble`](crate::Overspill::last_trouble).
#[derive(Debug)]
pub struct Region {
    pager: Arc<Pager>,
    address: usize,
    pages: usize,
}

impl Region {
    pub(crate) fn new(pager: Arc<Pager>, size: Bytes) -> Result<Self, Error> {
        let pages = size.pages_ceil() as usize;
        let protection = Protection::READ | Protection::WRITE;
        let address = match pages {
            0 => PAGE_SIZE,
            _ => pager.memory().map(pages, protection)?,
        };
        Ok(Self { pager, address, pages })
    }

    /// Forgets the content of whole pages in `range` of bytes: they read as zeros and cost nothing.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn discard(&mut self, range: std::ops::Range<usize>) {
        if let Some((address, pages)) = self.whole_pages(range) {
            let done = self.pager.memory().discard(address, pages);
            debug_assert_eq!(done, Ok(()), "a region stays mapped while it lives");
        }
    }

    /// Tells how whole pages in `range` of bytes will be used, or that they will be soon, or not. Parts
    /// of pages at its ends are left out, as in [`discard`](Self::discard). Blocks for
    /// [`Advice::PageOut`] only.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn advise(&self, range: std::ops::Range<usize>, advice: Advice) {
        if let Some((address, pages)) = self.whole_pages(range) {
            let done = self.pager.memory().advise(address, pages, advice);
            debug_assert_eq!(done, Ok(()), "a region stays mapped while it lives");
        }
    }

    /// The address and number of the whole pages in a range of bytes, if there are any.
    fn whole_pages(&self, range: std::ops::Range<usize>) -> Option<(usize, usize)> {
        assert!(range.start <= range.end && range.end <= self.len(), "past the region: {range:?}");
        let first = range.start.div_ceil(PAGE_SIZE);
        let pages = (range.end / PAGE_SIZE).saturating_sub(first);
        (pages > 0).then_some((self.address + first * PAGE_SIZE, pages))
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped for as long as the region lives, zeros at first; its pages
        // vanish and return with their content, which no reader can see. Only the pager's handlers
        // could break that, by failing to answer a fault, and then the reader never returns.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.pages * PAGE_SIZE) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; &mut self makes it the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.pages * PAGE_SIZE) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.pages > 0 {
            // Fails only if the kernel cannot merge mappings; then address space is lost, no more.
            let _ = self.pager.memory().unmap(self.address, self.pages);
        }
    }
}
