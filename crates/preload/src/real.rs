//! What is behind the interposed functions: the kernel, and libc's next definition.

use libc::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Makes a system call that takes up to six words and sets errno as libc does.
macro_rules! system_call {
    ($number:expr $(, $arg:expr)*) => {
        // SAFETY: the interposed function's own contract with its caller, passed on unchanged.
        unsafe { libc::syscall($number $(, $arg)*) }
    };
}
pub(crate) use system_call;

/// A function of the next object that defines it, looked up once.
pub(crate) struct Next {
    name: &'static std::ffi::CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static std::ffi::CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the address; see [`next`].
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            return found;
        }
        let found = next(self.name);
        self.found.store(found, Relaxed);
        found
    }
}

/// Returns the next object's function of a name. Aborts if there is none: libc lacks a function the
/// program was linked against.
pub(crate) fn next(name: &std::ffi::CStr) -> *mut c_void {
    let _scope = crate::heap::PagerScope::enter();
    // SAFETY: a terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
    if found.is_null() {
        crate::pager::say("this libc lacks a function Overspill builds on");
        std::process::abort();
    }
    found
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns an error in the form that system calls report it.
pub(crate) fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// The kernel's mmap.
pub(crate) fn kernel_mmap(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let result: c_long = system_call!(libc::SYS_mmap, address, len, prot, flags, fd, offset);
    result as *mut c_void
}

/// The kernel's mremap.
pub(crate) fn kernel_mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> *mut c_void {
    system_call!(libc::SYS_mremap, old, old_len, new_len, flags, new) as *mut c_void
}
