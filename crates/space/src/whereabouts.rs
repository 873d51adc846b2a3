//! Where a page is: looked up, never concluded from an errno.
//!
//! Owns: `/proc/self/pagemap`, and what looking at both sides of a stopped move means.
//! Invariants: a page that is in memory, or that the kernel itself has swapped out, is there.
//! mincore(2) would call the second kind missing; it is used only if the file cannot be opened. The
//! caller holds the page's lock, so only what the program does to its own memory behind our back
//! changes either side.
//!
//! # After a move that stopped
//!
//! | source | target | errno | so the page |
//! |---|---|---|---|
//! | not there | there | any | has moved |
//! | there | not there | any | has not moved; the errno's row in [`crate::kernel`] says why |
//! | not there | not there | any | was dropped by the program behind our back, and is nowhere |
//! | there | there | any | is at the source; nothing is moved, and the target is reported |
//!
//! The first row occurs: Linux 6.18 returns EEXIST for about one in 100 000 moves that it has made,
//! of pages that are touched and aged meanwhile.
//!
//! Not here: what follows from that for a page of several parts ([`crate::moving`]).

use crate::mapping::are_resident;
use crate::own;
use overspill_base::PAGE_SIZE;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// Bits of an entry of pagemap: in memory, or swapped out by the kernel.
const THERE: u64 = 1 << 63 | 1 << 62;
/// Its writes fault (UFFDIO_WRITEPROTECT).
const WRITE_PROTECTED: u64 = 1 << 57;
/// A guard region (6.15), which looks like something swapped out.
const GUARD: u64 = 1 << 58;
/// Bytes of an entry.
const ENTRY: usize = size_of::<u64>();
/// Entries read at a time.
const BATCH: usize = 64;

/// What looking at both sides shows about a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sides {
    /// It has moved, whatever the kernel returned.
    Moved,
    /// It has not.
    Stayed,
    /// It is nowhere.
    Nowhere,
    /// There is a page on both sides.
    Both,
}

impl Sides {
    fn of(source: bool, target: bool) -> Self {
        match (source, target) {
            (false, true) => Self::Moved,
            (true, false) => Self::Stayed,
            (false, false) => Self::Nowhere,
            (true, true) => Self::Both,
        }
    }
}

/// What was found in a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// Number of 4 KiB pages that are there.
    pub(crate) there: usize,
    /// Of those, the number whose writes fault.
    pub(crate) write_protected: usize,
}

/// Looks up pages of this process.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    pagemap: Option<OwnedFd>,
}

impl Whereabouts {
    /// Opens the file.
    pub(crate) fn open() -> Self {
        Self { pagemap: own::pagemap().ok() }
    }

    /// Looks up both sides of one page's move.
    pub(crate) fn sides(&self, source: usize, target: usize) -> Sides {
        let is_there = |address| self.find(address, PAGE_SIZE).there == 1;
        Sides::of(is_there(source), is_there(target))
    }

    /// Counts the pages of a range that are there.
    pub(crate) fn find(&self, start: usize, bytes: usize) -> Found {
        let mut found = Found::default();
        for at in (start..start + bytes).step_by(BATCH * PAGE_SIZE) {
            let pages = ((start + bytes - at) / PAGE_SIZE).min(BATCH);
            let mut entries = [0u8; BATCH * ENTRY];
            let read = self.read(at, &mut entries[..pages * ENTRY]);
            if read.is_err() {
                by_residence(at, &mut entries[..pages * ENTRY]);
            }
            for entry in entries[..pages * ENTRY].chunks_exact(ENTRY) {
                let entry = u64::from_ne_bytes(entry.try_into().expect("8 bytes"));
                let is_there = entry & THERE != 0 && entry & GUARD == 0;
                found.there += usize::from(is_there);
                found.write_protected += usize::from(is_there && entry & WRITE_PROTECTED != 0);
            }
        }
        found
    }

    fn read(&self, address: usize, entries: &mut [u8]) -> Result<(), Errno> {
        let pagemap = self.pagemap.as_ref().ok_or(Errno::NOENT)?;
        let offset = (address / PAGE_SIZE * ENTRY) as u64;
        let look = || rustix::io::pread(pagemap, &mut *entries, offset);
        let read = rustix::io::retry_on_intr(look)?;
        if read == entries.len() { Ok(()) } else { Err(Errno::IO) }
    }
}

/// Fills entries as pagemap would, from mincore(2).
fn by_residence(address: usize, entries: &mut [u8]) {
    let mut resident = [false; BATCH];
    are_resident(address, &mut resident[..entries.len() / ENTRY]);
    for (entry, there) in entries.chunks_exact_mut(ENTRY).zip(resident) {
        entry.copy_from_slice(&(u64::from(there) << 63).to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::forbid_huge_pages;

    #[test]
    fn two_looks_mean_what_this_table_says() {
        assert_eq!(Sides::of(false, true), Sides::Moved);
        assert_eq!(Sides::of(true, false), Sides::Stayed);
        assert_eq!(Sides::of(false, false), Sides::Nowhere);
        assert_eq!(Sides::of(true, true), Sides::Both);
    }

    #[test]
    fn what_was_written_is_there_and_nothing_else() {
        // Large enough to be fresh memory, with no page present.
        let mut memory = vec![0u8; 2000 * PAGE_SIZE];
        let start = memory.as_ptr().addr().next_multiple_of(PAGE_SIZE);
        let first = start - memory.as_ptr().addr();
        forbid_huge_pages(start, 1900 * PAGE_SIZE);
        for page in [100, 107, 299] {
            memory[first + page * PAGE_SIZE] = 1;
        }
        let page = |n: usize| start + n * PAGE_SIZE;
        for whereabouts in [Whereabouts::open(), Whereabouts { pagemap: None }] {
            let there = |n: usize| whereabouts.find(page(n), PAGE_SIZE).there;
            assert_eq!((there(100), there(101), there(107), there(299)), (1, 0, 1, 1));
            assert_eq!(whereabouts.find(page(100), 200 * PAGE_SIZE).there, 3);
            assert_eq!(whereabouts.sides(page(101), page(100)), Sides::Moved);
            assert_eq!(whereabouts.sides(page(100), page(101)), Sides::Stayed);
        }
    }
}
