//! The reserved range.
//!
//! Owns: the reservation and the userfaultfd, or the guards, over it. One mapping covers the whole
//! range, so mapping and unmapping inside it are bookkeeping, and mappings never fragment. How a
//! userfaultfd reports faults is fixed when it is opened, so if faults in the upper half are to be
//! signals, that half gets a second one; everything that maps pages there uses it. With guards all
//! faults are signals.
//! Invariants: pages of the range are never huge (a huge page could not be moved out in part).
//! Not here: what the engine asks for ([`crate::requests`]).

use crate::guards::Guards;
use crate::kernel::{Between, Call, Meaning, meaning};
use crate::mapping::{BASE_ALIGN, forbid_huge_pages, release, reserve_aligned};
use crate::own::OwnMemory;
use crate::ranges::{Half, Ranges};
use crate::source::Source;
use crate::traps::Trap;
use crate::uffd::{Delivery, Uffd, UffdError};
use crate::whereabouts::Whereabouts;
use crate::words::Reach;
use overspill_base::report::{Cause, Reports};
use overspill_base::shared::PageArena;
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::{Arc, AtomicUsize, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE, PageNo};
use overspill_engine::{Engine, SpaceError};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::ops::Range;
use std::sync::OnceLock;

/// Why no range could be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpaceSetupError {
    /// Not even the smallest range could be reserved.
    #[error(
        "cannot reserve {0} of address space ({1}): raise `ulimit -v`, or set \
         vm.overcommit_memory to 0 or 1"
    )]
    Reserve(Bytes, Errno),
    /// See [`UffdError`].
    #[error(transparent)]
    Uffd(#[from] UffdError),
    /// /proc is not mounted, or its files are forbidden.
    #[error("cannot write to memory by /proc/self/mem ({0}): mount /proc")]
    OwnMemory(Errno),
    /// The kernel opened the userfaultfd but did not register the range.
    #[error("cannot register {0} with userfaultfd ({1})")]
    Register(Bytes, Errno),
    /// Regions by message extend into the half reserved for signals.
    #[error("no address space is left for faults by signal: {0} of it are in use")]
    NoRoomForSignals(Bytes),
}

/// A reserved range of addresses whose faults we serve.
#[derive(Debug)]
pub struct ManagedSpace {
    start: usize,
    pages: usize,
    page_bytes: usize,
    pub(crate) ranges: Mutex<Ranges>,
    source: Source,
    /// The userfaultfd over the upper half, once there is one.
    signals: OnceLock<Source>,
    /// Number of pages that may not be evicted, each counted as often as it is pinned.
    pub(crate) pinned_pages: AtomicUsize,
    /// `/proc/self/mem`.
    pub(crate) memory: OwnMemory,
    pub(crate) whereabouts: Whereabouts,
    /// Where unexpected errors are counted and reported, once the engine has set it.
    pub(crate) reports: OnceLock<(Stats, Arc<Reports>)>,
}

impl Drop for ManagedSpace {
    fn drop(&mut self) {
        release(self.start, self.pages * self.page_bytes);
    }
}

impl ManagedSpace {
    /// Reserves `size` of address space, or the largest half, quarter, ... of it that the system
    /// grants, down to 1 GiB, in pages of `page_bytes`. A forked child does not have it.
    ///
    /// # Errors
    /// [`SpaceSetupError`], worded for the user.
    ///
    /// # Panics
    /// If `page_bytes` is not a power of two from 4 KiB to 1 GiB.
    pub fn reserve(size: Bytes, page_bytes: usize, reach: Reach) -> Result<Self, SpaceSetupError> {
        assert!(page_bytes.is_power_of_two() && (PAGE_SIZE..=BASE_ALIGN).contains(&page_bytes));
        let memory = OwnMemory::open().map_err(SpaceSetupError::OwnMemory)?;
        let range = reserve_most(size, !reach.is_by_signal())?;
        let source =
            open_source(&range, reach).inspect_err(|_| release(range.start, range.len()))?;
        let pages = range.len() / page_bytes;
        Ok(Self {
            start: range.start,
            pages,
            page_bytes,
            ranges: Mutex::new(LockClass::Ranges, Ranges::new(pages)),
            source,
            signals: OnceLock::new(),
            pinned_pages: AtomicUsize::new(0),
            memory,
            whereabouts: Whereabouts::open(),
            reports: OnceLock::new(),
        })
    }

    /// Which touches are served.
    pub fn reach(&self) -> Reach {
        self.source.reach()
    }

    /// Number of pages in the range.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Size of a page in bytes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Size of `pages` pages.
    pub fn size_of(&self, pages: usize) -> Bytes {
        Bytes((pages * self.page_bytes) as u64)
    }

    /// The page at an address of the range.
    #[inline]
    pub fn page_at(&self, address: usize) -> PageNo {
        PageNo(((address - self.start) / self.page_bytes) as u32)
    }

    /// Whether an address is in the range.
    pub(crate) fn holds(&self, address: usize) -> bool {
        (self.start..self.start + self.pages * self.page_bytes).contains(&address)
    }

    /// The address of a page.
    #[inline]
    pub fn address_of(&self, page: PageNo) -> usize {
        self.start + page.index() * self.page_bytes
    }

    /// Registers `arena` as a target of moves.
    ///
    /// # Errors
    /// [`SpaceSetupError::Register`].
    pub fn register_staging(&self, arena: &PageArena) -> Result<(), SpaceSetupError> {
        let (start, len) = (arena.address(0).addr(), arena.pages() * PAGE_SIZE);
        forbid_huge_pages(start, len);
        let Some(uffd) = self.source.userfault() else { return Ok(()) };
        let features = uffd.features();
        if !features.move_pages || !features.write_protect {
            return Ok(());
        }
        // SAFETY: the engine's own arena; write protection is never switched on in it.
        unsafe { uffd.register_target(start, len) }
            .map_err(|errno| SpaceSetupError::Register(Bytes(len as u64), errno))
    }

    /// Opens signal delivery, for the upper half if there is a userfaultfd, and returns the
    /// addresses and the signal. Call once.
    ///
    /// # Errors
    /// [`SpaceSetupError`], worded for the user.
    pub(crate) fn open_signals(&self) -> Result<(Range<usize>, Trap), SpaceSetupError> {
        let end = self.start + self.pages * self.page_bytes;
        let Some(messages) = self.source.userfault() else {
            return Ok((self.start..end, Trap::Segv));
        };
        let first = self.first_by_signal();
        let (start, len) = (self.address_of(first), end - self.address_of(first));
        let size = Bytes(len as u64);
        let uffd = Uffd::open(Delivery::Signals, self.reach())?;
        if !self.ranges.lock().divide(first) {
            return Err(SpaceSetupError::NoRoomForSignals(size));
        }
        messages
            .unregister(start, len)
            // SAFETY: a part of our own range in which nothing is mapped yet; a thread that touches
            // it gets a signal and never sleeps.
            .and_then(|()| unsafe { uffd.register_missing(start, len) })
            .map_err(|errno| SpaceSetupError::Register(size, errno))?;
        let _ = self.signals.set(Source::Userfault(uffd));
        Ok((start..end, Trap::Bus))
    }

    fn first_by_signal(&self) -> PageNo {
        PageNo((self.pages / 2) as u32)
    }

    /// Where memory is mapped whose faults are signals.
    pub(crate) fn half_by_signal(&self) -> Half {
        if self.reach().is_by_signal() { Half::Lower } else { Half::Upper }
    }

    /// Makes the next touch of an unmapped page raise SIGSEGV, as any does where nothing is served
    /// but signals.
    pub(crate) fn refuse(&self, page: PageNo) {
        if self.source.userfault().is_some() {
            self.ranges.lock().refuse(page);
            let _ = self.protect(page, MprotectFlags::empty());
        }
    }

    /// Ends what [`refuse`](Self::refuse) began.
    pub(crate) fn permit(&self, page: PageNo) -> Result<(), Errno> {
        self.protect(page, MprotectFlags::READ | MprotectFlags::WRITE)
    }

    fn protect(&self, page: PageNo, flags: MprotectFlags) -> Result<(), Errno> {
        let start = self.address_of(page) as *mut _;
        // SAFETY: a part of our own range in which nothing is mapped.
        unsafe { rustix::mm::mprotect(start, self.page_bytes, flags) }
    }

    /// Makes `between` answer the calls of the range's first userfaultfd from now on, for tests.
    pub fn put_between(&self, between: Box<dyn Between>) {
        if let Some(uffd) = self.source.userfault() {
            uffd.put_between(between);
        }
    }

    /// Counts a page that had moved although the kernel reported that it had not.
    pub(crate) fn count_misreported(&self) {
        if let Some((stats, _)) = self.reports.get() {
            stats.count(Event::move_misreported);
        }
    }

    /// Counts and reports an error that is not in the table.
    pub(crate) fn unexpected(&self, whom: &'static str, what: &dyn std::fmt::Display) {
        if let Some((stats, reports)) = self.reports.get() {
            stats.count(Event::kernel_unexpected);
            let line = format!("unexpected answer of the kernel to {whom}: {what}");
            reports.tell(Cause::of(whom), line);
        }
    }

    /// Translates the errno of a call that did nothing for the engine; reports an unexpected one.
    pub(crate) fn refusal(&self, call: Call, errno: Errno) -> SpaceError {
        match meaning(call, errno) {
            Meaning::Again | Meaning::NoMemory => SpaceError::Busy,
            Meaning::InUse => SpaceError::Pinned,
            Meaning::Gone => SpaceError::Gone,
            // Nothing of ours is mapped there: the program has mapped something else.
            Meaning::Absent if matches!(call, Call::Copy | Call::Zero) => SpaceError::Gone,
            _ => {
                self.unexpected(call.name(), &errno);
                SpaceError::Refused
            }
        }
    }

    /// Says that no page is left for a fault, whose thread gets a signal.
    pub(crate) fn say_out_of_memory(&self, engine: &Engine) {
        if let Some((_, reports)) = self.reports.get() {
            let why = engine.last_error().unwrap_or_else(|| "no page can be moved out".into());
            let limit = self.size_of(engine.limit_frames());
            let line = format!("out of memory: the limit of {limit} is full, and {why}");
            reports.tell(Cause::of("out of memory"), line);
        }
    }

    /// Where the touches of most pages are noticed.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Where those of `page` are.
    pub(crate) fn source_of(&self, page: PageNo) -> &Source {
        match self.signals.get() {
            Some(signals) if page >= self.first_by_signal() => signals,
            _ => &self.source,
        }
    }
}

/// Reserves `size` of address space, or less.
fn reserve_most(size: Bytes, is_accessible: bool) -> Result<Range<usize>, SpaceSetupError> {
    let mut len = (size.0 as usize).next_multiple_of(BASE_ALIGN);
    loop {
        match reserve_aligned(len, is_accessible) {
            Ok(start) => return Ok(start..start + len),
            Err(errno) if len <= BASE_ALIGN => {
                return Err(SpaceSetupError::Reserve(Bytes(len as u64), errno));
            }
            Err(_) => len = (len / 2).next_multiple_of(BASE_ALIGN),
        }
    }
}

fn open_source(range: &Range<usize>, reach: Reach) -> Result<Source, SpaceSetupError> {
    if reach.is_by_signal() {
        let guards = Guards::new(range.clone(), reach == Reach::Shut);
        return guards.map(Source::Guards).map_err(SpaceSetupError::OwnMemory);
    }
    let uffd = Uffd::open(Delivery::Messages, reach)?;
    // SAFETY: our own range; the handlers answer its faults.
    unsafe { uffd.register_missing(range.start, range.len()) }
        .map_err(|errno| SpaceSetupError::Register(Bytes(range.len() as u64), errno))?;
    Ok(Source::Userfault(uffd))
}
