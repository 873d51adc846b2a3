//! What a call touches is brought in, and stays until it has returned.
//!
//! Owns: the way from a call's arguments to the ranges that its thread holds.
//! Invariants: a range is held before it is touched, and the agent moves nothing that is held. It
//! chose what it moves before it could see that: so it is waited for. A range may be longer than
//! what the kernel touches; a call of which nothing is known holds a page behind each argument.
//! Where nothing is there the kernel finds the same. Of a call that names more than may be held at
//! a time the first part is, which it moves, and says so; one that needs all of it fails with
//! ENOMEM.
//! Not here: which argument leads where (`calls`).
//! Rejected: making a call again that failed for want of a page: it may have taken what it lost.

use crate::gate::{HOLDS_MAX, Slot, Span as Held};
use crate::kernel::number;
use crate::letters;
use crate::memory;
use crate::slots::{self, Seat};
use crate::transfers::POPULATE;
use crate::walk::{Memory, Span, walk};
use crate::words::PAGE_BYTES;
use core::sync::atomic::Ordering::Relaxed;

/// By a call's number, its list of arguments.
mod table {
    use crate::types::Arg::*;
    use crate::types::{ARGS_MAX, Arg};

    include!(concat!(env!("OUT_DIR"), "/calls.rs"));
}

/// Of so many ranges that lead nowhere the kernel will find one: each costs a signal, and what is
/// not a vector may name a million.
const BAD_MAX: usize = 64;
/// Below this nothing is ever mapped, and above that neither.
const LOWEST: usize = 1 << 16;
const HIGHEST: usize = 1 << 47;

/// The program's memory, as a call sees it.
struct Program;

impl Memory for Program {
    fn read(&self, address: usize, bytes: &mut [u8]) -> usize {
        // SAFETY: what is borrowed is written.
        let read = unsafe { memory::move_bytes(bytes.as_mut_ptr() as usize, address, bytes.len()) };
        if read.is_ok() { bytes.len() } else { 0 }
    }

    fn matters(&self, address: usize) -> bool {
        (LOWEST..HIGHEST).contains(&address)
    }
}

/// The ranges of a call.
struct Ranges<'s> {
    holds: &'s mut [Held; HOLDS_MAX],
    count: usize,
}

impl Ranges<'_> {
    fn add(&mut self, start: usize, bytes: usize) {
        let new = Held::of(start, bytes);
        match self.holds.get_mut(self.count) {
            Some(hold) => {
                *hold = new;
                self.count += 1;
            }
            // The nearest takes it in, with all that lies between.
            None => {
                let grown = |hold: &Held| {
                    (hold.end.max(new.end) - hold.start.min(new.start)) - (hold.end - hold.start)
                };
                if let Some(near) = self.holds.iter_mut().min_by_key(|hold| grown(hold)) {
                    (near.start, near.end) = (near.start.min(new.start), near.end.max(new.end));
                }
            }
        }
    }
}

/// Brings in and holds what a call touches; false if all of it is needed, and too much to be held.
pub fn hold(seat: Seat, slot: &mut Slot, number: usize, arguments: &[usize; 6]) -> bool {
    if number == number::EXECVE || number == number::EXECVEAT {
        hold_all(seat, slot, number, arguments);
        return true;
    }
    if is_of_range(number, arguments) && arguments[1] > letters::hold_bytes_max() {
        return false;
    }
    let mut ranges = begin(slot);
    each(number, arguments, Some(&mut ranges));
    if ranges.count > 0 {
        settle(seat);
        // What is read may be another thing now: it is what the kernel reads, too.
        each(number, arguments, None);
    }
    true
}

/// Holds so many bytes at a place.
pub fn hold_bytes(seat: Seat, slot: &mut Slot, places: [(usize, usize); 3]) {
    let mut ranges = begin(slot);
    for (start, bytes) in places {
        if start != 0 {
            ranges.add(start, bytes);
        }
    }
    settle(seat);
    for (start, len) in places {
        bring_in(Span { start, len });
    }
}

/// Its arguments may lead anywhere: nothing moves until it has ended.
fn hold_all(seat: Seat, slot: &mut Slot, number: usize, arguments: &[usize; 6]) {
    let mut ranges = begin(slot);
    ranges.add(0, usize::MAX);
    settle(seat);
    each(number, arguments, None);
}

fn begin(slot: &mut Slot) -> Ranges<'_> {
    for hold in &mut slot.holds {
        (hold.start, hold.end) = (0, 0);
    }
    Ranges { holds: &mut slot.holds, count: 0 }
}

/// From here on the ranges count.
fn settle(seat: Seat) {
    seat.held().store(1, Relaxed);
    slots::await_agent();
}

/// Adds each range of a call to others, or brings it in. (One function: each walk takes room.)
fn each(number: usize, arguments: &[usize; 6], mut to: Option<&mut Ranges<'_>>) {
    let (mut bad, mut left) = (0, letters::hold_bytes_max());
    let mut sink = |Span { start, len }: Span| {
        // What says where the rest is has no more than a page.
        let len = len.min(left.max(PAGE_BYTES));
        left = left.saturating_sub(len);
        match &mut to {
            Some(ranges) => ranges.add(start, len),
            None if bad < BAD_MAX && !bring_in(Span { start, len }) => bad += 1,
            None => {}
        }
    };
    if is_of_range(number, arguments) {
        return sink(Span { start: arguments[0], len: arguments[1] });
    }
    let list = table::LIST_OF.get(number).and_then(|&list| table::LISTS.get(usize::from(list)));
    match list {
        Some(list) => walk(list, arguments, &Program, &mut sink),
        None => {
            let places = arguments.iter().filter(|&&at| Program.matters(at));
            places.for_each(|&start| sink(Span { start, len: PAGE_BYTES }));
        }
    }
}

/// True for a call that has the kernel touch all of a range.
fn is_of_range(number: usize, arguments: &[usize; 6]) -> bool {
    match number {
        number::MLOCK | number::MLOCK2 => true,
        number::MADVISE => POPULATE.contains(&arguments[2]),
        _ => false,
    }
}

/// False if not all of it is there.
fn bring_in(span: Span) -> bool {
    let end = span.start.saturating_add(span.len);
    let mut at = span.start;
    while at < end && memory::touch(at) {
        at = (at / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES);
    }
    at >= end
}
