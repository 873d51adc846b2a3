//! Long reads and writes, in parts.
//!
//! Owns: which calls are cut, and what goes on where. So is advice to bring in a range
//! (MADV_POPULATE_READ and _WRITE), of which the first parts may be out again when the last is in.
//! Invariants: a part is held, not the whole, which may be more than there is memory for. A program
//! gets what one call would have given it: what a part has moved is counted, an error after that is
//! the next call's. What is one message is never cut. Between two parts the thread comes back here
//! by the door: a call that is caught though it is the gate's.
//! Not here: calls that are short, or touch other things as well: they are held as a whole.

use crate::frames::Context;
use crate::gate::{Slot, VECTORS_MAX};
use crate::kernel::{self, number};
use crate::memory;
use crate::slots::Seat;
use core::mem::MaybeUninit;

/// Bytes of a part. What is not longer is not cut.
pub const PART_BYTES: usize = 256 << 10;
/// MADV_POPULATE_READ and MADV_POPULATE_WRITE.
pub const POPULATE: [usize; 2] = [22, 23];
/// The offset of a call that goes on where its file is.
const FROM_HERE: usize = usize::MAX;
/// The most vectors of a call.
const UIO_MAXIOV: usize = 1024;
const VECTOR_BYTES: usize = 16;
/// Where a program's addresses end.
const HIGHEST: u64 = (1 << 47) - 4096;
const MSG_WAITALL: usize = 0x100;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFSOCK: u32 = 0o140_000;
const SOL_SOCKET: usize = 1;
const SO_TYPE: usize = 3;
const SOCK_STREAM: u32 = 1;
/// Of `struct stat`, as words of 4 bytes: how many, and which is the mode.
const STAT_WORDS: usize = 36;
const MODE_AT: usize = 6;

/// What a call transfers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Nothing is counted: there is success or an error.
    Populate,
}

/// A call that may be cut.
struct Row {
    kind: Kind,
    is_of_vectors: bool,
    /// It has an offset, which goes on with it.
    has_offset: bool,
    /// Which argument has flags of a message.
    is_message: bool,
}

const fn row(kind: Kind, is_of_vectors: bool, has_offset: bool, is_message: bool) -> Row {
    Row { kind, is_of_vectors, has_offset, is_message }
}

fn row_of(number: usize) -> Option<Row> {
    Some(match number {
        number::MADVISE => row(Kind::Populate, false, false, false),
        number::READ => row(Kind::Read, false, false, false),
        number::WRITE => row(Kind::Write, false, false, false),
        number::PREAD64 => row(Kind::Read, false, true, false),
        number::PWRITE64 => row(Kind::Write, false, true, false),
        number::READV => row(Kind::Read, true, false, false),
        number::WRITEV => row(Kind::Write, true, false, false),
        number::PREADV | number::PREADV2 => row(Kind::Read, true, true, false),
        number::PWRITEV | number::PWRITEV2 => row(Kind::Write, true, true, false),
        number::RECVFROM => row(Kind::Read, false, false, true),
        number::SENDTO => row(Kind::Write, false, false, true),
        _ => return None,
    })
}

/// Begins a transfer that is to be cut, if it is one: returns the arguments of its first part.
pub fn begin(slot: &mut Slot, number: usize, arguments: &[usize; 6]) -> Option<[usize; 6]> {
    let row = row_of(number)?;
    let bytes = match row.is_of_vectors {
        _ if row.kind == Kind::Populate => {
            if !POPULATE.contains(&arguments[2]) {
                return None;
            }
            arguments[1]
        }
        false => arguments[2],
        true if arguments[2] <= UIO_MAXIOV => vectors_bytes(arguments[1], arguments[2])?,
        true => return None,
    };
    if bytes <= PART_BYTES || isize::try_from(bytes).is_err() {
        return None;
    }
    let goes_on = match row.kind {
        Kind::Populate => GoesOn::Always,
        Kind::Read | Kind::Write => goes_on(&row, arguments)?,
    };
    (slot.transfer_number, slot.transfer_bytes) = (number as u64, bytes as u64);
    (slot.transfer_done, slot.transfer_goes_on) = (0, goes_on as u64);
    next(slot, arguments, 0)
}

/// Whether a part that was moved whole is followed by another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GoesOn {
    /// As if it were one call.
    Always,
    /// If there is more: a program takes a read that is short for a sign that there is not.
    IfReadable,
}

/// `None` if nothing is to be cut.
fn goes_on(row: &Row, arguments: &[usize; 6]) -> Option<GoesOn> {
    let descriptor = arguments[0];
    let mut stat = MaybeUninit::<[u32; STAT_WORDS]>::uninit();
    let at = stat.as_mut_ptr() as usize;
    if kernel::make(number::FSTAT, [descriptor, at, 0, 0, 0, 0]) < 0 {
        return None;
    }
    let kind = memory::read::<u32>(at + MODE_AT * size_of::<u32>()).ok()? & S_IFMT;
    if kind == S_IFSOCK && !is_stream(descriptor) {
        return None;
    }
    let is_file = kind == S_IFREG || kind == S_IFBLK;
    let wants_all = row.is_message && arguments[3] & MSG_WAITALL != 0;
    let always = row.kind == Kind::Write || is_file || wants_all;
    Some(if always { GoesOn::Always } else { GoesOn::IfReadable })
}

/// True if a read would not wait.
fn is_readable(descriptor: usize) -> bool {
    const POLLIN: u64 = 1;
    let mut poll = (descriptor as u64 & 0xffff_ffff) | POLLIN << 32;
    let at = core::ptr::from_mut(&mut poll) as usize;
    kernel::make(number::POLL, [at, 1, 0, 0, 0, 0]) == 1 && poll >> 48 & POLLIN != 0
}

fn is_stream(descriptor: usize) -> bool {
    let (mut kind, mut bytes) = (0u32, size_of::<u32>() as u32);
    let places = [core::ptr::from_mut(&mut kind), core::ptr::from_mut(&mut bytes)];
    let [kind_at, bytes_at] = places.map(|place| place as usize);
    let asked = [descriptor, SOL_SOCKET, SO_TYPE, kind_at, bytes_at, 0];
    kernel::make(number::GETSOCKOPT, asked) == 0 && kind == SOCK_STREAM
}

/// The bytes of all vectors; `None` if the call will fail.
fn vectors_bytes(at: usize, count: usize) -> Option<usize> {
    (0..count).try_fold(0usize, |sum, n| {
        let [start, bytes] = memory::read::<[u64; 2]>(at + n * VECTOR_BYTES).ok()?;
        // The kernel refuses all of them for one that can be nowhere.
        let end = start.checked_add(bytes).filter(|end| *end <= HIGHEST)?;
        sum.checked_add((end - start) as usize)
    })
}

/// The arguments of the part that follows `done` bytes.
fn next(slot: &mut Slot, arguments: &[usize; 6], done: usize) -> Option<[usize; 6]> {
    let row = row_of(slot.transfer_number as usize)?;
    let bytes = (slot.transfer_bytes as usize).saturating_sub(done).min(PART_BYTES);
    let mut part = *arguments;
    if row.has_offset && part[3] != FROM_HERE {
        part[3] = part[3].wrapping_add(done);
    }
    if row.kind == Kind::Populate {
        (part[0], part[1]) = (arguments[0].wrapping_add(done), bytes);
        slot.transfer_part = bytes as u64;
    } else if row.is_of_vectors {
        let (count, taken) = take_vectors(slot, [arguments[1], arguments[2]], done, bytes);
        (part[1], part[2]) = (slot.vectors.as_ptr() as usize, count);
        slot.transfer_part = taken as u64;
    } else {
        (part[1], part[2]) = (arguments[1].wrapping_add(done), bytes);
        slot.transfer_part = bytes as u64;
    }
    (slot.transfer_part > 0).then_some(part)
}

/// Makes vectors of the bytes after the first `skip`. Returns how many, and of how many bytes.
fn take_vectors(
    slot: &mut Slot,
    [at, count]: [usize; 2],
    mut skip: usize,
    most: usize,
) -> (usize, usize) {
    let (mut made, mut taken) = (0, 0);
    for n in 0..count {
        let Ok([start, bytes]) = memory::read::<[u64; 2]>(at + n * VECTOR_BYTES) else { break };
        if made == VECTORS_MAX || taken == most {
            break;
        }
        let bytes = bytes as usize;
        if bytes <= skip {
            skip -= bytes;
            continue;
        }
        let len = (bytes - skip).min(most - taken);
        if let Some(vector) = slot.vectors.get_mut(made) {
            *vector = [start.wrapping_add(skip as u64), len as u64];
        }
        (made, taken, skip) = (made + 1, taken + len, 0);
    }
    (made, taken)
}

/// What the program sees of a transfer of which a part has had this result.
pub fn result_of(slot: &Slot, result: isize) -> isize {
    let done = slot.transfer_done as isize;
    match result {
        // If a signal comes between parts, what is left is brought in when it is touched.
        _ if is_populating(slot) => result,
        moved if moved >= 0 => done + moved,
        _ if done > 0 => done,
        error => error,
    }
}

fn is_populating(slot: &Slot) -> bool {
    slot.transfer_number == number::MADVISE as u64
}

/// A part has been made. Returns the arguments of the next, if there is one.
pub fn go_on(slot: &mut Slot, seat: Seat, context: &Context) -> Option<[usize; 6]> {
    let moved = match context.rax as isize {
        0 if is_populating(slot) => slot.transfer_part as isize,
        result => result,
    };
    let was_whole = moved >= 0 && moved as u64 == slot.transfer_part;
    let must_look = slot.transfer_goes_on == GoesOn::IfReadable as u64;
    if !was_whole || must_look && !is_readable(context.rdi as usize) {
        return None;
    }
    let done = slot.transfer_done + moved as u64;
    if done >= slot.transfer_bytes {
        return None;
    }
    // SAFETY: this thread's.
    let arguments = unsafe { seat.to_return() }.arguments.map(|word| word as usize);
    let part = next(slot, &arguments, done as usize)?;
    slot.transfer_done = done;
    Some(part)
}

