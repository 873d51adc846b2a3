//! The dynamic linker.
//!
//! Owns: its functions for thread-local storage, and where its code is.
//! Invariants: what it allocates comes from libc's heap. It keeps there what describes opened
//! libraries, and reads it when managed memory may not be touched: in a forked child that cannot
//! page yet, where a page that is out would read as zeros, and on threads that hold the pager's
//! locks.
//! Built on: `_dl_allocate_tls`, which serves libc's own threads too. `docs/assumptions.md` has it.
//! Rejected: keeping those pages in memory during a fork; there is no list of them.

use libc::{c_int, c_void, dl_phdr_info};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

type Allocate = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Deallocate = unsafe extern "C" fn(*mut c_void, bool);

/// Functions for thread-local storage.
#[derive(Clone, Copy)]
pub(crate) struct Linker {
    pub(crate) allocate: Allocate,
    pub(crate) deallocate: Deallocate,
}

static LINKER: OnceLock<Option<Linker>> = OnceLock::new();

/// Where its code is, for [`calls_from`].
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Looks everything up; called before the program's code runs.
pub(crate) fn prepare() {
    LINKER.get_or_init(|| {
        let allocate = find(c"_dl_allocate_tls")?;
        let deallocate = find(c"_dl_deallocate_tls")?;
        let code = object_around(allocate.addr());
        LEN.store(code.len(), Relaxed);
        START.store(code.start, Relaxed);
        // SAFETY: glibc's functions of these names and types, since 2.1.
        unsafe {
            Some(Linker {
                allocate: std::mem::transmute::<*mut c_void, Allocate>(allocate),
                deallocate: std::mem::transmute::<*mut c_void, Deallocate>(deallocate),
            })
        }
    });
}

/// Returns its functions; none in a libc that lacks them.
pub(crate) fn get() -> Option<Linker> {
    LINKER.get().copied().flatten()
}

/// Returns true if a call that returns to `caller` comes from its code.
#[inline]
pub(crate) fn calls_from(caller: usize) -> bool {
    caller.wrapping_sub(START.load(Relaxed)) < LEN.load(Relaxed)
}

fn find(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: a terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns the range of the loaded object that contains `address`.
fn object_around(address: usize) -> Range<usize> {
    let mut search = (address, 0..0);
    // SAFETY: calls `look` with this thread's `search` for each object, until it returns 1.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: what `object_around` passes, and the description of an object with its headers.
    let (search, info, headers) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (&mut *search.cast::<(usize, Range<usize>)>(), info, headers)
    };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let ends = loaded.map(|header| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        (start, start + header.p_memsz as usize)
    });
    let object = ends.reduce(|(low, high), (start, end)| (low.min(start), high.max(end)));
    match object {
        Some((start, end)) if (start..end).contains(&search.0) => {
            search.1 = start..end;
            1
        }
        _ => 0,
    }
}
