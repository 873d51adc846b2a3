//! Reserves space in a file before pages are written to it.
//!
//! Owns: how far the space is known to be reserved.
//! Invariants: a slot below the mark can be written without running out of space, unless it has
//! been discarded: then its space went back to the file system, and is requested again by the next
//! write, which fails if others have taken it. This is why files are discarded only if the user
//! asks for it. The mark only rises. Space is reserved with fallocate, which never shrinks a file
//! and never changes existing content; so threads, and processes with their own marks, may do the
//! same work twice.
//! Not here: file systems that cannot reserve. Their files get their full length when they are
//! opened ([`super::open`]), because two processes that each extend a file by ftruncate could
//! shrink it under each other.

use overspill_base::Bytes;
use overspill_base::sync::{AtomicU32, Ordering::Relaxed};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::AsFd;

use crate::error::is_full;

/// Slots reserved at a time: 64 MiB, some milliseconds of work on a disk file system.
const STEP_SLOTS: u32 = 16384;

/// The reserved part of a device.
#[derive(Debug)]
pub(super) struct Growth {
    slots_max: u32,
    /// A monotonic hint that carries no other data, hence relaxed.
    usable: AtomicU32,
}

impl Growth {
    /// Starts with all of the device usable, unless it `grows`.
    pub(super) fn new(slots_max: u32, grows: bool) -> Self {
        Self { slots_max, usable: AtomicU32::new(if grows { 0 } else { slots_max }) }
    }

    /// Reserves space in `fd` for at least `slots` slots, a whole step if possible, and returns how
    /// many slots are reserved.
    ///
    /// # Errors
    /// ENOSPC beyond the device's size; otherwise the error of fallocate.
    pub(super) fn reach(&self, fd: impl AsFd, slots: u32) -> Result<u32, Errno> {
        let usable = self.usable.load(Relaxed);
        if slots <= usable {
            return Ok(usable);
        }
        if slots > self.slots_max {
            return Err(Errno::NOSPC);
        }
        let step = slots.checked_next_multiple_of(STEP_SLOTS).unwrap_or(u32::MAX);
        let step = step.min(self.slots_max);
        let reached = match reserve(&fd, usable, step) {
            Ok(()) => step,
            Err(errno) if is_full(errno) => reserve(&fd, usable, slots).map(|()| slots)?,
            Err(errno) => return Err(errno),
        };
        Ok(self.usable.fetch_max(reached, Relaxed).max(reached))
    }
}

/// Reserves the space of slots `from..to`.
///
/// # Errors
/// ENOSPC, EDQUOT or EFBIG without space; EOPNOTSUPP if the file system cannot reserve.
pub(super) fn reserve(fd: impl AsFd, from: u32, to: u32) -> Result<(), Errno> {
    let start = Bytes::of_pages(from.into()).0;
    let len = Bytes::of_pages((to - from).into()).0;
    retry_on_intr(|| fallocate(&fd, FallocateFlags::empty(), start, len))
}
