//! The pager's own heap: libc's allocator, by names that are not interposed.
//!
//! Invariant: its memory comes from `brk` and from libc's own mappings, never from the managed
//! range.

use libc::{c_int, c_void};
use std::alloc::{GlobalAlloc, Layout};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    pub(crate) fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_free(block: *mut c_void);

    fn overspill_pager_depth() -> c_int;
    fn overspill_pager_enter();
    fn overspill_pager_leave();
}

/// Alignment of every malloc.
const MALLOC_ALIGN: usize = 16;

/// Rust's allocations in this object.
pub(crate) struct LibcHeap;

// SAFETY: libc's allocator meets the contract; its blocks are returned only to it.
unsafe impl GlobalAlloc for LibcHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size is allowed; alignments of a Layout are powers of two.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                __libc_malloc(layout.size()).cast()
            } else {
                __libc_memalign(layout.align(), layout.size()).cast()
            }
        }
    }

    /// Memory that comes from the kernel is not touched: tables take what is used of them.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above; `alloc` is passed the same layout.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                return __libc_calloc(1, layout.size()).cast();
            }
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller got `block` from `alloc`.
        unsafe { __libc_free(block.cast()) }
    }
}

/// True while this thread works for the pager: it then allocates from libc and maps from the
/// kernel.
#[inline]
pub(crate) fn in_pager() -> bool {
    // SAFETY: reads a variable of this thread.
    unsafe { overspill_pager_depth() > 0 }
}

/// Makes this thread the pager's until dropped.
pub(crate) struct PagerScope(());

impl PagerScope {
    pub(crate) fn enter() -> Self {
        // SAFETY: changes a variable of this thread.
        unsafe { overspill_pager_enter() };
        Self(())
    }

    /// Makes this thread the pager's for good.
    pub(crate) fn forever() {
        std::mem::forget(Self::enter());
    }
}

impl Drop for PagerScope {
    fn drop(&mut self) {
        // SAFETY: changes a variable of this thread, which `enter` has raised.
        unsafe { overspill_pager_leave() };
    }
}
