//! Memory that starts as zeros and is resident only where it is used.
//!
//! Owns: anonymous and shared mappings, as slices of plain atomics or as pages of bytes.
//! Invariants: a [`Table`] is a slice of a type for which any bit pattern, including zeros, is
//! valid, and which other processes may change concurrently: atomics only. A [`PageBuf`] has one
//! owner at a time.
//! Not here: who uses which page of an arena (`engine::staging`).

use crate::units::PAGE_SIZE;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a Mapping is an address and a length; all access goes through types that define what may
// be shared. If it were not Send, handler threads could not use tables.
unsafe impl Send for Mapping {}
// SAFETY: as above; &Mapping gives out addresses only.
unsafe impl Sync for Mapping {}

/// Without a commit charge, which Miri does not know.
const UNCHARGED: MapFlags = if cfg!(miri) { MapFlags::empty() } else { MapFlags::NORESERVE };

impl Mapping {
    /// Maps private zeros, reserved without a commit charge.
    ///
    /// # Errors
    /// ENOMEM if the address space, or an address-space limit, is exhausted.
    pub fn private(len_bytes: usize) -> Result<Self, Errno> {
        let len_bytes = len_bytes.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | UNCHARGED,
            )?
        };
        Ok(Self::from_raw(start, len_bytes))
    }

    /// Maps `len_bytes` of `file` from its start, shared with all processes that map it.
    ///
    /// # Errors
    /// The error of mmap: EACCES for a file not open for reading and writing, ENOMEM.
    pub fn shared(file: impl AsFd, len_bytes: usize) -> Result<Self, Errno> {
        let len_bytes = len_bytes.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours;
        // because of other processes' stores only atomics are read from it.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )?
        };
        Ok(Self::from_raw(start, len_bytes))
    }

    fn from_raw(start: *mut c_void, len_bytes: usize) -> Self {
        // Tables and staging memory would only make core dumps larger, of which Miri has none.
        if !cfg!(miri) {
            // SAFETY: advice on our own mapping that changes no content.
            let _ = unsafe { madvise(start, len_bytes, Advice::LinuxDontDump) };
        }
        let start = NonNull::new(start.cast()).expect("mmap never returns null");
        Self { start, len_bytes }
    }

    /// The address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size of the mapping.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: every Table and PageArena keeps its Mapping alive through an Arc, so nothing
        // refers to these addresses any more. Failure would only leak address space.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// Types allowed in a [`Table`].
///
/// # Safety
/// All-zero bytes, and any bytes another process writes with the same atomic accesses, must be a
/// valid value; the type must not own anything (it is never dropped).
pub unsafe trait Shareable: Sync {}

// SAFETY: std's atomics have the layout of their integer; every bit pattern is valid.
unsafe impl Shareable for std::sync::atomic::AtomicU8 {}
// SAFETY: as above.
unsafe impl Shareable for std::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl Shareable for std::sync::atomic::AtomicU64 {}

#[cfg(sim)]
// SAFETY: an integer and the state of a cache line, both std's atomics: zeros are 0 in no cache,
// and any bits are valid.
unsafe impl Shareable for crate::sync::AtomicU32 {}
#[cfg(sim)]
// SAFETY: as above.
unsafe impl Shareable for crate::sync::AtomicU64 {}
#[cfg(sim)]
// SAFETY: as above.
unsafe impl bytemuck::Zeroable for crate::sync::AtomicU32 {}
#[cfg(sim)]
// SAFETY: as above.
unsafe impl bytemuck::Zeroable for crate::sync::AtomicU64 {}

/// A slice of atomics in a mapping or, for tests and models, on the heap. Clones share it.
#[derive(Debug)]
pub struct Table<T> {
    owner: Owner<T>,
    offset_bytes: usize,
    len: usize,
}

#[derive(Debug)]
enum Owner<T> {
    Mapped(Arc<Mapping>, PhantomData<T>),
    Heap(Arc<[T]>),
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        let owner = match &self.owner {
            Owner::Mapped(mapping, _) => Owner::Mapped(mapping.clone(), PhantomData),
            Owner::Heap(items) => Owner::Heap(items.clone()),
        };
        Self { owner, ..*self }
    }
}

impl<T> Table<T> {
    /// Makes a table on the heap, one item per call of `make`. Model checkers' atomics exist only
    /// here.
    pub fn on_heap(len: usize, make: impl FnMut() -> T) -> Self {
        let items: Arc<[T]> = std::iter::repeat_with(make).take(len).collect();
        Self { owner: Owner::Heap(items), offset_bytes: 0, len }
    }
}

impl<T: Shareable> Table<T> {
    /// Maps `len` zeros in private memory; resident only where touched.
    ///
    /// # Errors
    /// ENOMEM, as [`Mapping::private`].
    pub fn private(len: usize) -> Result<Self, Errno> {
        let mapping = Arc::new(Mapping::private(len * size_of::<T>())?);
        Ok(Self::within(&mapping, 0, len))
    }

    /// The `len` items at `offset_bytes` of `mapping`.
    ///
    /// # Panics
    /// If they do not fit or are not aligned: the layout is ours, so that is a bug.
    pub fn within(mapping: &Arc<Mapping>, offset_bytes: usize, len: usize) -> Self {
        assert!(offset_bytes.is_multiple_of(align_of::<T>()), "table at {offset_bytes}: unaligned");
        assert!(offset_bytes + len * size_of::<T>() <= mapping.len_bytes(), "table past mapping");
        Self { owner: Owner::Mapped(mapping.clone(), PhantomData), offset_bytes, len }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.owner {
            // SAFETY: `within` checked bounds and alignment, T is Shareable (only its constructors
            // make this variant), and the Arc keeps the mapping as long as the slice. Without
            // Shareable another process could store an invalid value here.
            Owner::Mapped(mapping, _) => unsafe {
                let first = mapping.start().add(self.offset_bytes).cast::<T>();
                std::slice::from_raw_parts(first, self.len)
            },
            Owner::Heap(items) => items,
        }
    }
}

/// One page of memory with one owner, aligned for O_DIRECT.
///
/// It is a plain handle: dropping it frees nothing. Its memory belongs to an arena, and the code
/// that took the page from the arena returns it there.
#[derive(Debug)]
pub struct PageBuf(NonNull<u8>);

// SAFETY: a PageBuf is the only handle to its page (contract of `from_raw`), so moving it to
// another thread moves the page with it.
unsafe impl Send for PageBuf {}
// SAFETY: & gives & [u8] only.
unsafe impl Sync for PageBuf {}

impl PageBuf {
    /// Makes a handle of the page at `start`.
    ///
    /// # Safety
    /// `start` is page aligned, [`PAGE_SIZE`] bytes from it are readable and writable as long as
    /// the handle lives, and are not *written* otherwise meanwhile. If broken, a device could write
    /// into a page that has another owner.
    pub unsafe fn from_raw(start: *mut u8) -> Self {
        debug_assert!(start.addr().is_multiple_of(PAGE_SIZE));
        Self(NonNull::new(start).expect("a page is not at null"))
    }

    /// The page's address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: contract of `from_raw`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), PAGE_SIZE) }
    }
}

impl std::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: contract of `from_raw`; &mut self is the only handle.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), PAGE_SIZE) }
    }
}

/// Adjacent pages of a mapping.
#[derive(Debug)]
pub struct PageArena {
    mapping: Arc<Mapping>,
    offset_bytes: usize,
    pages: usize,
}

impl PageArena {
    /// Reserves `pages` pages; none is resident yet.
    ///
    /// # Errors
    /// ENOMEM, as [`Mapping::private`].
    pub fn new(pages: usize) -> Result<Self, Errno> {
        let mapping = Arc::new(Mapping::private(pages * PAGE_SIZE)?);
        let pages = mapping.len_bytes() / PAGE_SIZE;
        Ok(Self { mapping, offset_bytes: 0, pages })
    }

    /// The `pages` pages at `offset_bytes` of `mapping`.
    ///
    /// # Panics
    /// If they do not fit or are not aligned: the layout is ours, so that is a bug.
    pub fn within(mapping: &Arc<Mapping>, offset_bytes: usize, pages: usize) -> Self {
        assert!(offset_bytes.is_multiple_of(PAGE_SIZE), "pages at {offset_bytes}: unaligned");
        assert!(offset_bytes + pages * PAGE_SIZE <= mapping.len_bytes(), "pages past mapping");
        Self { mapping: mapping.clone(), offset_bytes, pages }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Address of page `index`.
    ///
    /// # Panics
    /// If the arena is smaller.
    pub fn address(&self, index: usize) -> *mut u8 {
        assert!(index < self.pages(), "page {index} of an arena of {}", self.pages());
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.mapping.start().add(self.offset_bytes + index * PAGE_SIZE) }
    }

    /// Gives the memory of `pages` back; they are zeros afterwards. They must not be in use.
    ///
    /// # Panics
    /// If the arena is smaller.
    pub fn drop_pages(&self, pages: std::ops::Range<usize>) {
        let Some(last) = pages.clone().last() else { return };
        let (start, len) = (self.address(pages.start), pages.len() * PAGE_SIZE);
        assert!(last < self.pages(), "page {last} of an arena of {}", self.pages());
        // SAFETY: inside the mapping, as just checked. A failure leaves old content, which the next
        // user of the pages overwrites.
        let _ =
            unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxDontNeed) };
    }

    /// The index of the page of `buffer`; none if it is not in this arena.
    pub fn index_of(&self, buffer: &PageBuf) -> Option<usize> {
        let offset = buffer.as_ptr().addr().checked_sub(self.address(0).addr())?;
        Some(offset / PAGE_SIZE).filter(|&page| page < self.pages())
    }

    /// Makes a handle of page `index`.
    ///
    /// # Safety
    /// The caller keeps the arena alive and ensures that the page is not written otherwise while
    /// the handle is used (see [`PageBuf::from_raw`]).
    pub unsafe fn page(&self, index: usize) -> PageBuf {
        // SAFETY: passed on to the caller.
        unsafe { PageBuf::from_raw(self.address(index)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn tables_start_as_zeros_and_clones_share() {
        let table = Table::<AtomicU32>::private(5000).unwrap();
        let other = table.clone();
        assert!(table.iter().all(|item| item.load(Relaxed) == 0));
        table[4999].store(7, Relaxed);
        assert_eq!(other[4999].load(Relaxed), 7);
    }

    #[test]
    #[should_panic(expected = "past mapping")]
    fn a_table_past_its_mapping_is_a_bug() {
        let mapping = Arc::new(Mapping::private(PAGE_SIZE).unwrap());
        let _ = Table::<AtomicU32>::within(&mapping, 4, PAGE_SIZE / 4);
    }

    #[test]
    fn arena_pages_do_not_overlap() {
        let arena = PageArena::new(2).unwrap();
        // SAFETY: two different pages, each with only this handle.
        let (mut a, mut b) = unsafe { (arena.page(0), arena.page(1)) };
        a.fill(1);
        b.fill(2);
        assert!(a.iter().all(|&x| x == 1));
    }
}
