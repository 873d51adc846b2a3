//! Queries and parameters of the allocator: mallinfo, mallopt, malloc_trim and the like.
//!
//! Owns: answers about managed memory; libc's own functions would report the pager's heap.
//! Invariants: sizes are what mimalloc has mapped, used or free, which is all it counts. Parameters
//! of libc's allocator are accepted and ignored: they would change the pager's heap.
//! Not here: allocation ([`crate::malloc`]).

use crate::heap::PagerScope;
use crate::pager::process;
use crate::real::{Next, fail};
use libc::{c_char, c_int, c_void};
use libmimalloc_sys as mi;

/// struct mallinfo2; with `T = c_int`, struct mallinfo.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MallInfo<T> {
    arena: T,
    ordblks: T,
    smblks: T,
    hblks: T,
    hblkhd: T,
    usmblks: T,
    fsmblks: T,
    uordblks: T,
    fordblks: T,
    keepcost: T,
}

/// Returns the bytes that mimalloc has mapped.
fn held_bytes() -> usize {
    let mut held = 0;
    let none = std::ptr::null_mut();
    // SAFETY: every pointer is null or to a variable of the right type.
    unsafe { mi::mi_process_info(none, none, none, none, none, &raw mut held, none, none) };
    held
}

/// mallinfo2(3).
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> MallInfo<usize> {
    static NEXT: Next = Next::new(c"mallinfo2");
    if process().is_none() {
        // SAFETY: libc's function of this name and type.
        let next: extern "C" fn() -> MallInfo<usize> =
            unsafe { std::mem::transmute(NEXT.address()) };
        return next();
    }
    let held = held_bytes();
    MallInfo { arena: held, ordblks: 1, uordblks: held, ..MallInfo::default() }
}

/// mallinfo(3), whose numbers end at 2 GiB.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> MallInfo<c_int> {
    static NEXT: Next = Next::new(c"mallinfo");
    if process().is_none() {
        // SAFETY: libc's function of this name and type.
        let next: extern "C" fn() -> MallInfo<c_int> =
            unsafe { std::mem::transmute(NEXT.address()) };
        return next();
    }
    let held = c_int::try_from(held_bytes()).unwrap_or(c_int::MAX);
    MallInfo { arena: held, ordblks: 1, uordblks: held, ..MallInfo::default() }
}

/// mallopt(3).
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    static NEXT: Next = Next::new(c"mallopt");
    if process().is_some() {
        return 1;
    }
    // SAFETY: libc's function of this name and type.
    let next: extern "C" fn(c_int, c_int) -> c_int = unsafe { std::mem::transmute(NEXT.address()) };
    next(parameter, value)
}

/// malloc_trim(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(keep: usize) -> c_int {
    static NEXT: Next = Next::new(c"malloc_trim");
    if process().is_none() {
        // SAFETY: libc's function of this name and type.
        let next: extern "C" fn(usize) -> c_int = unsafe { std::mem::transmute(NEXT.address()) };
        return next(keep);
    }
    let before = held_bytes();
    // SAFETY: may be called on any thread.
    unsafe { mi::mi_collect(true) };
    c_int::from(held_bytes() < before)
}

/// malloc_stats(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    static NEXT: Next = Next::new(c"malloc_stats");
    if process().is_none() {
        // SAFETY: libc's function of this name and type.
        let next: extern "C" fn() = unsafe { std::mem::transmute(NEXT.address()) };
        return next();
    }
    let held = held_bytes();
    let _scope = PagerScope::enter();
    let text = format!("Arena 0:\nsystem bytes     = {held:10}\nin use bytes     = {held:10}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
}

unsafe extern "C" {
    fn fputs(text: *const c_char, stream: *mut c_void) -> c_int;
}

/// malloc_info(3).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut c_void) -> c_int {
    static NEXT: Next = Next::new(c"malloc_info");
    if process().is_none() {
        // SAFETY: libc's function of this name and type, called with what the caller gave.
        return unsafe {
            let next: unsafe extern "C" fn(c_int, *mut c_void) -> c_int =
                std::mem::transmute(NEXT.address());
            next(options, stream)
        };
    }
    if options != 0 {
        return fail(libc::EINVAL);
    }
    let held = held_bytes();
    let text = {
        let _scope = PagerScope::enter();
        let sizes = format!("<system type=\"current\" size=\"{held}\"/>\n");
        format!("<malloc version=\"1\">\n<heap nr=\"0\">\n{sizes}</heap>\n{sizes}</malloc>\n\0")
    };
    // SAFETY: a terminated text, and the stream is the caller's.
    let done = unsafe { fputs(text.as_ptr().cast(), stream) };
    if done < 0 { -1 } else { 0 }
}
