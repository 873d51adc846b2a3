//! Resource limits that would hit the pager instead of the program.
//!
//! Owns: the translation. What the pager maps counts as address space and as data, so limits on
//! those are raised by its size when set and lowered by it when read. The kernel enforces them for
//! its own mappings, and the pager for managed memory, each by itself. A limit on file sizes is
//! passed on but for its hard value, which is remembered and reported: the pager of a forked child
//! writes to swap, and could not raise it again.

use crate::pager::{Process, process, taken};
use crate::real::{fail, system_call};
use libc::{__rlimit_resource_t, c_int, pid_t, rlimit, rlimit64};
use overspill::session::RESERVE;
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

/// The hard limit on file sizes that the program has set.
static FILE_SIZE_MAX: Mutex<u64> = Mutex::new(libc::RLIM64_INFINITY);

const NONE: rlimit64 =
    rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };

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

/// Enforces for managed memory the limits that this process was started with. If there was less
/// address space than the pager wants, the reservation is the limit.
pub(crate) fn inherit(process: &'static Process) {
    let space = process.memory().space();
    if space.size_of(space.pages()) == RESERVE {
        enforce(process);
    }
}

/// Enforces the current limits for managed memory.
fn enforce(process: &'static Process) {
    let resources = [libc::RLIMIT_AS, libc::RLIMIT_DATA];
    let bytes = resources.into_iter().filter_map(own_limit).min().unwrap_or(u64::MAX);
    process.call(move |memory| memory.limit(bytes as usize / PAGE_SIZE));
}

/// Returns the program's share of a limit on the kernel's mappings, if there is one.
fn own_limit(resource: __rlimit_resource_t) -> Option<u64> {
    let mut limit = NONE;
    kernel_prlimit(0, resource, std::ptr::null(), &raw mut limit);
    let ours = taken().counted_by(resource);
    (limit.rlim_cur != libc::RLIM64_INFINITY).then(|| limit.rlim_cur.saturating_sub(ours))
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
    let own = pid == 0 || pid == rustix::process::getpid().as_raw_pid();
    let Some(process) = process().filter(|_| own) else {
        return kernel_prlimit(pid, resource, new, old);
    };
    match resource {
        // SAFETY: passed on.
        libc::RLIMIT_AS | libc::RLIMIT_DATA => unsafe { with_room(process, resource, new, old) },
        // SAFETY: passed on.
        libc::RLIMIT_FSIZE => unsafe { file_size(new, old) },
        _ => kernel_prlimit(pid, resource, new, old),
    }
}

unsafe fn with_room(
    process: &'static Process,
    resource: __rlimit_resource_t,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    let ours = taken().counted_by(resource);
    // SAFETY: contract of prlimit: null or readable.
    let wider =
        unsafe { new.as_ref() }.map(|&limit| shift(limit, |value| value.saturating_add(ours)));
    let given = wider.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let result = kernel_prlimit(0, resource, given, old);
    if result == 0 {
        // SAFETY: contract of prlimit: null or writable, and written since the call succeeded.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = shift(*old, |value| value.saturating_sub(ours));
        }
        if wider.is_some() {
            enforce(process);
        }
    }
    result
}

unsafe fn file_size(new: *const rlimit64, old: *mut rlimit64) -> c_int {
    let mut most = FILE_SIZE_MAX.lock().unwrap_or_else(|e| e.into_inner());
    let mut now = NONE;
    if kernel_prlimit(0, libc::RLIMIT_FSIZE, std::ptr::null(), &raw mut now) != 0 {
        return -1;
    }
    let believed = rlimit64 { rlim_max: now.rlim_max.min(*most), ..now };
    // SAFETY: contract of prlimit: null or readable.
    if let Some(&new) = unsafe { new.as_ref() } {
        if new.rlim_cur > new.rlim_max {
            return fail(libc::EINVAL);
        }
        if new.rlim_max > believed.rlim_max && !rustix::process::geteuid().is_root() {
            return fail(libc::EPERM);
        }
        let given = rlimit64 { rlim_max: new.rlim_max.max(now.rlim_max), ..new };
        if kernel_prlimit(0, libc::RLIMIT_FSIZE, &raw const given, std::ptr::null_mut()) != 0 {
            return -1;
        }
        *most = new.rlim_max;
    }
    // SAFETY: contract of prlimit: null or writable.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = believed;
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
