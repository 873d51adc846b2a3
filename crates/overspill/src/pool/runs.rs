//! The page numbers of vectors.
//!
//! Owns: the upper half of a pool's page numbers, in runs of powers of two. The user assigns the
//! lower half.
//! Invariants: a page is in one run at a time; a freed run is all zeros again.
//! Rejected: merging freed runs. Numbers are not memory, and there are enough of them.

use overspill_base::PageNo;
use overspill_base::sync::{LockClass, Mutex};

/// The numbers of one pool.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The first page number that is not the user's.
    first: PageNo,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Never used: from here to the end.
    next: u32,
    end: u32,
    /// Freed runs, by order.
    back: Vec<Vec<PageNo>>,
}

impl Runs {
    /// Manages the upper half of `pages` pages.
    pub(crate) fn new(pages: usize) -> Self {
        let (first, end) = ((pages / 2) as u32, pages as u32);
        let back = vec![Vec::new(); u32::BITS as usize];
        let free = Mutex::new(LockClass::Pool, Free { next: first, end, back });
        Self { first: PageNo(first), free }
    }

    /// The first page of the upper half; the pages below are the user's.
    pub(crate) fn first(&self) -> PageNo {
        self.first
    }

    /// Takes `1 << order` adjacent pages; returns the first.
    pub(crate) fn take(&self, order: u32) -> Option<PageNo> {
        let mut free = self.free.lock();
        if let Some(run) = free.back[order as usize].pop() {
            return Some(run);
        }
        let next = free.next.checked_add(1 << order).filter(|&next| next <= free.end)?;
        Some(PageNo(std::mem::replace(&mut free.next, next)))
    }

    /// Frees a run whose pages were discarded.
    pub(crate) fn free(&self, run: PageNo, order: u32) {
        self.free.lock().back[order as usize].push(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_do_not_overlap_and_come_back() {
        let runs = Runs::new(16);
        assert_eq!(runs.first(), PageNo(8));
        assert_eq!([runs.take(2), runs.take(1)], [Some(PageNo(8)), Some(PageNo(12))]);
        assert_eq!(runs.take(2), None);
        runs.free(PageNo(8), 2);
        assert_eq!(
            [runs.take(2), runs.take(1), runs.take(0)],
            [Some(PageNo(8)), Some(PageNo(14)), None]
        );
    }
}
