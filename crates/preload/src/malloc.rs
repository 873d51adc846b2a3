//! The malloc family.
//!
//! Owns: the choice between mimalloc, whose memory is managed because it is mapped through our
//! `mmap`, and libc's heap, for the pager and the dynamic linker ([`crate::linker`]).
//! Invariant: a block is freed where its address says it came from.
//! Not here: any allocation algorithm; queries ([`crate::malloc_info`]).

use crate::heap::{__libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc};
use crate::linker;
use crate::pager::{is_managed, process};
use crate::real::{Next, set_errno};
use libc::{c_int, c_void};
use libmimalloc_sys as mi;
use overspill_base::PAGE_SIZE;
use std::arch::naked_asm;

/// Lets the allocator inspect the machine now: later the program may have filtered these calls.
pub(crate) fn prepare() {
    if !use_libc() {
        // SAFETY: allocates and frees a block, and sets an option to a number. The number of NUMA
        // nodes would be read from /sys.
        unsafe {
            mi::mi_option_set(mi::mi_option_use_numa_nodes, 1);
            mi::mi_free(mi::mi_malloc(1));
        }
    }
}

#[inline]
fn use_libc() -> bool {
    process().is_none()
}

/// mimalloc aligns the smallest blocks to 8; libc aligns every block to 16, as the ABI requires.
const LEAST_BYTES: usize = 16;

fn or_enomem(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block
}

/// A function that goes on in another one, with its return address as one more argument.
#[cfg(target_arch = "x86_64")]
macro_rules! with_caller {
    ($argument:literal, $_aarch64:literal, $body:ident) => {
        naked_asm!("endbr64", concat!("mov ", $argument, ", [rsp]"), "jmp {body}", body = sym $body)
    };
}

/// As above; the first instruction is `bti c`.
#[cfg(target_arch = "aarch64")]
macro_rules! with_caller {
    ($_x86_64:literal, $argument:literal, $body:ident) => {
        naked_asm!("hint #34", concat!("mov ", $argument, ", x30"), "b {body}", body = sym $body)
    };
}

/// malloc(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    with_caller!("rsi", "x1", malloc_for)
}

extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    // SAFETY: both allocators take any size.
    unsafe {
        if use_libc() || linker::calls_from(caller) {
            __libc_malloc(size)
        } else {
            or_enomem(mi::mi_malloc(size.max(LEAST_BYTES)))
        }
    }
}

/// calloc(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    with_caller!("rdx", "x2", calloc_for)
}

extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: both allocators check the product.
    unsafe {
        if use_libc() || linker::calls_from(caller) {
            return __libc_calloc(count, size);
        }
        match count.checked_mul(size) {
            Some(bytes) => or_enomem(mi::mi_zalloc(bytes.max(LEAST_BYTES))),
            None => or_enomem(std::ptr::null_mut()),
        }
    }
}

/// free(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the address tells which allocator the block is from.
    unsafe { if is_managed(block.addr()) { mi::mi_free(block) } else { __libc_free(block) } }
}

/// free_sized(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: passed on.
    unsafe { free(block) }
}

/// free_aligned_sized(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: passed on.
    unsafe { free(block) }
}

/// realloc(3).
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    with_caller!("rdx", "x2", realloc_for)
}

/// A block stays with its allocator.
///
/// # Safety
/// As libc's realloc.
unsafe extern "C" fn realloc_for(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if block.is_null() {
        return malloc_for(size, caller);
    }
    // SAFETY: the address tells which allocator the block is from.
    unsafe {
        if !is_managed(block.addr()) {
            return __libc_realloc(block, size);
        }
        if size == 0 {
            mi::mi_free(block);
            return std::ptr::null_mut();
        }
        or_enomem(mi::mi_realloc(block, size.max(LEAST_BYTES)))
    }
}

/// reallocarray(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, n: usize, size: usize) -> *mut c_void {
    match n.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => or_enomem(std::ptr::null_mut()),
    }
}

/// memalign(3), which rounds any alignment up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if use_libc() {
        // SAFETY: libc checks the alignment.
        return unsafe { __libc_memalign(align, size) };
    }
    let Some(align) = align.max(LEAST_BYTES).checked_next_power_of_two() else {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    };
    // SAFETY: a power of two.
    unsafe { or_enomem(mi::mi_malloc_aligned(size.max(LEAST_BYTES), align)) }
}

/// aligned_alloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    memalign(align, size)
}

/// posix_memalign(3).
///
/// # Safety
/// `out` is writable, as libc requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let block = memalign(align, size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: contract.
    unsafe { *out = block };
    0
}

/// valloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE_SIZE, size)
}

/// pvalloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE_SIZE) {
        Some(size) => memalign(PAGE_SIZE, size.max(PAGE_SIZE)),
        None => or_enomem(std::ptr::null_mut()),
    }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    static NEXT: Next = Next::new(c"malloc_usable_size");
    if is_managed(block.addr()) {
        // SAFETY: a block of mimalloc's, by its address.
        return unsafe { mi::mi_usable_size(block) };
    }
    // SAFETY: libc's function of this name and type.
    unsafe {
        let next: unsafe extern "C" fn(*mut c_void) -> usize = std::mem::transmute(NEXT.address());
        next(block)
    }
}
