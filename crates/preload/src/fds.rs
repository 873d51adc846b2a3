//! The pager's file descriptors, kept from programs that close what they did not open.
//!
//! Owns: the list of the pager's descriptors. Daemons, shells and `subprocess` close everything above
//! 2; to them ours look as if they were not open.
//! Invariant: the list changes only while no program thread runs beside us: before the program
//! starts, and in a child right after fork.

use crate::pager::process;
use crate::real::{fail, system_call};
use libc::{c_int, c_uint};
use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::RwLock;

static OURS: RwLock<Vec<i32>> = RwLock::new(Vec::new());

fn ours() -> std::sync::RwLockReadGuard<'static, Vec<i32>> {
    OURS.read().unwrap_or_else(|e| e.into_inner())
}

/// Descriptors below this are the program's: scripts and servers choose numbers of their own there.
const FLOOR: i32 = 300;

/// While it lives, descriptors are made at high numbers only: the low ones are all taken.
pub(crate) struct HighNumbers {
    placeholders: Vec<i32>,
    before: Vec<i32>,
}

impl HighNumbers {
    /// Takes every free number below the floor, or below half of what the process may have.
    pub(crate) fn only() -> Self {
        let before = open_now();
        let mut placeholders = Vec::new();
        let floor = FLOOR.min(number_limit() / 2);
        let mut next = open_anything();
        while let Ok(fd) = next {
            next = rustix::io::fcntl_dupfd_cloexec(&fd, 0);
            placeholders.push(fd.into_raw_fd());
            if placeholders.last().is_some_and(|&fd| fd >= floor) {
                break;
            }
        }
        Self { placeholders, before }
    }
}

impl Drop for HighNumbers {
    fn drop(&mut self) {
        for &fd in &self.placeholders {
            system_call!(libc::SYS_close, fd);
        }
    }
}

fn open_anything() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    open("/proc/self/fd", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn number_limit() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(i32::MAX, |n| n.min(i32::MAX as u64) as i32)
}

/// Descriptors open in this process now.
fn open_now() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut fds: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The directory's own descriptor is in the list, and closed only now.
    fds.retain(|&fd| is_open(fd));
    fds.sort_unstable();
    fds
}

fn is_open(fd: i32) -> bool {
    // SAFETY: asks for flags.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Protects every descriptor made since `high`.
pub(crate) fn protect(high: HighNumbers) {
    let before = high.before.clone();
    drop(high);
    let mut ours = OURS.write().unwrap_or_else(|e| e.into_inner());
    ours.extend(open_now().into_iter().filter(|fd| before.binary_search(fd).is_err()));
    ours.sort_unstable();
    ours.dedup();
}

/// In a forked child: closes the parent's rings, event and userfault descriptors and its memory
/// file, which are of no use here.
pub(crate) fn close_inherited() {
    let mut ours = OURS.write().unwrap_or_else(|e| e.into_inner());
    ours.retain(|&fd| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let link = link.to_string_lossy();
        let useless = link.starts_with("anon_inode:[") || link.starts_with("/proc/");
        if useless {
            system_call!(libc::SYS_close, fd);
        }
        !useless
    });
}

fn is_ours(fd: c_int) -> bool {
    process().is_some() && ours().binary_search(&fd).is_ok()
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) { fail(libc::EBADF) } else { system_call!(libc::SYS_close, fd) as c_int }
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_ours(new) {
        return fail(libc::EBUSY);
    }
    if old == new {
        // SAFETY: asks for flags; fails as dup2 would for a bad descriptor.
        return if unsafe { libc::fcntl(old, libc::F_GETFD) } < 0 { -1 } else { new };
    }
    system_call!(libc::SYS_dup3, old, new, 0) as c_int
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_ours(new) {
        return fail(libc::EBUSY);
    }
    system_call!(libc::SYS_dup3, old, new, flags) as c_int
}

/// close_range(2).
#[unsafe(no_mangle)]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut next = first;
    if process().is_some() {
        for fd in ours().iter().map(|&fd| fd as c_uint).filter(|fd| (first..=last).contains(fd)) {
            if fd > next && kernel_close_range(next, fd - 1, flags) != 0 {
                return -1;
            }
            next = fd + 1;
        }
    }
    if next > last && next != first { 0 } else { kernel_close_range(next, last, flags) }
}

fn kernel_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    system_call!(libc::SYS_close_range, first, last, flags) as c_int
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}
