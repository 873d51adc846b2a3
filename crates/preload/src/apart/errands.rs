//! Errands: closures that program threads have run in the pager's process.
//!
//! Owns: where a closure waits to be run, and the waiting on both sides. One errand at a time.
//!
//! ```text
//! IDLE ──a program thread──> POSTED ──the pager's first thread──> DONE ──the same──> IDLE
//! ```
//!
//! Orderings: POSTED is stored with Release and loaded with Acquire, which makes the closure
//! visible; DONE likewise for its result.
//! Rejected: a socket or an eventfd, which would be descriptors in the program's table.

use crate::futex::{self, Lock};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Release;

const IDLE: u32 = 0;
const POSTED: u32 = 1;
const DONE: u32 = 2;

unsafe extern "C" {
    fn overspill_pager_is_home() -> libc::c_int;
}

type Errand = *mut (dyn FnMut() + 'static);

struct Desk {
    state: AtomicU32,
    errand: UnsafeCell<Option<Errand>>,
    /// Held by the program thread that posted the errand.
    turn: Lock,
}

// SAFETY: the cell is written by the holder of the turn while the state is IDLE, and read by the
// pager's first thread while it is POSTED; the state's orderings separate the two.
unsafe impl Sync for Desk {}

static DESK: Desk =
    Desk { state: AtomicU32::new(IDLE), errand: UnsafeCell::new(None), turn: Lock::new() };

/// True on a thread of the pager's process.
fn is_home() -> bool {
    // SAFETY: reads a variable of this thread.
    unsafe { overspill_pager_is_home() != 0 }
}

/// Runs `errand` in the pager's process and returns when it is done. The closure and what it refers
/// to must not be in managed memory.
pub(super) fn run(errand: &mut dyn FnMut()) {
    if is_home() {
        return errand();
    }
    DESK.turn.enter();
    // SAFETY: this returns after the closure has run, so the closure outlives its use.
    let errand = unsafe { std::mem::transmute::<*mut (dyn FnMut() + '_), Errand>(errand) };
    // SAFETY: we have the turn and the state is IDLE.
    unsafe { *DESK.errand.get() = Some(errand) };
    DESK.state.store(POSTED, Release);
    futex::wake(&DESK.state);
    futex::wait_while(&DESK.state, |state| state != DONE);
    DESK.state.store(IDLE, Release);
    DESK.turn.leave();
}

/// Runs errands forever, on the first thread of the pager's process.
pub(super) fn serve() -> ! {
    loop {
        futex::wait_while(&DESK.state, |state| state != POSTED);
        // SAFETY: while POSTED the errand is there, and its owner waits.
        if let Some(errand) = unsafe { (*DESK.errand.get()).take() } {
            // SAFETY: as above.
            unsafe { (*errand)() };
        }
        DESK.state.store(DONE, Release);
        futex::wake(&DESK.state);
    }
}

/// Resets the desk in a forked child, where its holder does not exist.
pub(super) fn renew() {
    DESK.state.store(IDLE, Release);
    DESK.turn.renew();
}
