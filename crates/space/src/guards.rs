//! Noticing touches without userfaultfd: what is not in memory is a guard region, whose touch
//! raises SIGSEGV.
//!
//! Owns: the calls by which a page gets content and loses it at once, as threads that touch it see
//! it: under a protection that lets nobody in. A guard region (`MADV_GUARD_INSTALL`, 6.13) is a
//! mark in the page tables; it splits no mapping, so the number of mappings is that of the pages
//! that are on their way. Its marks take 8 bytes a page, so they are made where memory is touched:
//! the range is divided into parts of 2 MiB, which are inaccessible until then.
//! Invariants: in an open part each page is in memory or a guard; nobody but the holder of
//! `changing` sees it otherwise. Protections of a closed part are what `ranges` says; the kernel's
//! is none. A page that somebody else refers to (`vmsplice`) is copied out all the same: who writes
//! to such a page later than a call lasts is not served in this way.
//! Built on: `/proc/self/mem`, which reads and writes whatever the protection.
//! `docs/assumptions.md` has it.
//! Rejected: leaving pages that are out without access, as protections: two mappings for each that
//! is in memory, of 65 530.

use crate::own::Own;
use crate::ranges::{Kind, PLAIN, Ranges};
use crate::touches::Touches;
use crate::words::Progress;
use overspill_base::sync::Ordering::{Acquire, Release};
use overspill_base::sync::{Arc, LockClass, Mutex, MutexGuard};
use overspill_base::{PAGE_SIZE, PageNo, zeroed};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Memory that is opened at once.
const PART_BYTES: usize = 2 << 20;

// asm-generic/mman-common.h
const MADV_GUARD_INSTALL: libc::c_int = 102;
const MADV_GUARD_REMOVE: libc::c_int = 103;
const NOBODY: MprotectFlags = MprotectFlags::empty();

/// The guards of a range.
#[derive(Debug)]
pub(crate) struct Guards {
    start: usize,
    end: usize,
    ranges: Arc<Mutex<Ranges>>,
    /// A bit for each part that is open.
    open: Box<[AtomicU64]>,
    /// Held while a protection is not what `ranges` says.
    pub(crate) changing: Arc<Mutex<()>>,
    /// `/proc/self/mem`.
    memory: OwnedFd,
    pub(crate) touches: Arc<Touches>,
}

impl Guards {
    /// The guards of a range that nobody may access yet.
    pub(crate) fn new(range: Range<usize>, ranges: Arc<Mutex<Ranges>>) -> Result<Self, Errno> {
        let parts = (range.end - range.start).div_ceil(PART_BYTES);
        Ok(Self {
            start: range.start,
            end: range.end,
            ranges,
            open: zeroed::slice(parts.div_ceil(64)),
            changing: Arc::new(Mutex::new(LockClass::Guards, ())),
            memory: Own::Memory.insist()?,
            touches: Arc::new(Touches::new()?),
        })
    }

    fn has(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    fn part_of(&self, address: usize) -> usize {
        (address - self.start) / PART_BYTES
    }

    fn is_open(&self, part: usize) -> bool {
        self.open[part / 64].load(Acquire) & 1 << (part % 64) != 0
    }

    /// Opens the parts of a range.
    fn open_parts(&self, _: &MutexGuard<'_, ()>, range: &Range<usize>) -> Result<(), Errno> {
        for part in self.part_of(range.start)..=self.part_of(range.end - 1) {
            if self.is_open(part) {
                continue;
            }
            let start = self.start + part * PART_BYTES;
            let end = (start + PART_BYTES).min(self.end);
            self.each_own(start..end, |stretch, protection| {
                advise(&stretch, MADV_GUARD_INSTALL)?;
                protect(&stretch, protection)
            })?;
            self.open[part / 64].fetch_or(1 << (part % 64), Release);
        }
        Ok(())
    }

    /// Calls `act` with the stretches of a range that are not foreign, and their protection.
    fn each_own(
        &self,
        range: Range<usize>,
        mut act: impl FnMut(Range<usize>, MprotectFlags) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let page = |address: usize| (address - self.start) / PAGE_SIZE;
        let (first, pages) = (page(range.start), (range.end - range.start) / PAGE_SIZE);
        let parts = self.ranges.lock().parts(PageNo(first as u32), pages);
        let mut from = range.start;
        for part in parts {
            let start = self.start + part.first.index() * PAGE_SIZE;
            if from < start {
                act(from..start, PLAIN)?;
            }
            from = start + part.pages * PAGE_SIZE;
            match part.kind {
                Kind::Managed(protection, _) => act(start..from, protection)?,
                Kind::Leaving => act(start..from, PLAIN)?,
                Kind::Foreign => {}
            }
        }
        if from < range.end { act(from..range.end, PLAIN) } else { Ok(()) }
    }

    /// Sets the protection of a range to what `ranges` says.
    fn let_in(&self, range: &Range<usize>) -> Result<(), Errno> {
        self.each_own(range.clone(), |stretch, protection| protect(&stretch, protection))
    }

    /// Does something to a range that nobody can access meanwhile.
    fn alone(
        &self,
        range: &Range<usize>,
        act: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let changing = self.changing.lock();
        self.open_parts(&changing, range)?;
        protect(range, NOBODY)?;
        let done = act();
        self.let_in(range)?;
        done
    }

    /// Fills pages that are out, and wakes the threads that wait for them.
    pub(crate) fn copy(&self, start: usize, content: &[u8]) -> Progress {
        let range = start..start + content.len();
        let done = self.alone(&range, || {
            advise(&range, MADV_GUARD_REMOVE)?;
            self.write(start, content).inspect_err(|_| {
                let _ = advise(&range, MADV_GUARD_INSTALL);
            })
        });
        self.touches.wake(range);
        progress(content.len(), done)
    }

    /// As [`copy`](Self::copy), with zeros.
    pub(crate) fn zero(&self, start: usize, len: usize) -> Progress {
        let range = start..start + len;
        let done = self.alone(&range, || {
            advise(&range, MADV_GUARD_REMOVE)?;
            // Memory counts as there when it has been touched.
            range.clone().step_by(PAGE_SIZE).try_for_each(|page| self.write(page, &[0]))
        });
        self.touches.wake(range);
        progress(len, done)
    }

    /// Moves present pages, within the range or between it and staging memory.
    ///
    /// # Safety
    /// Both ranges are the caller's; there are no references into them.
    pub(crate) unsafe fn move_pages(&self, target: usize, source: usize, len: usize) -> Progress {
        // SAFETY: contract.
        let bytes = |start: usize| unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        let range = source..source + len;
        match (self.has(source), self.has(target)) {
            (true, false) => self.take_out_all(&range, bytes(target)),
            (false, true) => self.copy(target, bytes(source)),
            _ => {
                let mut content = vec![0; len];
                match self.take_out(&range, &mut content) {
                    Ok(()) => self.copy(target, &content),
                    error => progress(len, error),
                }
            }
        }
    }

    /// Takes a run out; what is missing in it stops it there.
    fn take_out_all(&self, range: &Range<usize>, into: &mut [u8]) -> Progress {
        if self.take_out(range, into).is_ok() {
            return progress(into.len(), Ok(()));
        }
        let mut bytes = 0;
        let pages = into.chunks_exact_mut(PAGE_SIZE);
        let stopped = pages.zip(range.clone().step_by(PAGE_SIZE)).find_map(|(into, page)| {
            let taken = self.take_out(&(page..page + PAGE_SIZE), into);
            bytes += if taken.is_ok() { PAGE_SIZE } else { 0 };
            taken.err()
        });
        Progress { bytes, present: 0, stopped }
    }

    fn take_out(&self, range: &Range<usize>, into: &mut [u8]) -> Result<(), Errno> {
        self.alone(range, || {
            self.read(range.start, into)?;
            advise(range, MADV_GUARD_INSTALL)
        })
    }

    /// Drops pages with their content; the next touch is noticed.
    pub(crate) fn drop_pages(&self, start: usize, len: usize) -> Result<(), Errno> {
        let _changing = self.changing.lock();
        self.each_open(start..start + len, |stretch| {
            self.each_own(stretch, |own, _| advise(&own, MADV_GUARD_INSTALL))
        })
    }

    /// Sets the protection of a range, where it is open; elsewhere it is set when that is opened.
    /// The caller has locked `changing`.
    pub(crate) fn protect_open(
        &self,
        range: Range<usize>,
        flags: MprotectFlags,
    ) -> Result<(), Errno> {
        self.each_open(range, |stretch| protect(&stretch, flags))
    }

    /// Makes new memory in place of a foreign mapping like that around it. It was mapped without
    /// access.
    pub(crate) fn take_over(&self, start: usize, len: usize) -> Result<(), Errno> {
        let _changing = self.changing.lock();
        self.each_open(start..start + len, |stretch| {
            advise(&stretch, MADV_GUARD_INSTALL)?;
            protect(&stretch, PLAIN)
        })
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
                to = (self.start + (self.part_of(to) + 1) * PART_BYTES).min(range.end);
            }
            if is_open {
                act(from..to)?;
            }
            from = to;
        }
        Ok(())
    }

    fn write(&self, address: usize, content: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < content.len() {
            let (rest, at) = (&content[done..], (address + done) as u64);
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.memory, rest, at))? {
                0 => return Err(Errno::IO),
                written => done += written,
            }
        }
        Ok(())
    }

    fn read(&self, address: usize, into: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < into.len() {
            let at = (address + done) as u64;
            let read = || rustix::io::pread(&self.memory, &mut into[done..], at);
            match rustix::io::retry_on_intr(read)? {
                0 => return Err(Errno::IO),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Tries whether this kernel has what it takes.
    pub(crate) fn probe() -> Result<(), Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        // SAFETY: a page of its own, unmapped again.
        unsafe {
            let page = mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_SIZE,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )?;
            let range = page.addr()..page.addr() + PAGE_SIZE;
            let installed = advise(&range, MADV_GUARD_INSTALL);
            munmap(page, PAGE_SIZE)?;
            installed
        }
    }
}

fn progress(len: usize, done: Result<(), Errno>) -> Progress {
    let stopped = done.err();
    Progress { bytes: if stopped.is_none() { len } else { 0 }, present: 0, stopped }
}

fn protect(range: &Range<usize>, flags: MprotectFlags) -> Result<(), Errno> {
    // SAFETY: a part of our own range; what the program may do with it is as `ranges` says again
    // before the lock is released.
    unsafe { rustix::mm::mprotect(range.start as *mut _, range.len(), flags) }
}

fn advise(range: &Range<usize>, advice: libc::c_int) -> Result<(), Errno> {
    // libc's madvise is the program's, which refuses guards.
    // SAFETY: a part of our own range, whose content the caller has, or wants dropped.
    match unsafe { libc::syscall(libc::SYS_madvise, range.start, range.len(), advice) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
