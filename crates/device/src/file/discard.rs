//! Discards: tells the storage which content is not needed.
//!
//! Owns: the system calls, whether the storage supports them, and which parts of a range are
//! spared.
//! Invariants: a reserved slot is never discarded. Nothing outside the range is touched.
//! Not here: when slots are discarded, and that they are not used meanwhile (`area`, `engine`).
//! Rejected: hole punching on block devices as well. There it means writing zeros, which only some
//! devices turn into a discard.

use super::facts;
use overspill_base::{Bytes, Slot};
use rustix::fs::{FallocateFlags, FileType, Stat, fallocate, fstat};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl;
use std::os::fd::AsFd;

/// `BLKDISCARD` of `linux/fs.h`.
const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);

/// Checks whether `fd` can discard: a block device by its queue's limits, a file by punching a hole
/// past its end, where there is no content.
pub(super) fn probe(fd: impl AsFd) -> bool {
    match fstat(&fd) {
        Ok(stat) if is_block(&stat) => facts::discards(stat.st_rdev),
        Ok(stat) => {
            let end = Bytes(stat.st_size as u64).pages_ceil();
            punch(&fd, Bytes::of_pages(end), Bytes::of_pages(1)).is_ok()
        }
        Err(_) => false,
    }
}

/// Discards `slots` slots of `fd` from `first` on, except those in `reserved`, which is sorted.
///
/// # Errors
/// EOPNOTSUPP if the storage cannot; otherwise the system's error. The remaining slots may or may
/// not have been discarded.
pub(super) fn discard(
    fd: impl AsFd,
    first: Slot,
    slots: u32,
    reserved: &[Slot],
) -> Result<(), Errno> {
    let block = is_block(&fstat(&fd)?);
    unreserved(first, slots, reserved).try_for_each(|(from, to)| {
        let (start, len) = (Bytes::of_pages(from.into()), Bytes::of_pages((to - from).into()));
        if block { forget(&fd, start, len) } else { punch(&fd, start, len) }
    })
}

fn is_block(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// The runs `from..to` of a range between its reserved slots.
fn unreserved(first: Slot, slots: u32, reserved: &[Slot]) -> impl Iterator<Item = (u32, u32)> {
    let end = first.0 + slots;
    let inside =
        reserved.iter().map(|slot| slot.0).filter(move |slot| (first.0..end).contains(slot));
    let mut from = first.0;
    let ends = inside.chain(std::iter::once(end));
    let runs = ends.map(move |to| (std::mem::replace(&mut from, to + 1), to));
    runs.filter(|(from, to)| from < to)
}

fn punch(fd: impl AsFd, start: Bytes, len: Bytes) -> Result<(), Errno> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| fallocate(&fd, how, start.0, len.0))
}

fn forget(fd: impl AsFd, start: Bytes, len: Bytes) -> Result<(), Errno> {
    retry_on_intr(|| {
        // SAFETY: BLKDISCARD reads two 64-bit numbers, a start and a length in bytes. With fewer,
        // it would discard another part of the device.
        unsafe { ioctl::ioctl(&fd, ioctl::Setter::<BLKDISCARD, _>::new([start.0, len.0])) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_slots_cut_a_range_into_runs() {
        let reserved = [0, 5, 6, 9].map(Slot);
        let runs = |first, slots| unreserved(Slot(first), slots, &reserved).collect::<Vec<_>>();
        assert_eq!(runs(0, 12), [(1, 5), (7, 9), (10, 12)]);
        assert_eq!(runs(1, 4), [(1, 5)]);
        assert_eq!(runs(5, 2), []);
        assert_eq!(runs(6, 4), [(7, 9)]);
        assert_eq!(runs(20, 3), [(20, 23)]);
        assert_eq!(runs(3, 0), []);
    }
}
