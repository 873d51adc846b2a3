//! dlopen, so that a plugin gets the same malloc as the rest of the program.
//!
//! Owns: removing RTLD_DEEPBIND from what libc is asked for. An object opened with it looks for
//! symbols in itself and its libraries first: it would find libc's `free` and pass managed blocks
//! to it.
//! Invariants: these functions leave no stack frame and keep the return address, by which libc
//! finds the caller, whose RUNPATH and namespace count. Without a pager the flags stay unchanged.
//! Not here: a namespace of its own (`dlmopen`). It has its own libc, which does not know this
//! object: what is allocated there is outside the limit, and a fork made there bypasses the
//! handlers.
//! Rejected: keeping the flag and changing the plugin's relocations. What the plugin opens later
//! would need the same.

use crate::pager::any_process;
use crate::real::Next;
use libc::{c_char, c_int, c_long, c_void};
use std::arch::naked_asm;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

/// The bits of a mode that are passed on to libc.
static MODE_MASK: AtomicI32 = AtomicI32::new(-1);

static DLOPEN: AtomicUsize = AtomicUsize::new(0);
static DLMOPEN: AtomicUsize = AtomicUsize::new(0);

/// Sets the mask if the pager runs.
pub(crate) fn prepare() {
    if any_process().is_some() {
        MODE_MASK.store(!libc::RTLD_DEEPBIND, Relaxed);
    }
}

extern "C" fn find_dlopen() {
    static NEXT: Next = Next::new(c"dlopen");
    DLOPEN.store(NEXT.address().addr(), Relaxed);
}

extern "C" fn find_dlmopen() {
    static NEXT: Next = Next::new(c"dlmopen");
    DLMOPEN.store(NEXT.address().addr(), Relaxed);
}

/// Looks up libc's function on the first call, clears the flag in its `$mode`, and jumps there.
#[cfg(target_arch = "x86_64")]
macro_rules! without_deepbind {
    ($mode:literal, $next:ident, $find:ident) => {
        naked_asm!(
            "endbr64",
            "2: mov rax, [rip + {next}]",
            "test rax, rax",
            "jz 3f",
            concat!("and ", $mode, ", [rip + {mask}]"),
            "jmp rax",
            // Three words and the return address: the stack is aligned for the call.
            "3: push rdi",
            "push rsi",
            "push rdx",
            "call {find}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp 2b",
            next = sym $next,
            mask = sym MODE_MASK,
            find = sym $find,
        )
    };
}

/// As above.
#[cfg(target_arch = "aarch64")]
macro_rules! without_deepbind {
    ($mode:literal, $next:ident, $find:ident) => {
        naked_asm!(
            // bti c
            "hint #34",
            "2: adrp x16, {next}",
            "ldr x16, [x16, :lo12:{next}]",
            "cbz x16, 3f",
            "adrp x17, {mask}",
            "ldr w17, [x17, :lo12:{mask}]",
            concat!("and ", $mode, ", ", $mode, ", w17"),
            "br x16",
            "3: stp x29, x30, [sp, #-48]!",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "bl {find}",
            "ldr x2, [sp, #32]",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #48",
            "b 2b",
            next = sym $next,
            mask = sym MODE_MASK,
            find = sym $find,
        )
    };
}

/// dlopen(3).
///
/// # Safety
/// As libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    without_deepbind!("esi", DLOPEN, find_dlopen)
}

/// dlmopen(3).
///
/// # Safety
/// As libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(
    namespace: c_long,
    file: *const c_char,
    mode: c_int,
) -> *mut c_void {
    without_deepbind!("edx", DLMOPEN, find_dlmopen)
}

/// dlopen(3).
///
/// # Safety
/// As libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    without_deepbind!("w1", DLOPEN, find_dlopen)
}

/// dlmopen(3).
///
/// # Safety
/// As libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(
    namespace: c_long,
    file: *const c_char,
    mode: c_int,
) -> *mut c_void {
    without_deepbind!("w2", DLMOPEN, find_dlmopen)
}
