//! Letters to the keeper.
//!
//! Owns: writing one and waiting for its answer.
//! Invariants: a letter is its writer's from where it is taken to where it is free again. Many
//! write at the same time, without a lock: a thread that is killed keeps a letter, of which there
//! are enough. The keeper hears of letters by the bell, which it shares with all its guests, and
//! believes nothing that it does not check.
//! Not here: what the keeper does about them.
//! Rejected: a descriptor, which the program could see and close.

use crate::place::base;
use crate::gate::{
    BELL_AT, COUNTED_AT, GLOBALS_AT, Globals, LETTER_PAGES, LETTERS, LETTERS_AT, Letter, WISH_AT,
    letter_state,
};
use crate::kernel;
use crate::slots::Seat;
use crate::words::{Barrier, PAGE_BYTES};
use core::mem::offset_of;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::compiler_fence;

fn word(at: usize) -> &'static AtomicU32 {
    // SAFETY: the callers name aligned words of pages that are mapped as long as the gate is, and
    // that all use so.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }
}

/// Which page of letters is the process's, from 1 on.
pub fn page() -> &'static AtomicU32 {
    word(base() + GLOBALS_AT + offset_of!(Globals, letters))
}

/// True if there is a keeper that reads letters.
pub fn has_keeper() -> bool {
    page().load(Relaxed) != 0
}

/// What has touches be signals, of which the keeper hears by letters alone; `None` if they are not.
pub fn barrier() -> Option<Barrier> {
    match has_keeper() {
        true => Barrier::of(word(base() + GLOBALS_AT + offset_of!(Globals, barrier)).load(Relaxed)),
        false => None,
    }
}

/// Bytes that a call may hold at a time.
pub fn hold_bytes_max() -> usize {
    let pages = word(base() + GLOBALS_AT + offset_of!(Globals, hold_pages_max)).load(Relaxed);
    pages as usize * PAGE_BYTES
}

/// True if the keeper hears of touches by letters alone.
pub fn tells_of_touches() -> bool {
    barrier().is_some()
}

/// Writes a letter, and waits for its answer; `wait` is called when none has come for a while.
pub fn ask(kind: u32, arguments: [u64; 4], mut wait: impl FnMut()) -> isize {
    let page = own_page();
    let letter = take(page);
    let state = word(letter);
    // SAFETY: it was taken, and nobody else writes it; the keeper reads it when it is sent.
    unsafe {
        let letter = letter as *mut Letter;
        (&raw mut (*letter).kind).write_volatile(kind);
        (&raw mut (*letter).arguments).write_volatile(arguments);
    }
    let asks = asks();
    let before = asks.swap(kind.into(), Relaxed);
    state.store(letter_state::SENT, Release);
    ring(page);
    while state.load(Acquire) != letter_state::ANSWERED && own_page() == page {
        if !kernel::wait_for_word(state, letter_state::SENT) {
            wait();
        }
    }
    asks.store(before, Relaxed);
    // From here on the letters stay: this thread is in its gate, and waits for nothing.
    compiler_fence(SeqCst);
    // Others have taken the place of these, and nobody reads these, nor was this answer seen.
    if own_page() != page {
        return ask(kind, arguments, wait);
    }
    // SAFETY: the keeper does not write it any more.
    let answer = unsafe { (&raw const (*(letter as *const Letter)).answer).read_volatile() };
    state.store(letter_state::FREE, Release);
    answer as isize
}

/// Says that the process wants its gate open. Does not wait for that.
pub fn wish_out() {
    let page = own_page();
    word(page + WISH_AT).store(1, Release);
    ring(page);
}

/// What this thread's letter is about.
fn asks() -> &'static AtomicU64 {
    let here = 0u8;
    Seat::at(&raw const here as usize).asks()
}

fn own_page() -> usize {
    let page = (page().load(Relaxed) as usize).clamp(1, LETTER_PAGES) - 1;
    base() + LETTERS_AT + page * PAGE_BYTES
}

/// Takes a letter that is free.
fn take(page: usize) -> usize {
    loop {
        for n in 1..=LETTERS {
            let letter = page + n * size_of::<Letter>();
            let taken = word(letter).compare_exchange(
                letter_state::FREE,
                letter_state::TAKEN,
                Acquire,
                Relaxed,
            );
            if taken.is_ok() {
                return letter;
            }
        }
        kernel::yield_now();
    }
}

fn ring(page: usize) {
    let bell = word(base() + BELL_AT);
    word(page + COUNTED_AT).fetch_add(1, Release);
    bell.fetch_add(1, Release);
    kernel::wake_word(bell);
}

/// Tells of what is done, and waits until the keeper knows.
pub fn say(what: u32, [a, b, c]: [usize; 3]) {
    ask(what, [a as u64, b as u64, c as u64, 0], || {});
}
