//! What the keeper must be told of where no userfaultfd tells it.
//!
//! Owns: touches that the kernel refuses, and calls that change mappings.
//! Invariants: who touched what is out waits in its handler, and touches it again. A call that
//! changes mappings is made between two letters: from the answer to the first on nothing moves or
//! comes, and it goes on when the keeper knows what became of the mappings. Told before, a call
//! that fails would lose content; told after, another thread's touch would bring back what is gone.
//! Not here: which touch is the program's mistake, which the keeper knows.

use crate::frames::{Context, Info};
use crate::gate::{access, letter};
use crate::kernel::{self, EINVAL, ENOSYS, MREMAP_DONTUNMAP, MREMAP_FIXED, number, whole_pages};
use crate::letters::{self, say, tells_of_touches};
use crate::shut;
use crate::words::Barrier;

/// `si_code` of a signal for which there is an address: nothing is there, or it may not be touched.
const WITH_ADDRESS: [i32; 2] = [1, 2];

const MAP_FIXED: usize = 0x10;
const SHM_REMAP: usize = 0o40_000;
/// Advice that removes content: MADV_DONTNEED, MADV_DONTNEED_LOCKED.
const REMOVING: [usize; 2] = [4, 24];
/// MADV_GUARD_INSTALL, MADV_GUARD_REMOVE.
const GUARDING: [usize; 2] = [102, 103];

/// Has the keeper bring what was touched. True if it is to be touched again.
pub fn is_brought(info: &Info, context: &Context) -> bool {
    if !WITH_ADDRESS.contains(&info.code) || !tells_of_touches() {
        return false;
    }
    let kind = context.error & (access::WRITE | access::EXECUTE);
    letters::ask(letter::FAULT, [info.address, kind, 0, 0], || {}) >= 0
}

/// Makes a call that changes mappings; `None` if it is none.
pub fn change(number: usize, arguments: [usize; 6]) -> Option<isize> {
    let is_change = match number {
        number::MUNMAP | number::MREMAP | number::BRK => true,
        number::MPROTECT | number::PKEY_MPROTECT => true,
        number::MMAP => arguments[3] & MAP_FIXED != 0,
        // As on older kernels: guards keep touches of what is out away.
        number::MADVISE if GUARDING.contains(&arguments[2]) && tells_of_touches() => {
            return Some(-EINVAL);
        }
        number::MADVISE => REMOVING.contains(&arguments[2]),
        // They change what they do not say.
        number::SHMAT if arguments[2] & SHM_REMAP != 0 && tells_of_touches() => {
            return Some(-EINVAL);
        }
        number::PROCESS_MADVISE if tells_of_touches() => return Some(-ENOSYS),
        // What is shut could not be opened.
        number::MSEAL if letters::barrier() == Some(Barrier::NoAccess) => return Some(-ENOSYS),
        _ => false,
    };
    (is_change && tells_of_touches()).then(|| make(number, arguments))
}

fn make(number: usize, arguments: [usize; 6]) -> isize {
    let may_be_shut = letters::barrier() == Some(Barrier::NoAccess);
    match number {
        number::MREMAP if may_be_shut => shut::begin_remap(arguments),
        _ => _ = letters::ask(letter::CHANGE, [0; 4], || {}),
    }
    let result = match number {
        number::MPROTECT | number::PKEY_MPROTECT if may_be_shut => shut::protect(number, arguments),
        number::MREMAP if may_be_shut => {
            shut::remap(arguments).unwrap_or_else(|| make_whole(number, arguments))
        }
        _ => make_whole(number, arguments),
    };
    let protects = matches!(number, number::MPROTECT | number::PKEY_MPROTECT) && !may_be_shut;
    let protects = protects || number == number::MREMAP;
    letters::ask(letter::CHANGED, [u64::from(protects), 0, 0, 0], || {});
    result
}

/// Makes a call as it is, and tells of it.
fn make_whole(number: usize, arguments: [usize; 6]) -> isize {
    let end = if number == number::BRK { kernel::make(number, [0; 6]) } else { 0 };
    let result = kernel::make(number, arguments);
    tell(number, arguments, result, end);
    result
}

/// Tells what became of the mappings. `end` is where the heap ended before.
fn tell(number: usize, [a, b, c, d, ..]: [usize; 6], result: isize, end: isize) {
    let is_made = !(-4095..0).contains(&result);
    match number {
        // It may have removed some, though it says that something is not mapped.
        number::MADVISE => say(letter::REMOVED, [a, b, 0]),
        _ if !is_made => {}
        number::MUNMAP | number::MMAP => say(letter::UNMAPPED, [a, b, 0]),
        number::BRK if result < end => {
            let [start, end] = [result, end].map(|end| whole_pages(end as usize));
            say(letter::UNMAPPED, [start, end - start, 0]);
        }
        number::MREMAP => tell_move([a, b, c, d], result as usize),
        _ => {}
    }
}

fn tell_move([from, old_bytes, new_bytes, flags]: [usize; 4], to: usize) {
    let [old_bytes, new_bytes] = [old_bytes, new_bytes].map(whole_pages);
    if flags & MREMAP_FIXED != 0 {
        say(letter::UNMAPPED, [to, new_bytes, 0]);
    }
    if new_bytes < old_bytes {
        say(letter::UNMAPPED, [from + new_bytes, old_bytes - new_bytes, 0]);
    }
    if to != from {
        let moved_bytes = old_bytes.min(new_bytes);
        say(letter::REMAPPED, [from, to, moved_bytes]);
        if flags & MREMAP_DONTUNMAP == 0 {
            say(letter::UNMAPPED, [from, moved_bytes, 0]);
        }
    }
}
