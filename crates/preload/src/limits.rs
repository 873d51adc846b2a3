//! Resource limits that would hit the pager instead of the program.
//!
//! Owns: the translation. What the pager maps counts as address space and as data, so limits on
//! those are raised by its size when set and lowered by it when read. A limit on file sizes would
//! stop writes to swap, so it is remembered and reported, but not enforced.

use crate::pager::{process, taken};
use crate::real::system_call;
use libc::{__rlimit_resource_t, c_int, pid_t, rlimit, rlimit64};
use overspill_base::PAGE_SIZE;
use std::sync::Mutex;

/// The size of a process, in the two ways that limits count.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sizes {
    address_space_bytes: u64,
    data_bytes: u64,
}

impl Sizes {
    /// Returns this process's sizes; zeros if /proc cannot tell.
    pub(crate) fn now() -> Self {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let field = |n| statm.split(' ').nth(n)?.parse().ok();
        let bytes = |n| field(n).unwrap_or(0) * PAGE_SIZE as u64;
        Self { address_space_bytes: bytes(0), data_bytes: bytes(5) }
    }

    /// Returns the growth since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            address_space_bytes: self
                .address_space_bytes
                .saturating_sub(before.address_space_bytes),
            data_bytes: self.data_bytes.saturating_sub(before.data_bytes),
        }
    }

    fn counted_by(self, resource: __rlimit_resource_t) -> u64 {
        if resource == libc::RLIMIT_AS { self.address_space_bytes } else { self.data_bytes }
    }
}

/// The file size limit that the program has set.
static FILE_SIZE: Mutex<Option<rlimit64>> = Mutex::new(None);

fn kernel_prlimit(
    pid: pid_t,
    resource: __rlimit_resource_t,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    system_call!(libc::SYS_prlimit64, pid, resource, new, old) as c_int
}

fn shift(limit: rlimit64, by: impl Fn(u64) -> u64) -> rlimit64 {
    let shifted = |value| if value == libc::RLIM64_INFINITY { value } else { by(value) };
    rlimit64 { rlim_cur: shifted(limit.rlim_cur), rlim_max: shifted(limit.rlim_max) }
}

/// prlimit(2) as the program sees it.
///
/// # Safety
/// As the system call's.
unsafe fn translated(
    pid: pid_t,
    resource: __rlimit_resource_t,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    let own = process().is_some() && (pid == 0 || pid == rustix::process::getpid().as_raw_pid());
    if !own {
        return kernel_prlimit(pid, resource, new, old);
    }
    match resource {
        // SAFETY: passed on.
        libc::RLIMIT_AS | libc::RLIMIT_DATA => unsafe { with_room(resource, new, old) },
        // SAFETY: passed on.
        libc::RLIMIT_FSIZE => unsafe { remembered(new, old) },
        _ => kernel_prlimit(pid, resource, new, old),
    }
}

unsafe fn with_room(
    resource: __rlimit_resource_t,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    let ours = taken().counted_by(resource);
    // SAFETY: contract of prlimit: null or readable.
    let wider =
        unsafe { new.as_ref() }.map(|&limit| shift(limit, |value| value.saturating_add(ours)));
    let wider = wider.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let result = kernel_prlimit(0, resource, wider, old);
    if result == 0 {
        // SAFETY: contract of prlimit: null or writable, and written since the call succeeded.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = shift(*old, |value| value.saturating_sub(ours));
        }
    }
    result
}

unsafe fn remembered(new: *const rlimit64, old: *mut rlimit64) -> c_int {
    let mut believed = FILE_SIZE.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: contract of prlimit: null or writable.
    if let Some(old) = unsafe { old.as_mut() } {
        match *believed {
            Some(limit) => *old = limit,
            None if kernel_prlimit(0, libc::RLIMIT_FSIZE, std::ptr::null(), old) != 0 => return -1,
            None => {}
        }
    }
    // SAFETY: contract of prlimit: null or readable.
    if let Some(&new) = unsafe { new.as_ref() } {
        *believed = Some(new);
    }
    0
}

/// prlimit64(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: pid_t,
    resource: __rlimit_resource_t,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: passed on.
    unsafe { translated(pid, resource, new, old) }
}

/// prlimit(2): the same as prlimit64 on 64-bit machines.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: pid_t,
    resource: __rlimit_resource_t,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: passed on; the two structures are the same.
    unsafe { translated(pid, resource, new.cast(), old.cast()) }
}

/// setrlimit(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: __rlimit_resource_t, new: *const rlimit) -> c_int {
    // SAFETY: passed on.
    unsafe { translated(0, resource, new.cast(), std::ptr::null_mut()) }
}

/// setrlimit64(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: __rlimit_resource_t, new: *const rlimit64) -> c_int {
    // SAFETY: passed on.
    unsafe { translated(0, resource, new, std::ptr::null_mut()) }
}

/// getrlimit(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: __rlimit_resource_t, old: *mut rlimit) -> c_int {
    // SAFETY: passed on.
    unsafe { translated(0, resource, std::ptr::null(), old.cast()) }
}

/// getrlimit64(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: __rlimit_resource_t, old: *mut rlimit64) -> c_int {
    // SAFETY: passed on.
    unsafe { translated(0, resource, std::ptr::null(), old) }
}
