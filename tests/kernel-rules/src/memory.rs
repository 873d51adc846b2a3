//! Memory for experiments.
//!
//! Owns: ranges of anonymous memory, and the calls that change them.
//! Invariants: a range lies between two pages that nobody may touch, so it is a mapping of its own
//! and merges with no neighbour. It holds bytes only, which are read and written volatile; nothing
//! in Rust points there, and it is never given back but by a test that does so. All functions are
//! safe in that sense: a range can only be made from one that was mapped here.

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Whole pages of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    start: usize,
    pages: usize,
}

/// Advice that rustix does not have (<linux/mman.h>).
pub mod advice {
    pub use libc::{MADV_DONTNEED, MADV_FREE, MADV_WIPEONFORK};
    /// Marks pages as guards: touching them is a fault of protection.
    pub const MADV_GUARD_INSTALL: i32 = linux_raw_sys::general::MADV_GUARD_INSTALL as i32;
    /// Takes guards away.
    pub const MADV_GUARD_REMOVE: i32 = linux_raw_sys::general::MADV_GUARD_REMOVE as i32;
    pub use libc::MADV_POPULATE_WRITE;
}

impl Range {
    /// New memory that may be read and written, without content.
    ///
    /// # Panics
    /// The kernel has none.
    pub fn anonymous(pages: usize) -> Self {
        let range = Self::reserved(pages);
        range.protect(MprotectFlags::READ | MprotectFlags::WRITE).expect("memory to use");
        range
    }

    /// New addresses that may not be touched.
    ///
    /// # Panics
    /// The kernel has none.
    pub fn reserved(pages: usize) -> Self {
        let bytes = (pages + 2) * PAGE;
        // SAFETY: the kernel chooses the place, so nothing else is there.
        let start = unsafe {
            mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        Self { start: start.expect("addresses") as usize + PAGE, pages }
    }

    /// New memory, filled with a byte.
    pub fn filled(pages: usize, byte: u8) -> Self {
        let range = Self::anonymous(pages);
        range.fill(byte);
        range
    }

    /// Whole pages from an address that a message of the kernel names, in memory of this module.
    pub fn at_known_place(address: usize, pages: usize) -> Self {
        Self { start: address / PAGE * PAGE, pages }
    }

    /// Its first address.
    pub fn start(self) -> usize {
        self.start
    }

    /// Its length in pages.
    pub fn pages(self) -> usize {
        self.pages
    }

    /// Its length in bytes.
    pub fn bytes(self) -> usize {
        self.pages * PAGE
    }

    /// The address behind it.
    pub fn end(self) -> usize {
        self.start + self.bytes()
    }

    /// Its pages from `first` to before `end`.
    ///
    /// # Panics
    /// It has fewer.
    pub fn part(self, first: usize, end: usize) -> Self {
        assert!(first < end && end <= self.pages, "pages {first} to {end} of {}", self.pages);
        Self { start: self.start + first * PAGE, pages: end - first }
    }

    /// One page of it.
    pub fn page(self, index: usize) -> Self {
        self.part(index, index + 1)
    }

    /// Its start as a pointer, for calls.
    pub fn pointer(self) -> *mut c_void {
        self.start as *mut c_void
    }

    /// Writes a byte to the first place of each page.
    pub fn fill(self, byte: u8) {
        for page in 0..self.pages {
            // SAFETY: memory of this module is written by volatile accesses only; see its head.
            unsafe { ((self.start + page * PAGE) as *mut u8).write_volatile(byte) };
        }
    }

    /// Reads the first byte.
    pub fn byte(self) -> u8 {
        // SAFETY: memory of this module is read by volatile accesses only; see its head.
        unsafe { (self.start as *const u8).read_volatile() }
    }

    /// The first byte of each page.
    pub fn bytes_of_pages(self) -> Vec<u8> {
        (0..self.pages).map(|page| self.page(page).byte()).collect()
    }

    /// munmap.
    pub fn unmap(self) -> Result<(), Errno> {
        // SAFETY: only experiments are in memory of this module.
        unsafe { mm::munmap(self.pointer(), self.bytes()) }
    }

    /// mmap of new memory over whatever is here (`MAP_FIXED`).
    pub fn map_over(self) -> Result<(), Errno> {
        self.map(MapFlags::FIXED)
    }

    /// mmap of new memory here if nothing is (`MAP_FIXED_NOREPLACE`).
    pub fn map_where_nothing_is(self) -> Result<(), Errno> {
        self.map(MapFlags::FIXED_NOREPLACE)
    }

    /// mmap of memory that grows down, over whatever is here.
    pub fn map_as_stack(self) -> Result<(), Errno> {
        self.map(MapFlags::FIXED | MapFlags::GROWSDOWN)
    }

    fn map(self, flags: MapFlags) -> Result<(), Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | flags);
        // SAFETY: only experiments are in memory of this module.
        unsafe { mm::mmap_anonymous(self.pointer(), self.bytes(), protection, flags) }.map(|_| ())
    }

    /// mprotect.
    pub fn protect(self, protection: MprotectFlags) -> Result<(), Errno> {
        // SAFETY: only experiments are in memory of this module.
        unsafe { mm::mprotect(self.pointer(), self.bytes(), protection) }
    }

    /// madvise.
    pub fn advise(self, advice: i32) -> Result<(), Errno> {
        // SAFETY: only experiments are in memory of this module.
        match unsafe { libc::madvise(self.pointer(), self.bytes(), advice) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// mlock.
    pub fn lock(self) -> Result<(), Errno> {
        // SAFETY: locking changes no content.
        unsafe { mm::mlock(self.pointer(), self.bytes()) }
    }

    /// mremap to another length, wherever the flags let it go.
    pub fn resize(self, pages: usize, flags: MremapFlags) -> Result<Self, Errno> {
        // SAFETY: only experiments are in memory of this module.
        let start = unsafe { mm::mremap(self.pointer(), self.bytes(), pages * PAGE, flags) }?;
        Ok(Self { start: start as usize, pages })
    }

    /// mremap onto the start of another range (`MREMAP_FIXED`), with as many pages as that has.
    pub fn move_to(self, to: Self) -> Result<(), Errno> {
        self.move_to_with(to, MremapFlags::MAYMOVE)
    }

    /// The same, leaving an empty mapping behind (`MREMAP_DONTUNMAP`).
    pub fn move_out_to(self, to: Self) -> Result<(), Errno> {
        self.move_to_with(to, MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP)
    }

    fn move_to_with(self, to: Self, flags: MremapFlags) -> Result<(), Errno> {
        let (old, new) = (self.bytes(), to.bytes());
        // SAFETY: only experiments are in memory of this module.
        unsafe { mm::mremap_fixed(self.pointer(), old, new, flags, to.pointer()) }.map(|_| ())
    }
}

/// The error of the call through libc that was just made.
///
/// # Panics
/// There is none.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("the kernel's error")
}
