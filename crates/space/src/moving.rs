//! Moves pages of the range out and back: back where a move stopped inside a page, and by copies
//! where pages cannot be moved.
//!
//! Owns: the kernel's calls for that, which work in units of 4 KiB and may stop anywhere.
//! Invariants: the engine holds the locks of the pages; when a call returns, a page has been moved
//! out as a whole or not at all. A thread that touches a part that is out meanwhile waits for the
//! lock. After a move that stopped, for whatever reason, both sides are looked up, and what has
//! moved counts as moved.
//! Not here: what the engine asks for ([`crate::requests`]).
//! Rejected: copying large pages instead of moving them, either out (under write protection) or in.
//! 256 MiB with a limit of 64 MiB, on memory, touched at random, with pages of 64 KiB: 17 k
//! touches/s with moves, 10 k with copies out; with 2 MiB: 1.2 k with moves, 0.9 k with copies in,
//! 0.5 k with copies out.

use crate::kernel::{Call, Meaning, meaning};
use crate::mapping::{drop_pages, unshare};
use crate::space::ManagedSpace;
use crate::whereabouts::Sides;
use crate::words::Progress;
use overspill_base::shared::PageArena;
use overspill_base::{PAGE_SIZE, PageNo};
use overspill_engine::{Mapped, SpaceError};
use rustix::io::Errno;
use std::time::Duration;

/// Tries of a page that the kernel wrongly reports as present at its target.
const STALE_MAX: u32 = 10;
/// Tries, a millisecond apart, of restoring a page as a whole.
const TOGETHER_ROUNDS: u32 = 1000;

/// Why the next page could not be moved. It is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hindrance {
    /// Its mapping differs from the target's: it can be copied.
    Unlike,
    /// Any other reason; reported if it is unexpected.
    Error(SpaceError),
}

impl ManagedSpace {
    /// Moves pages of 4 KiB; returns the number of bytes moved, and what stopped it with the place
    /// of the next page. `page` selects the userfaultfd. No thread waits at the target: the kernel
    /// wakes only the range it has counted.
    ///
    /// # Safety
    /// As [`Uffd::move_pages`](crate::uffd::Uffd::move_pages).
    pub(crate) unsafe fn move_parts(
        &self,
        page: PageNo,
        target: usize,
        source: usize,
        len: usize,
    ) -> (usize, Option<(Errno, Sides)>) {
        let mut done = 0;
        while done < len {
            let (target, source) = (target + done, source + done);
            // SAFETY: passed on to the caller.
            let progress = unsafe { self.source_of(page).move_pages(target, source, len - done) };
            done += progress.bytes;
            let Some(why) = progress.stopped else { break };
            let (target, source) = (target + progress.bytes, source + progress.bytes);
            let sides = self.whereabouts.sides(source, target);
            if sides != Sides::Moved {
                return (done, Some((why, sides)));
            }
            self.count_misreported();
            done += PAGE_SIZE;
        }
        (done, None)
    }

    /// Moves whole pages out; returns the number of bytes moved, and why the next page was not. The
    /// kernel refuses a range that spans two of its mappings, so what it refuses is halved down to
    /// one page.
    pub(crate) fn move_out(
        &self,
        target: usize,
        source: usize,
        len: usize,
    ) -> (usize, Option<Hindrance>) {
        let (mut done, mut helped, mut tries) = (0, None, 0);
        let mut upto = len;
        let page = if self.holds(target) { self.page_at(target) } else { PageNo(0) };
        let stopped = loop {
            let (target, source) = (target + done, source + done);
            // SAFETY: the engine holds the pages' locks, so no other thread moves, drops or maps
            // them; the program itself sees a page vanish and faults.
            let (bytes, stopped) = unsafe { self.move_parts(page, target, source, upto - done) };
            done += bytes;
            let Some((why, sides)) = stopped else {
                if upto == len {
                    break None;
                }
                upto = len;
                continue;
            };
            let half = (done + (upto - done) / 2).next_multiple_of(self.page_bytes());
            if (sides, meaning(Call::Move, why)) == (Sides::Stayed, Meaning::Unlike) && half < upto
            {
                upto = half;
                continue;
            }
            // A page that was helped is tried once more; one with a stale EEXIST, several times.
            let at = source + bytes;
            tries = if helped.replace(at) == Some(at) { tries + 1 } else { 0 };
            if !self.help_out(at, done, why, sides, tries) {
                break Some(self.hindrance(why, sides));
            }
        };
        let part = done % self.page_bytes();
        let whole = done - part;
        if !self.move_back(source + whole, target + whole, part) {
            return (whole, Some(Hindrance::Error(SpaceError::Torn)));
        }
        (whole, stopped)
    }

    /// Removes what stopped a move at `address`, `done` bytes into the run, if possible; true if
    /// the move should be retried.
    fn help_out(&self, address: usize, done: usize, why: Errno, sides: Sides, tries: u32) -> bool {
        match (sides, meaning(Call::Move, why)) {
            (Sides::Stayed, Meaning::InUse) => tries == 0 && unshare(address, PAGE_SIZE),
            (Sides::Stayed, Meaning::Present) => tries < STALE_MAX,
            (Sides::Nowhere, _) => {
                tries == 0 && self.is_hole(address, done) && self.fill_holes(address)
            }
            _ => false,
        }
    }

    fn hindrance(&self, why: Errno, sides: Sides) -> Hindrance {
        Hindrance::Error(match (sides, meaning(Call::Move, why)) {
            (Sides::Stayed, Meaning::Unlike) => return Hindrance::Unlike,
            (Sides::Stayed, Meaning::Present) => SpaceError::Busy,
            (Sides::Stayed, _) => self.refusal(Call::Move, why),
            (Sides::Nowhere, _) => SpaceError::Missing,
            (Sides::Moved | Sides::Both, _) => {
                self.unexpected("a move that stopped", &"there is a page on both sides");
                SpaceError::Refused
            }
        })
    }

    /// Whether `address` is a missing part of a large page of which other parts are present or have
    /// moved already, `done` bytes into the run.
    fn is_hole(&self, address: usize, done: usize) -> bool {
        let start = address - address % self.page_bytes();
        let moved = !done.is_multiple_of(self.page_bytes());
        moved || self.whereabouts.find(start, self.page_bytes()).there > 0
    }

    /// Fills missing parts of a large page, which the program dropped behind our back, with zeros:
    /// from `address` on, because parts before it may have been moved out. False if that fails.
    pub(crate) fn fill_holes(&self, address: usize) -> bool {
        let len = self.page_bytes() - address % self.page_bytes();
        let page = self.page_at(address);
        self.source_of(page).zero(address, len).stopped.is_none()
    }

    /// Moves a part of a page back to where it was moved from; false if that fails.
    fn move_back(&self, address: usize, staged: usize, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        // SAFETY: the engine holds the lock of the page, and has its staging page for itself.
        let (done, _) = unsafe { self.move_parts(self.page_at(address), address, staged, len) };
        self.copy_back(address + done, staged + done, len - done)
    }

    /// As [`move_back`](Self::move_back), by a copy.
    pub(crate) fn copy_back(&self, address: usize, staged: usize, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        // SAFETY: these pages belong to this page and are present: each was moved there or read
        // into.
        let content = unsafe { std::slice::from_raw_parts(staged as *const u8, len) };
        let (page, mut done, mut rounds) = (self.page_at(address), 0, 0);
        while done < len {
            let rest = &content[done..];
            let progress = self.source_of(page).copy(address + done, rest);
            done += progress.bytes;
            let Some(errno) = progress.stopped else { break };
            if !self.is_worth_waiting(Call::Copy, errno, &mut rounds) {
                return false;
            }
        }
        self.drop_range(staged, len);
        true
    }

    /// Sleeps a little after a call that the kernel could not serve for the moment; false after any
    /// other error, or too many tries.
    pub(crate) fn is_worth_waiting(&self, call: Call, errno: Errno, rounds: &mut u32) -> bool {
        let later = matches!(meaning(call, errno), Meaning::Again | Meaning::NoMemory);
        let worth = later && *rounds < TOGETHER_ROUNDS;
        if worth {
            *rounds += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        worth
    }

    /// Fills `len` bytes by calls of `fill`, which fills whole pages from its first offset to its
    /// second. If it stops inside a large page, that page is retried until it is complete, because
    /// a part of it is visible.
    pub(crate) fn whole_pages(
        &self,
        call: Call,
        len: usize,
        fill: impl Fn(usize, usize) -> Progress,
    ) -> Progress {
        let (mut progress, mut rounds) = (fill(0, len), 0);
        while let Some(errno) = progress.stopped
            && !progress.bytes.is_multiple_of(self.page_bytes())
            && self.is_worth_waiting(call, errno, &mut rounds)
        {
            let upto = progress.bytes.next_multiple_of(self.page_bytes());
            let more = fill(progress.bytes, upto);
            progress.bytes += more.bytes;
            progress.present += more.present;
            // The caller asks again for what comes after that page.
            progress.stopped = more.stopped.or((progress.bytes < len).then_some(errno));
        }
        progress
    }

    /// Copies one page out; for pages that cannot be moved because of their protection.
    pub(crate) fn copy_out(&self, target: *mut u8, page: PageNo) -> Result<(), SpaceError> {
        let address = self.address_of(page);
        let found = self.whereabouts.find(address, self.page_bytes());
        if found.there == 0 {
            return Err(SpaceError::Missing);
        }
        if self.page_bytes() > PAGE_SIZE && !self.fill_holes(address) {
            return Err(SpaceError::Busy);
        }
        self.write_protect(page, true)?;
        // SAFETY: a page of the staging arena reserved for this victim.
        let into = unsafe { std::slice::from_raw_parts_mut(target, self.page_bytes()) };
        let read = self.memory.read(address, into).map_err(|_| SpaceError::Pinned);
        let left = read.and_then(|()| {
            drop_pages(address, self.page_bytes()).map_err(|errno| {
                self.unexpected("MADV_DONTNEED", &errno);
                SpaceError::Refused
            })
        });
        if left.is_err() {
            // The next page will be moved here, and the target must be empty. If the protection
            // stays, writers fault and retry.
            self.drop_range(target.addr(), self.page_bytes());
            let _ = self.write_protect(page, false);
        }
        left
    }

    /// Makes writes to a page fault, if the kernel can, or stops doing so.
    pub(crate) fn write_protect(&self, page: PageNo, protect: bool) -> Result<(), SpaceError> {
        let address = self.address_of(page);
        let source = self.source_of(page);
        let done = match source.features().write_protect {
            true => source.write_protect(address, self.page_bytes(), protect),
            false => Ok(()),
        };
        done.map_err(|errno| self.refusal(Call::WriteProtect, errno))
    }

    /// Drops pages with their content; reports errors.
    pub(crate) fn drop_range(&self, start: usize, len: usize) {
        let dropped = match self.source().guards() {
            Some(guards) if self.holds(start) => guards.drop_pages(start, len),
            _ => drop_pages(start, len),
        };
        if let Err(errno) = dropped {
            self.unexpected("MADV_DONTNEED", &errno);
        }
    }

    /// The result of a call that fills pages, in whole pages. A page of which a part is visible
    /// cannot be undone.
    pub(crate) fn mapped(&self, call: Call, progress: Progress) -> Mapped {
        let (pages, part) =
            (progress.bytes / self.page_bytes(), progress.bytes % self.page_bytes());
        let stopped = progress.stopped.map(|errno| match self.refusal(call, errno) {
            SpaceError::Busy | SpaceError::Refused if part > 0 => SpaceError::Torn,
            error => error,
        });
        Mapped { pages, stopped }
    }

    /// The address of page `page` of an arena.
    pub(crate) fn staged_at(&self, arena: &PageArena, page: usize) -> *mut u8 {
        arena.address(page * (self.page_bytes() / PAGE_SIZE))
    }
}
