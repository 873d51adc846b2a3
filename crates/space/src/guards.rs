//! Noticing touches without userfaultfd: the touch of a page that is out raises SIGSEGV.
//!
//! Owns: the calls by which a page gets content and loses it at once, as threads that touch it see
//! it: under a protection that lets nobody in.
//! A page that is out is a *guard region* (`MADV_GUARD_INSTALL`, 6.13), a mark in the page tables
//! that splits no mapping, so the number of mappings is that of the pages that are on their way.
//! The marks take 8 bytes a page, so they are made where memory is touched: the range is divided
//! into parts of 2 MiB, which are inaccessible until then. Before 6.13 what is out is *shut*:
//! without access, which takes up to two mappings for each page that is in; [`shut_pages_max`]
//! bounds them.
//! Invariants: in an open part, and where pages are shut everywhere, each page is in memory or a
//! touch of it raises SIGSEGV; nobody but the holder of `changing` sees it otherwise. A page that
//! somebody else refers to (`vmsplice`) is copied out all the same: who writes to such a page later
//! than a call lasts is not served in this way.
//! Built on: `/proc/self/mem`, which reads and writes whatever the protection.
//! `docs/assumptions.md` has it.

use crate::own::OwnMemory;
use crate::words::Progress;
use overspill_base::sync::Ordering::{Acquire, Release};
use overspill_base::sync::{LockClass, Mutex, MutexGuard};
use overspill_base::{PAGE_SIZE, zeroed};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Memory that is opened at once.
const PART_BYTES: usize = 2 << 20;
/// The kernel's usual number of mappings of a process (`vm.max_map_count`).
const MAPPINGS_USUAL: usize = 65_530;
/// Mappings that are the program's own.
const MAPPINGS_LEFT: usize = 8192;

// asm-generic/mman-common.h
const MADV_GUARD_INSTALL: libc::c_int = 102;
const MADV_GUARD_REMOVE: libc::c_int = 103;
const NOBODY: MprotectFlags = MprotectFlags::empty();
const EVERYBODY: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// The guards of a range.
#[derive(Debug)]
pub(crate) struct Guards {
    range: Range<usize>,
    out: Out,
    /// Held while pages are on their way.
    changing: Mutex<()>,
    memory: OwnMemory,
}

/// What a page that is out is.
#[derive(Debug)]
enum Out {
    /// A guard region. A bit for each part that is open.
    Guard { open: Box<[AtomicU64]> },
    /// Without access.
    Shut,
}

impl Guards {
    /// The guards of a range that nobody may access yet.
    pub(crate) fn new(range: Range<usize>, are_shut: bool) -> Result<Self, Errno> {
        let parts = range.len().div_ceil(PART_BYTES);
        let out = match are_shut {
            true => Out::Shut,
            false => Out::Guard { open: zeroed::slice(parts.div_ceil(64)) },
        };
        let changing = Mutex::new(LockClass::Guards, ());
        Ok(Self { range, out, changing, memory: OwnMemory::open()? })
    }

    pub(crate) fn are_shut(&self) -> bool {
        matches!(self.out, Out::Shut)
    }

    /// Fills pages that are out.
    pub(crate) fn copy(&self, start: usize, content: &[u8]) -> Progress {
        self.fill(&(start..start + content.len()), || self.memory.write(start, content))
    }

    /// As [`copy`](Self::copy), with zeros.
    pub(crate) fn zero(&self, start: usize, len: usize) -> Progress {
        let range = start..start + len;
        // Memory counts as there when it has been touched.
        let touch =
            || range.clone().step_by(PAGE_SIZE).try_for_each(|page| self.memory.write(page, &[0]));
        self.fill(&range, touch)
    }

    fn fill(&self, range: &Range<usize>, write: impl FnOnce() -> Result<(), Errno>) -> Progress {
        let changing = self.changing.lock();
        let room = self.make_room(&changing, range);
        let done = room.and_then(|()| write()).and_then(|()| protect(range, EVERYBODY));
        if done.is_err() {
            let _ = self.take_away(range);
        }
        progress(range.len(), done)
    }

    /// Moves present pages, out of the range or back into it.
    ///
    /// # Safety
    /// Both ranges are the caller's; there are no references into them.
    pub(crate) unsafe fn move_pages(&self, target: usize, source: usize, len: usize) -> Progress {
        // SAFETY: contract.
        let bytes = |start: usize| unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        match self.range.contains(&source) {
            true => self.take_out_all(source, bytes(target)),
            false => self.copy(target, bytes(source)),
        }
    }

    /// Takes a run out; what is missing in it stops it there.
    fn take_out_all(&self, start: usize, into: &mut [u8]) -> Progress {
        if self.take_out(start, into).is_ok() {
            return progress(into.len(), Ok(()));
        }
        let mut bytes = 0;
        let stopped = into.chunks_exact_mut(PAGE_SIZE).find_map(|page| {
            let taken = self.take_out(start + bytes, page);
            bytes += if taken.is_ok() { PAGE_SIZE } else { 0 };
            taken.err()
        });
        Progress { bytes, present: 0, stopped }
    }

    fn take_out(&self, start: usize, into: &mut [u8]) -> Result<(), Errno> {
        let range = start..start + into.len();
        let _changing = self.changing.lock();
        protect(&range, NOBODY)?;
        let taken = self.memory.read(start, into).and_then(|()| self.take_away(&range));
        taken.or_else(|errno| protect(&range, EVERYBODY).and(Err(errno)))
    }

    /// Drops pages with their content; the next touch is noticed.
    pub(crate) fn drop_pages(&self, start: usize, len: usize) -> Result<(), Errno> {
        let range = start..start + len;
        let _changing = self.changing.lock();
        match &self.out {
            Out::Guard { .. } => self.each_open(range, |open| advise(&open, MADV_GUARD_INSTALL)),
            Out::Shut => protect(&range, NOBODY).and_then(|()| self.take_away(&range)),
        }
    }

    /// Makes pages that are out writable by us alone.
    fn make_room(&self, changing: &MutexGuard<'_, ()>, range: &Range<usize>) -> Result<(), Errno> {
        match &self.out {
            Out::Guard { .. } => {
                self.open_parts(changing, range)?;
                protect(range, NOBODY)?;
                advise(range, MADV_GUARD_REMOVE)
            }
            Out::Shut => Ok(()),
        }
    }

    /// Drops the content of pages that nobody may access, which are out then.
    fn take_away(&self, range: &Range<usize>) -> Result<(), Errno> {
        match &self.out {
            Out::Guard { .. } => {
                advise(range, MADV_GUARD_INSTALL)?;
                protect(range, EVERYBODY)
            }
            // SAFETY: a part of our own range, whose content the caller has, or wants dropped.
            Out::Shut => unsafe {
                madvise(range.start as *mut _, range.len(), Advice::LinuxDontNeed)
            },
        }
    }

    fn part_of(&self, address: usize) -> usize {
        (address - self.range.start) / PART_BYTES
    }

    /// The word and the bit of a part.
    fn bit_of(&self, part: usize) -> Option<(&AtomicU64, u64)> {
        match &self.out {
            Out::Guard { open } => Some((&open[part / 64], 1 << (part % 64))),
            Out::Shut => None,
        }
    }

    fn is_open(&self, part: usize) -> bool {
        self.bit_of(part).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    /// Opens the parts of a range.
    fn open_parts(&self, _: &MutexGuard<'_, ()>, range: &Range<usize>) -> Result<(), Errno> {
        for part in self.part_of(range.start)..=self.part_of(range.end - 1) {
            if self.is_open(part) {
                continue;
            }
            let start = self.range.start + part * PART_BYTES;
            let all = start..(start + PART_BYTES).min(self.range.end);
            advise(&all, MADV_GUARD_INSTALL)?;
            protect(&all, EVERYBODY)?;
            if let Some((word, bit)) = self.bit_of(part) {
                word.fetch_or(bit, Release);
            }
        }
        Ok(())
    }

    fn each_open(
        &self,
        range: Range<usize>,
        mut act: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut from = range.start;
        while from < range.end {
            let is_open = self.is_open(self.part_of(from));
            let mut to = from;
            while to < range.end && self.is_open(self.part_of(to)) == is_open {
                to = (self.range.start + (self.part_of(to) + 1) * PART_BYTES).min(range.end);
            }
            if is_open {
                act(from..to)?;
            }
            from = to;
        }
        Ok(())
    }

    /// Tries a page's way in and out.
    pub(crate) fn probe(are_shut: bool) -> Result<(), Errno> {
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, unmapped below.
        let page =
            unsafe { mmap_anonymous(null, PAGE_SIZE, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let start = page.addr();
        let mut content = [0; PAGE_SIZE];
        let tried = Self::new(start..start + PAGE_SIZE, are_shut).and_then(|guards| {
            let filled = guards.copy(start, &[1; PAGE_SIZE]).stopped;
            filled.map_or(Ok(()), Err)?;
            guards.take_out(start, &mut content)
        });
        // SAFETY: that mapping, which nobody refers to.
        unsafe { munmap(page, PAGE_SIZE) }?;
        tried.and(if content == [1; PAGE_SIZE] { Ok(()) } else { Err(Errno::IO) })
    }
}

/// Pages that can be in memory where those that are out are shut.
pub fn shut_pages_max() -> usize {
    let told = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let mappings = told.and_then(|told| told.trim().parse().ok()).unwrap_or(MAPPINGS_USUAL);
    mappings.saturating_sub(MAPPINGS_LEFT) / 2
}

fn progress(len: usize, done: Result<(), Errno>) -> Progress {
    let stopped = done.err();
    Progress { bytes: if stopped.is_none() { len } else { 0 }, present: 0, stopped }
}

fn protect(range: &Range<usize>, flags: MprotectFlags) -> Result<(), Errno> {
    // SAFETY: a part of our own range; whoever touches it meanwhile touches it again.
    unsafe { rustix::mm::mprotect(range.start as *mut _, range.len(), flags) }
}

/// As madvise(2), with advice that rustix does not know.
fn advise(range: &Range<usize>, advice: libc::c_int) -> Result<(), Errno> {
    // SAFETY: a part of our own range, whose content the caller has, or wants dropped.
    match unsafe { libc::madvise(range.start as *mut _, range.len(), advice) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
