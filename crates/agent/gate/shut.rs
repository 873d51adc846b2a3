//! Calls that change mappings of which parts are shut.
//!
//! Owns: making them so that they do what they would if nothing was.
//! Invariants: what is shut stays so (PROT_NONE), whatever the program asks for; the keeper is
//! told, and does that when it opens it. To the kernel a mapping with parts that are shut is
//! several, of which it moves one at a time: if one cannot be moved, those before are moved back.
//! Not here: which parts are shut, which the keeper knows.
//! Rejected: opening all of it before: it may be larger than the limit.

use crate::gate::letter;
use crate::kernel::{self, EINVAL, MREMAP_DONTUNMAP, MREMAP_FIXED, number, whole_pages};
use crate::letters::{self, say};
use crate::memory;
use crate::words::PAGE_BYTES;

const PROT_NONE: usize = 0;
/// PROT_GROWSDOWN, PROT_GROWSUP: of stacks, which are never shut.
const GROWING: usize = 0x300_0000;
const MAP_RESERVED: usize = 0x4022;
const MAP_FIXED: usize = 0x10;
const MREMAP_MAYMOVE: usize = 1;

/// A part of a mapping.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    bytes: usize,
    is_shut: bool,
}

/// The parts of whole pages of which none is empty.
fn parts(start: usize, end: usize) -> impl Iterator<Item = Part> {
    let mut at = start;
    core::iter::from_fn(move || {
        let rest = end.checked_sub(at).filter(|rest| *rest > 0)?;
        let found = letters::ask(letter::LOOK, [at as u64, rest as u64, 0, 0], || {});
        let bytes = (found.max(0) as usize & !(PAGE_BYTES - 1)).max(PAGE_BYTES).min(rest);
        let part = Part { start: at, bytes, is_shut: found & 1 != 0 };
        at += bytes;
        Some(part)
    })
}

fn has_shut(start: usize, end: usize) -> bool {
    parts(start, end).any(|part| part.is_shut)
}

/// Where a range of pages ends; `None` if it is none.
fn end_of(start: usize, bytes: usize) -> Option<usize> {
    let end = start.checked_add(whole_pages(bytes))?;
    (start.is_multiple_of(PAGE_BYTES) && start < end).then_some(end)
}

/// Makes `mprotect` or `pkey_mprotect`.
pub fn protect(number: usize, arguments: [usize; 6]) -> isize {
    let [start, bytes, protection, ..] = arguments;
    let Some(end) = end_of(start, bytes).filter(|_| protection & GROWING == 0) else {
        return kernel::make(number, arguments);
    };
    let [.., key, _, _] = arguments;
    let (mut done, mut result) = (0, 0);
    for part in parts(start, end) {
        let now = if part.is_shut { PROT_NONE } else { protection };
        result = kernel::make(number, [part.start, part.bytes, now, key, 0, 0]);
        if result < 0 {
            break;
        }
        done += part.bytes;
    }
    say(letter::PROTECTED, [start, done, protection]);
    result
}

/// Has the last page of what grows be open, as what comes behind it is to be. From the letter on
/// that is answered last nothing moves.
pub fn begin_remap([from, old_bytes, new_bytes, ..]: [usize; 6]) {
    loop {
        letters::ask(letter::CHANGE, [0; 4], || {});
        let Some(last) = end_of(from, old_bytes).map(|end| end - PAGE_BYTES) else { return };
        if new_bytes <= old_bytes || !has_shut(last, last + PAGE_BYTES) {
            return;
        }
        letters::ask(letter::CHANGED, [0; 4], || {});
        memory::touch(last);
    }
}

/// Makes `mremap`, if parts of it are shut, and tells of it.
pub fn remap([from, old_bytes, new_bytes, flags, to, _]: [usize; 6]) -> Option<isize> {
    let end = end_of(from, old_bytes)?;
    let (old, new) = (end - from, whole_pages(new_bytes));
    let is_fixed = flags & MREMAP_FIXED != 0;
    let is_sane = flags & !(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) == 0
        && (flags & MREMAP_MAYMOVE != 0 || flags & !MREMAP_MAYMOVE == 0)
        && new != 0;
    if !is_sane || !has_shut(from, end) {
        return None;
    }
    if flags & MREMAP_DONTUNMAP != 0 {
        return Some(-EINVAL);
    }
    if is_fixed {
        let Some(to_end) = end_of(to, new).filter(|to_end| *to_end <= from || end <= to) else {
            return Some(-EINVAL);
        };
        let unmapped = kernel::make(number::MUNMAP, [to, to_end - to, 0, 0, 0, 0]);
        if unmapped < 0 {
            return Some(unmapped);
        }
        say(letter::UNMAPPED, [to, to_end - to, 0]);
    }
    let moves = || move_all(from, [old, new], is_fixed.then_some(to));
    Some(resize(from, [old, new], flags).unwrap_or_else(moves))
}

/// Does what can be done where it is; `None` if it is to be moved.
fn resize(from: usize, [old, new]: [usize; 2], flags: usize) -> Option<isize> {
    if new < old {
        let cut = kernel::make(number::MUNMAP, [from + new, old - new, 0, 0, 0, 0]);
        if cut < 0 {
            return Some(cut);
        }
        say(letter::UNMAPPED, [from + new, old - new, 0]);
    }
    if flags & MREMAP_FIXED != 0 {
        return None;
    }
    if new <= old {
        return Some(from as isize);
    }
    let last = from + old - PAGE_BYTES;
    let grown = kernel::make(number::MREMAP, [last, PAGE_BYTES, PAGE_BYTES + new - old, 0, 0, 0]);
    match grown {
        0.. => Some(from as isize),
        _ if flags & MREMAP_MAYMOVE == 0 => Some(grown),
        _ => None,
    }
}

/// Moves a range, part by part, to a place, or to any.
fn move_all(from: usize, [old, new]: [usize; 2], to: Option<usize>) -> isize {
    let how = MAP_RESERVED | if to.is_some() { MAP_FIXED } else { 0 };
    let place = [to.unwrap_or(0), new, PROT_NONE, how, usize::MAX, 0];
    let reserved = kernel::make(number::MMAP, place);
    if reserved < 0 {
        return reserved;
    }
    let (to, moved) = (reserved as usize, old.min(new));
    // What grows may fail for want of memory, and comes first.
    let last = if new > old { PAGE_BYTES } else { 0 };
    let (kept, grown) = (moved - last, last + new - moved);
    let mut result = if last > 0 { move_one([from + kept, last, grown], to + kept) } else { 0 };
    if result >= 0 {
        result = move_parts(from, kept, to);
        if result < 0 && last > 0 {
            move_one([to + kept, grown, last], from + kept);
        }
    }
    if result < 0 {
        kernel::make(number::MUNMAP, [to, new, 0, 0, 0, 0]);
        return result;
    }
    say(letter::REMAPPED, [from, to, moved]);
    say(letter::UNMAPPED, [from, moved, 0]);
    to as isize
}

/// Moves all parts of a range, or none.
fn move_parts(from: usize, bytes: usize, to: usize) -> isize {
    let there = |part: &Part| to + (part.start - from);
    for part in parts(from, from + bytes) {
        let result = move_one([part.start, part.bytes, part.bytes], there(&part));
        if result < 0 {
            parts(from, part.start).for_each(|part| {
                move_one([there(&part), part.bytes, part.bytes], part.start);
            });
            return result;
        }
    }
    0
}

fn move_one([from, old, new]: [usize; 3], to: usize) -> isize {
    kernel::make(number::MREMAP, [from, old, new, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0])
}
