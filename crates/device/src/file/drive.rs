//! Chooses how a file is best read and written on this machine.
//!
//! Owns: the choice of a queue, and the line that tells the user about it.
//! Invariants: asynchronous I/O is used only where it is really asynchronous, that is with O_DIRECT
//! on a disk: 11-16 µs for a page with 32 in flight, against 53-58 µs by positioned I/O. In memory
//! the copy is the work, and the ring only adds to it (2.8 against 1.9 µs a page on tmpfs); it
//! passes buffered writes to a kernel thread (4-6 against 1.9 µs). It does the same with requests
//! to zram, which cannot promise not to block: 60-80 against 2-4 µs for one page at a time, 7-10
//! against 5-8 with 32 in flight (8192 pages each, three rounds, two virtual CPUs, Linux 6.18).
//! Not here: what is read and written ([`super::transfer`]).

use super::positioned::Positioned;
use super::transfer::Target;
use super::uring::{self, UringQueue};
use super::{Features, facts};
use crate::IoQueue;
use crate::error::DeviceError;
use crate::synchronous::SynchronousQueue;
use overspill_base::PAGE_SIZE;
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The kind of queue that a device's threads use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// A ring per queue.
    Uring,
    /// System calls that return when the transfer is done.
    Positioned,
}

/// Chooses the driver, switches `fd` to O_DIRECT where that helps, and returns a line about it.
///
/// `synchronous` storage is a memory-backed block device, unless it is memory itself.
pub(super) fn choose(fd: &OwnedFd, synchronous: bool, features: Features) -> (Driver, String) {
    if facts::is_in_memory(fd) {
        return (Driver::Positioned, "in memory: positioned I/O copies at once".into());
    }
    let direct = if features.direct { set_direct(fd) } else { Err(Errno::INVAL) };
    if let Err(errno) = direct {
        let how = format!(
            "buffered positioned I/O, because its file system refuses O_DIRECT ({errno}): pages \
             pass through the page cache; name a place on a disk file system for speed"
        );
        return (Driver::Positioned, how);
    }
    if synchronous {
        return (Driver::Positioned, "direct positioned I/O: the device is memory".into());
    }
    match if features.uring { uring::probe() } else { Err(Errno::PERM) } {
        Ok(()) => (Driver::Uring, "direct I/O through io_uring".into()),
        Err(errno) => {
            let how = format!(
                "direct positioned I/O, because io_uring is refused ({errno}): allow it in the \
                 seccomp profile and by sysctl kernel.io_uring_disabled=0 for speed"
            );
            (Driver::Positioned, how)
        }
    }
}

/// Opens a queue for up to `depth` requests. One at a time gains nothing from a ring, and a ring
/// costs a descriptor. Where the reserve of rings is used up system calls have to do.
///
/// # Errors
/// [`DeviceError::Queue`] if the system refuses another ring.
pub(super) fn open_queue(
    driver: Driver,
    target: &Arc<Target>,
    depth: u32,
) -> Result<Box<dyn IoQueue>, DeviceError> {
    let positioned = || SynchronousQueue::new(Positioned::new(target.clone()), depth);
    match driver {
        Driver::Uring if depth > 1 => match UringQueue::new(target.clone(), depth) {
            Ok(queue) => Ok(Box::new(queue)),
            Err(_) if uring::has_reserve() => Ok(Box::new(positioned())),
            Err(error) => Err(error),
        },
        Driver::Uring | Driver::Positioned => Ok(Box::new(positioned())),
    }
}

/// Some file systems accept the flag and then refuse transfers that are not aligned to more than a
/// page; since Linux 6.1 they report this in advance.
fn set_direct(fd: &OwnedFd) -> Result<(), Errno> {
    if let Ok(stat) = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let usable = (1..=PAGE_SIZE as u32).contains(&stat.stx_dio_offset_align);
        if told && !usable {
            return Err(Errno::INVAL);
        }
    }
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::DIRECT)
}
