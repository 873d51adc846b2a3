//! The reserved range.
//!
//! Owns: the reservation and the userfaultfd over it. One writable mapping covers the whole range,
//! so mapping and unmapping inside it are bookkeeping, and mappings never fragment. How a
//! userfaultfd reports faults is fixed when it is opened, so if faults in the upper half are to be
//! signals, that half gets a second one; everything that maps pages there uses it.
//! Invariants: pages of the range are never huge (a huge page could not be moved out in part).
//! Not here: what the engine asks for ([`crate::requests`]).

use crate::guards::Guards;
use crate::kernel::{Between, Call, Meaning, meaning};
use crate::mapping::{
    BASE_ALIGN, forbid_huge_pages, map_fixed, release, reserve_aligned, set_advice,
};
use crate::own::Own;
use crate::ranges::Ranges;
use crate::source::Source;
use crate::touches::Touches;
use crate::uffd::{Delivery, Uffd, UffdError};
use crate::whereabouts::Whereabouts;
use crate::words::Reach;
use overspill_base::report::{Cause, Reports};
use overspill_base::shared::PageArena;
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicBool, AtomicUsize, LockClass, Mutex, MutexGuard};
use overspill_base::{Bytes, PAGE_SIZE, PageNo};
use overspill_engine::SpaceError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags};
use std::ops::Range;
use std::sync::{OnceLock, RwLock};

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
    #[error("cannot open /proc/self/mem ({0}): mount /proc")]
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
    pub(crate) page_bytes: usize,
    pub(crate) ranges: Arc<Mutex<Ranges>>,
    /// Replaced in a forked child. Held for the length of a call only.
    uffd: RwLock<Source>,
    /// The userfaultfd over the upper half, once there is one.
    signals: OnceLock<Source>,
    /// The threads that wait, where touches raise signals.
    touches: Option<Arc<Touches>>,
    /// See [`changing`](Self::changing).
    changing: Option<Arc<Mutex<()>>>,
    /// Number of pages that may not be evicted, each counted as often as it is pinned.
    pub(crate) pinned_pages: AtomicUsize,
    /// See [`let_fork_copy`](Self::let_fork_copy).
    copied: AtomicBool,
    /// `/proc/self/mem`; replaced in a forked child, where it would be the parent's. None if a
    /// child can no longer open it: then pages that cannot be moved stay in memory.
    pub(crate) memory: RwLock<Option<OwnedFd>>,
    /// As above.
    whereabouts: RwLock<Whereabouts>,
    /// Where unexpected errors are counted and reported, once the engine has set it.
    pub(crate) reports: OnceLock<(Stats, Arc<Reports>)>,
    /// Address and length of the staging arena, once the engine has one.
    staging: Mutex<Option<(usize, usize)>>,
}

impl Drop for ManagedSpace {
    fn drop(&mut self) {
        release(self.start, self.pages * self.page_bytes);
    }
}

impl ManagedSpace {
    /// Reserves `size` of address space, or the largest half, quarter, ... of it that the system
    /// grants, down to 1 GiB, in pages of `page_bytes`.
    ///
    /// # Errors
    /// [`SpaceSetupError`], worded for the user.
    ///
    /// # Panics
    /// If `page_bytes` is not a power of two from 4 KiB to 1 GiB.
    pub fn reserve(size: Bytes, page_bytes: usize, reach: Reach) -> Result<Self, SpaceSetupError> {
        assert!(page_bytes.is_power_of_two() && (PAGE_SIZE..=BASE_ALIGN).contains(&page_bytes));
        let uffd = match reach {
            Reach::Nothing => None,
            reach => Some(Uffd::open(Delivery::Messages, reach)?),
        };
        let mut len = (size.0 as usize).next_multiple_of(BASE_ALIGN);
        let start = loop {
            match reserve_aligned(len, uffd.is_some()) {
                Ok(start) => break start,
                Err(errno) if len <= BASE_ALIGN => {
                    return Err(SpaceSetupError::Reserve(Bytes(len as u64), errno));
                }
                Err(_) => len = (len / 2).next_multiple_of(BASE_ALIGN),
            }
        };
        let ranges = Mutex::new(LockClass::Ranges, Ranges::new(len / page_bytes));
        let ranges = Arc::new(ranges);
        let source = match uffd {
            Some(uffd) => Source::Userfault(uffd),
            None => {
                let guards = Guards::new(start..start + len, ranges.clone());
                Source::Guards(guards.map_err(SpaceSetupError::OwnMemory)?)
            }
        };
        let space = Self {
            start,
            pages: len / page_bytes,
            page_bytes,
            ranges,
            touches: source.guards().map(|guards| guards.touches.clone()),
            changing: source.guards().map(|guards| guards.changing.clone()),
            uffd: RwLock::new(source),
            signals: OnceLock::new(),
            pinned_pages: AtomicUsize::new(0),
            copied: AtomicBool::new(true),
            memory: RwLock::new(Some(Own::Memory.open().map_err(SpaceSetupError::OwnMemory)?)),
            whereabouts: RwLock::new(Whereabouts::open()),
            reports: OnceLock::new(),
            staging: Mutex::new(LockClass::Control, None),
        };
        space.register_all()?;
        Ok(space)
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
        *self.staging.lock() = Some((start, len));
        forbid_huge_pages(start, len);
        self.register_target(start, len)
    }

    /// Opens signal delivery for the upper half, and returns its addresses. Call once.
    ///
    /// # Errors
    /// [`SpaceSetupError`], worded for the user.
    pub(crate) fn open_signals(&self) -> Result<Range<usize>, SpaceSetupError> {
        let first = self.first_by_signal();
        let (start, len) = (self.address_of(first), (self.pages - first.index()) * self.page_bytes);
        let size = Bytes(len as u64);
        let uffd = Uffd::open(Delivery::Signals, Reach::All)?;
        if !self.ranges.lock().divide(first) {
            return Err(SpaceSetupError::NoRoomForSignals(size));
        }
        self.with_uffd(|messages| messages.unregister(start, len))
            // SAFETY: a part of our own range in which nothing is mapped yet; a thread that touches
            // it gets a signal and never sleeps.
            .and_then(|()| unsafe { uffd.register_missing(start, len) })
            .map_err(|errno| SpaceSetupError::Register(size, errno))?;
        let _ = self.signals.set(Source::Userfault(uffd));
        Ok(start..start + len)
    }

    fn first_by_signal(&self) -> PageNo {
        PageNo((self.pages / 2) as u32)
    }

    /// Maps plain, registered memory again over a range where something else was mapped.
    pub(crate) fn restore(&self, first: PageNo, pages: usize) -> Result<(), Errno> {
        let (start, len) = (self.address_of(first), pages * self.page_bytes);
        let by_touch = self.waits_by_signal();
        map_fixed(start, len, !by_touch)?;
        if !self.copied.load(Relaxed) {
            set_advice(start, len, Advice::LinuxDontFork);
        }
        self.with_uffd(|uffd| match uffd.guards() {
            Some(guards) => guards.take_over(start, len),
            // SAFETY: a part of our own range, whose faults the handlers answer.
            None => unsafe { uffd.register_missing(start, len) },
        })
    }

    /// Calls madvise(2) on a part of the range.
    pub(crate) fn tell_kernel(
        &self,
        first: PageNo,
        pages: usize,
        advice: Advice,
    ) -> Result<(), Errno> {
        let start = self.address_of(first) as *mut std::ffi::c_void;
        // SAFETY: a part of our own range, and advice that keeps content.
        unsafe { rustix::mm::madvise(start, pages * self.page_bytes, advice) }
    }

    /// The right to change protections: they are the program's as long as somebody has it, and not
    /// while pages are on their way under a protection of ours. Taken before `ranges` is locked.
    pub(crate) fn changing(&self) -> Changing<'_> {
        Changing { _lock: self.changing.as_ref().map(|changing| changing.lock()) }
    }

    /// Changes the protection of a part of the range.
    pub(crate) fn protect(
        &self,
        _changing: &Changing<'_>,
        first: PageNo,
        pages: usize,
        flags: MprotectFlags,
    ) -> Result<(), Errno> {
        let (start, len) = (self.address_of(first), pages * self.page_bytes);
        self.with_uffd(|uffd| match uffd.guards() {
            Some(guards) => guards.protect_open(start..start + len, flags),
            // SAFETY: a part of our own range; the program asked for it, or nothing is mapped
            // there.
            None => unsafe { rustix::mm::mprotect(start as *mut _, len, flags) },
        })
    }

    /// Makes `between` answer the calls of the range's first userfaultfd from now on, for tests.
    pub fn put_between(&self, between: Box<dyn Between>) {
        self.write_uffd().put_between(between);
    }

    pub(crate) fn with_whereabouts<R>(&self, f: impl FnOnce(&Whereabouts) -> R) -> R {
        f(&self.whereabouts.read().unwrap_or_else(|e| e.into_inner()))
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

    /// Calls `f` with the userfaultfd, which is not replaced meanwhile.
    pub(crate) fn with_uffd<R>(&self, f: impl FnOnce(&Source) -> R) -> R {
        f(&self.uffd.read().unwrap_or_else(|e| e.into_inner()))
    }

    /// Calls `f` with the userfaultfd that `page` is registered with.
    pub(crate) fn with_uffd_of<R>(&self, page: PageNo, f: impl FnOnce(&Source) -> R) -> R {
        match self.signals.get() {
            Some(signals) if page >= self.first_by_signal() => f(signals),
            _ => self.with_uffd(f),
        }
    }

    /// True if touches raise signals.
    pub fn waits_by_signal(&self) -> bool {
        self.touches.is_some()
    }

    /// Rings the pager's bell for threads that wait, forever, where touches raise signals.
    pub(crate) fn ring(&self) {
        if let Some(touches) = &self.touches {
            touches.ring();
        }
    }

    /// Waits for the page at `address`, which this thread has touched or would touch, where touches
    /// raise signals; false elsewhere. May be called in a signal handler.
    pub fn wait_for(&self, address: usize) -> bool {
        let touches = self.touches.as_ref();
        touches.map(|touches| touches.wait(address)).is_some()
    }

    /// Says that nobody reads messages from now on; false if there are some.
    pub(crate) fn sleeps(&self) -> bool {
        self.touches.as_ref().is_none_or(|touches| touches.sleeps())
    }

    /// A second descriptor of the same userfaultfd, for a handler to wait on.
    pub(crate) fn dup_uffd(&self) -> Result<OwnedFd, Errno> {
        self.with_uffd(|uffd| rustix::io::fcntl_dupfd_cloexec(uffd.as_fd(), 0))
    }

    fn write_uffd(&self) -> std::sync::RwLockWriteGuard<'_, Source> {
        self.uffd.write().unwrap_or_else(|e| e.into_inner())
    }

    fn register_all(&self) -> Result<(), SpaceSetupError> {
        // One registration of the whole range fails if it contains foreign mappings.
        self.own_stretches().into_iter().try_for_each(|(start, len)| {
            self.with_uffd(|uffd| {
                // SAFETY: our own range; the handlers answer its faults.
                unsafe { uffd.register_missing(start, len) }
            })
            .map_err(|e| SpaceSetupError::Register(Bytes(len as u64), e))
        })
    }

    /// The range without foreign mappings, as addresses and lengths.
    fn own_stretches(&self) -> Vec<(usize, usize)> {
        let parts = self.ranges.lock().parts(PageNo(0), self.pages);
        let foreign = parts
            .into_iter()
            .filter(|part| part.kind == crate::ranges::Kind::Foreign)
            .map(|part| (self.address_of(part.first), part.pages * self.page_bytes));
        let end = self.start + self.pages * self.page_bytes;
        let (mut from, mut own) = (self.start, Vec::new());
        for (start, len) in foreign.chain([(end, 0)]) {
            if start > from {
                own.push((from, start - from));
            }
            from = start + len;
        }
        own
    }

    /// Sets whether a forked child inherits the range. After a fork we did not see, swapped-out
    /// pages would read as zeros in the child; without the range it dies at the first touch.
    pub fn let_fork_copy(&self, copies: bool) {
        let advice = if copies { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        for (start, len) in self.own_stretches() {
            set_advice(start, len, advice);
        }
        self.copied.store(copies, Relaxed);
    }

    fn register_target(&self, start: usize, len: usize) -> Result<(), SpaceSetupError> {
        self.with_uffd(|uffd| {
            let features = uffd.features();
            if !features.move_pages || !features.write_protect {
                return Ok(());
            }
            // SAFETY: the engine's own arena; write protection is never switched on in it.
            unsafe { uffd.register_target(start, len) }
        })
        .map_err(|e| SpaceSetupError::Register(Bytes(len as u64), e))
    }
}

/// See [`ManagedSpace::changing`].
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    _lock: Option<MutexGuard<'a, ()>>,
}

/// Polls the userfaultfd itself, see [`crate::handlers`].
pub(crate) fn readable(fd: BorrowedFd<'_>) -> rustix::event::PollFd<'_> {
    rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)
}
