//! Pages in use: guards that keep them in memory, and looks that do not.
//!
//! Owns: the step from a frame that the page's word has granted to a slice of its bytes.
//! Invariants: a [`PageGuard`] has one of its page's pins, a [`PageGuardMut`] is its only writer,
//! and either is released when dropped; until then the engine neither unpublishes the page nor
//! writes to its frame. A look returns a copy only if nothing can have changed what it copied.

use super::core::Core;
use overspill_base::{FrameNo, PageNo};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A page that stays in memory and unchanged as long as this lives.
#[derive(Debug)]
pub struct PageGuard<'a> {
    core: &'a Core,
    page: PageNo,
    bytes: NonNull<u8>,
}

/// A page that only the holder may change, as long as this lives.
#[derive(Debug)]
pub struct PageGuardMut<'a> {
    core: &'a Core,
    page: PageNo,
    bytes: NonNull<u8>,
}

// SAFETY: a guard is a shared reference to its page's bytes, which any thread may read and no
// thread writes while a guard exists; its release is atomic and may happen on any thread.
unsafe impl Send for PageGuard<'_> {}
// SAFETY: as above.
unsafe impl Sync for PageGuard<'_> {}
// SAFETY: the only reference to its page's bytes; WRITER is not tied to a thread.
unsafe impl Send for PageGuardMut<'_> {}
// SAFETY: & gives & [u8] only.
unsafe impl Sync for PageGuardMut<'_> {}

fn home(core: &Core, frame: FrameNo) -> NonNull<u8> {
    NonNull::new(core.engine().place(frame)).expect("places are in a mapping")
}

impl<'a> PageGuard<'a> {
    /// Makes a guard for a page whose pin has just been granted, in `frame`.
    #[inline]
    pub(crate) fn new(core: &'a Core, page: PageNo, frame: FrameNo) -> Self {
        Self { core, page, bytes: home(core, frame) }
    }

    /// Returns the page's number.
    pub fn page(&self) -> PageNo {
        self.page
    }
}

impl Deref for PageGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the frame's memory has this size, all initialised since it was first mapped. The
        // pin keeps the page in this frame and excludes writers and the device; without it the
        // bytes would change under the reference.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.core.page_bytes()) }
    }
}

impl Drop for PageGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.core.words().end_read(self.page);
    }
}

impl<'a> PageGuardMut<'a> {
    /// Makes a guard for a page whose only writer the caller has just become, in `frame`.
    #[inline]
    pub(crate) fn new(core: &'a Core, page: PageNo, frame: FrameNo) -> Self {
        Self { core, page, bytes: home(core, frame) }
    }

    /// Returns the page's number.
    pub fn page(&self) -> PageNo {
        self.page
    }
}

impl Deref for PageGuardMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as for a reader; WRITER excludes all others.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.core.page_bytes()) }
    }
}

impl DerefMut for PageGuardMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: WRITER is exclusive, and &mut self makes this the only reference. Looks may copy
        // the bytes meanwhile, but do not use the copy.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.core.page_bytes()) }
    }
}

impl Drop for PageGuardMut<'_> {
    #[inline]
    fn drop(&mut self) {
        self.core.words().end_write(self.page);
    }
}

/// Copies the `T` at `offset_bytes` of `page` without a pin; none if the page is absent, has a
/// writer, or has changed meanwhile.
///
/// The copy may race with a writer's plain stores. Strictly that is a data race in the language,
/// which has no atomic copy of bytes yet; as in other sequence locks the copy is a volatile read
/// into untyped bytes, which become a `T` only when they are known not to have raced.
#[inline]
pub(crate) fn look<T: bytemuck::AnyBitPattern>(
    core: &Core,
    page: PageNo,
    offset_bytes: usize,
) -> Option<T> {
    assert!(offset_bytes + size_of::<T>() <= core.page_bytes(), "a value past its page");
    assert!(offset_bytes.is_multiple_of(align_of::<T>()), "a value at {offset_bytes}: unaligned");
    let look = core.words().peek(page)?;
    let from = core.engine().place(look.frame()).wrapping_add(offset_bytes);
    // SAFETY: inside the memory of a frame, which stays mapped as long as the core, aligned as just
    // checked (frames are aligned to 4 KiB, more than any such type needs), and any bytes are a
    // MaybeUninit.
    let copy = unsafe { from.cast::<MaybeUninit<T>>().read_volatile() };
    // SAFETY: nothing wrote between the looks, so it is a copy of initialised bytes, and any such
    // are a valid `T`.
    core.words().is_unchanged(page, look).then(|| unsafe { copy.assume_init() })
}
