//! Bytes of the range on their way: out by moves, back where a move stopped inside a page, and by
//! copies where pages cannot be moved.
//!
//! Owns: the kernel's calls for that, which deal in 4 KiB and may stop anywhere. Invariants: the
//! engine holds the locks of the pages; a page is out as a whole or not at all when a call returns.
//! Who touches a part that is out meanwhile waits for the lock. After a move that stopped, for
//! whatever reason, both sides are looked up, and what has moved counts as moved.
//! Not here: what the engine asks for ([`crate::requests`]).
//! Rejected: copying large pages out under write protection, or in, instead of moving them. Of 256
//! MiB in 64 MiB on memory, touched at random, 64 KiB: 17 k touches/s with moves, 10 k with copies
//! out; 2 MiB: 1.2 k with moves, 0.9 k with copies in, 0.5 k with copies out.

use crate::kernel::{Call, Meaning, meaning};
use crate::mapping::{drop_pages, unshare};
use crate::space::ManagedSpace;
use crate::uffd::Progress;
use crate::whereabouts::Sides;
use overspill_base::shared::PageArena;
use overspill_base::{PAGE_SIZE, PageNo, errand};
use overspill_engine::{Mapped, SpaceError};
use rustix::io::Errno;
use std::time::Duration;

/// Tries of a page that the kernel says is at its target, where it is not.
const STALE_MAX: u32 = 10;
/// Tries, a millisecond apart, of putting a page together again.
const TOGETHER_ROUNDS: u32 = 1000;

/// What keeps the next page from moving. It is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hindrance {
    /// Its mapping, which differs from the target's: it can be copied.
    Unlike,
    /// Anything else, told if nobody expected it.
    Error(SpaceError),
}

impl ManagedSpace {
    /// Moves pages of 4 KiB; returns how many bytes have moved, and what stopped it with the place
    /// where the next page is. `page` says whose userfaultfd to ask. Nobody waits at the target:
    /// the kernel wakes by what it has counted.
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
            let progress = self
                .with_uffd_of(page, |uffd| unsafe { uffd.move_pages(target, source, len - done) });
            done += progress.bytes;
            let Some(why) = progress.stopped else { break };
            let (target, source) = (target + progress.bytes, source + progress.bytes);
            let sides = self.with_whereabouts(|pages| pages.sides(source, target));
            if sides != Sides::Moved {
                return (done, Some((why, sides)));
            }
            self.count_misreported();
            done += PAGE_SIZE;
        }
        (done, None)
    }

    /// Moves whole pages out; returns how many bytes it has moved, and what keeps the next page.
    pub(crate) fn move_out(
        &self,
        target: usize,
        source: usize,
        len: usize,
    ) -> (usize, Option<Hindrance>) {
        let (mut done, mut helped, mut tries) = (0, None, 0);
        let page = if self.holds(target) { self.page_at(target) } else { PageNo(0) };
        let stopped = loop {
            let (target, source, len) = (target + done, source + done, len - done);
            // SAFETY: the engine holds the pages' locks, so nobody else moves, drops or maps them;
            // the program itself sees a page vanish and faults.
            let (bytes, stopped) = unsafe { self.move_parts(page, target, source, len) };
            done += bytes;
            let Some((why, sides)) = stopped else { break None };
            // What can be helped is tried once more; what is only said to hinder, some times more.
            let at = source + bytes;
            tries = if helped.replace(at) == Some(at) { tries + 1 } else { 0 };
            if !self.help_out(at, done, why, sides, tries) {
                break Some(self.hindrance(why, sides));
            }
        };
        let part = done % self.page_bytes;
        let whole = done - part;
        if !self.move_back(source + whole, target + whole, part) {
            return (whole, Some(Hindrance::Error(SpaceError::Torn)));
        }
        (whole, stopped)
    }

    /// Removes what stopped a move at `address`, of which `done` bytes are done, if it can be; true
    /// if it is to be tried again.
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

    /// Whether the part of a page that is missing at `address` is one of several, of which others
    /// are there or have moved already: `done` bytes of the run have.
    fn is_hole(&self, address: usize, done: usize) -> bool {
        let start = address - address % self.page_bytes;
        let moved = !done.is_multiple_of(self.page_bytes);
        moved || self.with_whereabouts(|pages| pages.find(start, self.page_bytes)).there > 0
    }

    /// Puts zeros where parts of a large page are missing, because the program dropped them behind
    /// our back: from `address` on, for what is before may be on its way out. False if that cannot
    /// be done.
    pub(crate) fn fill_holes(&self, address: usize) -> bool {
        let len = self.page_bytes - address % self.page_bytes;
        let page = self.page_at(address);
        self.with_uffd_of(page, |uffd| uffd.zero(address, len)).stopped.is_none()
    }

    /// Moves a part of a page from where it was moved to back to where it belongs; false if it
    /// cannot be.
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
        // SAFETY: pages that are this page's own, and present: each was moved there or read into.
        let content = unsafe { std::slice::from_raw_parts(staged as *const u8, len) };
        let (page, mut done, mut rounds) = (self.page_at(address), 0, 0);
        while done < len {
            let rest = &content[done..];
            let progress = self.with_uffd_of(page, |uffd| uffd.copy(address + done, rest));
            done += progress.bytes;
            let Some(errno) = progress.stopped else { break };
            if !self.is_worth_waiting(Call::Copy, errno, &mut rounds) {
                return false;
            }
        }
        self.drop_range(staged, len);
        true
    }

    /// Waits a little after a call that the kernel could not serve just now; false if it says
    /// something else, or has said it too often.
    pub(crate) fn is_worth_waiting(&self, call: Call, errno: Errno, rounds: &mut u32) -> bool {
        let later = matches!(meaning(call, errno), Meaning::Again | Meaning::NoMemory);
        let worth = later && *rounds < TOGETHER_ROUNDS;
        if worth {
            *rounds += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        worth
    }

    /// Has `fill` fill `len` bytes, from the first number it is told to the second, which are whole
    /// pages. Where it stops inside a large page, that one is finished if there is any hope: a part
    /// of it is in sight.
    pub(crate) fn whole_pages(
        &self,
        call: Call,
        len: usize,
        fill: impl Fn(usize, usize) -> Progress,
    ) -> Progress {
        let (mut progress, mut rounds) = (fill(0, len), 0);
        while let Some(errno) = progress.stopped
            && !progress.bytes.is_multiple_of(self.page_bytes)
            && self.is_worth_waiting(call, errno, &mut rounds)
        {
            let upto = progress.bytes.next_multiple_of(self.page_bytes);
            let more = fill(progress.bytes, upto);
            progress.bytes += more.bytes;
            progress.present += more.present;
            // What comes after that page is for the caller to ask for again.
            progress.stopped = more.stopped.or((progress.bytes < len).then_some(errno));
        }
        progress
    }

    /// Takes one page out by copying it; for pages that cannot be moved because of their
    /// protection.
    pub(crate) fn copy_out(&self, target: *mut u8, page: PageNo) -> Result<(), SpaceError> {
        let address = self.address_of(page);
        let found = self.with_whereabouts(|pages| pages.find(address, self.page_bytes));
        if found.there == 0 {
            return Err(SpaceError::Missing);
        }
        if self.page_bytes > PAGE_SIZE && !self.fill_holes(address) {
            return Err(SpaceError::Busy);
        }
        self.write_protect(page, true)?;
        // SAFETY: a page of the staging arena reserved for this victim.
        let into = unsafe { std::slice::from_raw_parts_mut(target, self.page_bytes) };
        let read = self.read_own_memory(address, into).map_err(|_| SpaceError::Pinned);
        let left = read.and_then(|()| {
            drop_pages(address, self.page_bytes).map_err(|errno| {
                self.unexpected("MADV_DONTNEED", &errno);
                SpaceError::Refused
            })
        });
        if left.is_err() {
            // The next page lands here, and must find nothing. Writers that stay shut out ask
            // again.
            self.drop_range(target.addr(), self.page_bytes);
            let _ = self.write_protect(page, false);
        }
        left
    }

    /// Makes writes to a page fault, where the kernel can, or not any more.
    pub(crate) fn write_protect(&self, page: PageNo, protect: bool) -> Result<(), SpaceError> {
        let address = self.address_of(page);
        let done = self.with_uffd_of(page, |uffd| match uffd.features().write_protect {
            true => uffd.write_protect(address, self.page_bytes, protect),
            false => Ok(()),
        });
        done.map_err(|errno| self.refusal(Call::WriteProtect, errno))
    }

    /// Drops pages with their content; tells what cannot be dropped.
    pub(crate) fn drop_range(&self, start: usize, len: usize) {
        if let Err(errno) = drop_pages(start, len) {
            self.unexpected("MADV_DONTNEED", &errno);
        }
    }

    /// How far a call that fills pages came, in whole ones. A page of which a part is in sight
    /// already cannot be taken back.
    pub(crate) fn mapped(&self, call: Call, progress: Progress) -> Mapped {
        let (pages, part) = (progress.bytes / self.page_bytes, progress.bytes % self.page_bytes);
        let stopped = progress.stopped.map(|errno| match self.refusal(call, errno) {
            SpaceError::Busy | SpaceError::Refused if part > 0 => SpaceError::Torn,
            error => error,
        });
        Mapped { pages, stopped }
    }

    /// Reads present memory through /proc, because the program may have made it unreadable.
    fn read_own_memory(&self, address: usize, into: &mut [u8]) -> Result<(), Errno> {
        let memory = self.memory.read().unwrap_or_else(|e| e.into_inner());
        let memory = memory.as_ref().ok_or(Errno::BADF)?;
        let mut done = 0;
        while done < into.len() {
            let (rest, at) = (&mut into[done..], (address + done) as u64);
            match errand::run(|| rustix::io::pread(memory, rest, at))? {
                0 => return Err(Errno::IO),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Moves a page by copying it, 4 KiB at a time. Where that fails it is where it was.
    pub(crate) fn transfer_by_copy(&self, from: PageNo, to: PageNo) -> Result<(), SpaceError> {
        let (source, target) = (self.address_of(from), self.address_of(to));
        let mut content = [0; PAGE_SIZE];
        for offset in (0..self.page_bytes).step_by(PAGE_SIZE) {
            let copied = self.copy_part(source + offset, to, target + offset, &mut content);
            if let Err(error) = copied {
                self.drop_range(target, self.page_bytes);
                return Err(error);
            }
        }
        self.drop_range(source, self.page_bytes);
        Ok(())
    }

    fn copy_part(
        &self,
        source: usize,
        to: PageNo,
        target: usize,
        content: &mut [u8; PAGE_SIZE],
    ) -> Result<(), SpaceError> {
        self.read_own_memory(source, content).map_err(|_| SpaceError::Missing)?;
        let progress = self.with_uffd_of(to, |uffd| uffd.copy(target, content));
        if progress.present > 0 {
            self.unexpected(Call::Copy.name(), &"a page is there that should not be");
            return Err(SpaceError::Refused);
        }
        progress.stopped.map_or(Ok(()), |errno| Err(self.refusal(Call::Copy, errno)))
    }

    /// Where page `page` of an arena is.
    pub(crate) fn staged_at(&self, arena: &PageArena, page: usize) -> *mut u8 {
        arena.address(page * (self.page_bytes / PAGE_SIZE))
    }
}
