//! A region: a slice of bytes larger than memory.
//!
//! Owns: regions, their options, and pins.
//! Invariants: a region is mapped while it lives; a pinned page stays in memory until the pin ends,
//! which borrows the region or keeps it alive.
//! Not here: how a fault is served (`space`).

use crate::error::Error;
use crate::pager::Pager;
use overspill_base::sync::Arc;
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_space::Advice;
use std::ops::{Deref, DerefMut, Range};

/// Which thread brings in a swapped-out page that is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// A thread of the pager, to which the kernel sends a message. Works wherever memory works, if
    /// all touches are [served](crate::Reach::All). Where there is no userfaultfd, faults are
    /// signals all the same.
    #[default]
    Message,
    /// The thread that touches it, in a handler for SIGBUS, or SIGSEGV if there is no userfaultfd.
    /// Much faster if the device is fast: no other thread has to wake up. In exchange:
    ///
    /// * A system call on a page that is swapped out fails with EFAULT: [pin](Region::pin) what you
    ///   pass to one.
    /// * The signal must not be blocked where the region is touched. The handler is installed with
    ///   the first such region and passes other signals on to the previous handler. Do not install
    ///   another one later: it would get the region's faults.
    /// * The handler runs on the current stack of the thread that touches the region, and needs
    ///   less than 16 KiB of it. A signal handler that touches the region needs that much on its
    ///   alternate stack.
    Signal,
}

/// Options for a region; see [`Overspill::region_options`](crate::Overspill::region_options).
#[derive(Debug, Clone)]
pub struct RegionOptions {
    pager: Arc<Pager>,
    faults: Faults,
}

impl RegionOptions {
    pub(crate) fn new(pager: Arc<Pager>) -> Self {
        Self { pager, faults: Faults::default() }
    }

    /// Chooses which thread brings pages in.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Makes zeroed memory of `size`, rounded up to pages.
    ///
    /// # Errors
    /// [`Error::Memory`] if the reserved address space is used up; [`Error::Signals`] if faults
    /// cannot be signals; [`Error::Forked`].
    pub fn build(self, size: Bytes) -> Result<Region, Error> {
        self.pager.check_maker()?;
        if self.faults == Faults::Signal {
            self.pager.start_signals()?;
        }
        let pages = size.0.div_ceil(self.pager.page_bytes() as u64) as usize;
        let memory = self.pager.memory();
        let address = self.pager.undisturbed(|| match (self.faults, pages) {
            (_, 0) => Ok(PAGE_SIZE),
            (Faults::Message, _) => memory.map(pages),
            (Faults::Signal, _) => memory.map_by_signal(pages),
        })?;
        Ok(Region { pager: self.pager, address, pages })
    }
}

/// Zeroed memory of which only a part is in memory at any time. Unmapped when dropped.
///
/// Use it as a `[u8]`, from any thread. As the buffer of a system call it must be
/// [pinned](Region::pin) if [`Overspill::needs_pins`](crate::Overspill::needs_pins), or if its
/// faults are [signals](Faults::Signal). A touch of a swapped-out page blocks until it is read. If
/// that fails, the thread gets SIGBUS, and the reason is in
/// [`Overspill::last_error`](crate::Overspill::last_error).
#[derive(Debug)]
pub struct Region {
    pager: Arc<Pager>,
    address: usize,
    pages: usize,
}

impl Region {
    /// Drops the content of whole pages in `range` of bytes: they read as zeros and cost nothing.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn discard(&mut self, range: Range<usize>) {
        // SAFETY: &mut self is the only reference.
        unsafe { self.discard_unborrowed(range) };
    }

    /// As [`discard`](Self::discard), for owners that the borrow checker does not know.
    ///
    /// # Safety
    /// No reference to bytes in `range` exists.
    ///
    /// # Panics
    /// As [`discard`](Self::discard).
    pub unsafe fn discard_unborrowed(&self, range: Range<usize>) {
        if let Some((address, pages)) = self.whole_pages(range) {
            self.pager.undisturbed(|| self.pager.memory().discard(address, pages));
        }
    }

    /// Brings `range` of bytes into memory and keeps it there while the result lives, to be read or
    /// passed to a system call. Blocks for the reads. Pins may overlap.
    ///
    /// # Errors
    /// [`Error::Memory`] if more than half of the memory limit would be pinned, or a page cannot be
    /// brought in.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn pin(&self, range: Range<usize>) -> Result<Pinned<'_>, Error> {
        let pin = self.pin_pages(&range)?;
        Ok(Pinned { bytes: &self[range], _pin: pin })
    }

    /// As [`pin`](Self::pin), writable.
    ///
    /// ```
    /// use overspill::{Bytes, Faults, Overspill};
    /// use std::io::Read;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(file.path(), [7; 10_000])?;
    /// let builder = Overspill::builder().memory(Bytes(8 << 20));
    /// let overspill = builder.swap("ram:64M".parse()?).build()?;
    /// let mut region =
    ///     overspill.region_options().faults(Faults::Signal).build(Bytes(32 << 20))?;
    /// let mut file = std::fs::File::open(file.path())?;
    /// file.read_exact(&mut region.pin_mut(4096..14_096)?)?;
    /// assert!(region[4096..14_096].iter().all(|&byte| byte == 7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    ///
    /// # Panics
    /// As [`pin`](Self::pin).
    pub fn pin_mut(&mut self, range: Range<usize>) -> Result<PinnedMut<'_>, Error> {
        let pin = self.pin_pages(&range)?;
        Ok(PinnedMut { bytes: &mut self[range], _pin: pin })
    }

    /// As [`pin`](Self::pin), but the result keeps the region alive instead of borrowing it: for
    /// owners that the borrow checker does not know, such as another language's.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    ///
    /// # Panics
    /// As [`pin`](Self::pin).
    pub fn hold(self: &Arc<Self>, range: Range<usize>) -> Result<HeldRange, Error> {
        Ok(HeldRange { _pin: self.pin_pages(&range)?, _region: self.clone() })
    }

    /// Where its bytes are. No reference to them may exist while they are written through this.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    fn pin_pages(&self, range: &Range<usize>) -> Result<Pin, Error> {
        self.pager.check_maker()?;
        self.check(range);
        let page_bytes = self.pager.page_bytes();
        let first = range.start / page_bytes;
        let pages = range.end.div_ceil(page_bytes).saturating_sub(first);
        let address = self.address + first * page_bytes;
        let (memory, in_place) = (self.pager.memory(), self.pager.in_place()?);
        self.pager.undisturbed(|| memory.pin(address, pages, in_place))?;
        Ok(Pin { pager: self.pager.clone(), address, pages })
    }

    fn check(&self, range: &Range<usize>) {
        let inside = range.start <= range.end && range.end <= self.len();
        assert!(inside, "{range:?} is past the region, which has {} bytes", self.len());
    }

    /// Advises how whole pages in `range` of bytes will be used, or whether they will be soon.
    /// Partial pages at its ends are left out, as in [`discard`](Self::discard). Blocks for
    /// [`Advice::PageOut`] only.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn advise(&self, range: Range<usize>, advice: Advice) {
        if let Some((address, pages)) = self.whole_pages(range) {
            self.pager.undisturbed(|| self.pager.memory().advise(address, pages, advice));
        }
    }

    fn bytes(&self) -> usize {
        self.pages * self.pager.page_bytes()
    }

    /// The address and number of the whole pages in a range of bytes, if there are any, and if it
    /// is not a forked child that asks, which has none of them.
    fn whole_pages(&self, range: Range<usize>) -> Option<(usize, usize)> {
        self.check(&range);
        let page_bytes = self.pager.page_bytes();
        let first = range.start.div_ceil(page_bytes);
        let pages = (range.end / page_bytes).saturating_sub(first);
        (pages > 0 && self.pager.is_here()).then_some((self.address + first * page_bytes, pages))
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped while the region lives, zeros at first; its pages are evicted
        // and return with their content, which no reader can see. Only the pager's handlers could
        // break that, by failing to answer a fault, and then the reader never returns.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes()) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; &mut self makes it the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.pages > 0 && self.pager.is_here() {
            self.pager.undisturbed(|| self.pager.memory().unmap(self.address, self.pages));
        }
    }
}

/// Bytes of a region that stay in memory until this is dropped.
#[derive(Debug)]
pub struct Pinned<'a> {
    bytes: &'a [u8],
    _pin: Pin,
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// As [`Pinned`], writable.
#[derive(Debug)]
pub struct PinnedMut<'a> {
    bytes: &'a mut [u8],
    _pin: Pin,
}

impl Deref for PinnedMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for PinnedMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// Bytes of a region that stay in memory until this is dropped; see [`Region::hold`].
#[derive(Debug)]
pub struct HeldRange {
    // Dropped before the region.
    _pin: Pin,
    _region: Arc<Region>,
}

/// Keeps pages in memory until it is dropped.
#[derive(Debug)]
struct Pin {
    pager: Arc<Pager>,
    address: usize,
    pages: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.pager.is_here() {
            self.pager.undisturbed(|| self.pager.memory().unpin(self.address, self.pages));
        }
    }
}
