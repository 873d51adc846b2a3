//! What is a thread's, and what is the process's.
//!
//! Owns: finding them, giving a new thread a slot, and taking it back when it has ended.
//! Invariants: a slot is its thread's alone, but for the words that others read, which are atomic
//! here. One that a thread has left is known by its number, which no living thread has: it is
//! claimed by that number, for by "in use" two could take it in turn. Slots of other processes are
//! freed by who made them.
//! Not here: what is in a slot.

use crate::place::base;
use crate::gate::{
    Action, CLAIMED, GLOBALS_AT, Globals, RETURNS_AT, Return, SIGNALS, SLOT_AT, SLOT_BYTES,
    SLOTS_AT, STUB_AT, STUB_BYTES, STUBS_AT, STUBS_OF_PAGE, Slot, THREADS_MAX,
};
use crate::kernel::{self, ESRCH};
use crate::memory;
use crate::words::PAGE_BYTES;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// How often a lock is tried before it is looked whether who has it is still there.
const TRIES: u32 = 1000;

/// A slot, by its number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seat(usize);

impl Seat {
    /// The slot on whose stack an address lies.
    pub fn at(stack: usize) -> Self {
        Self(stack.wrapping_sub(base() + SLOTS_AT) / SLOT_BYTES)
    }

    /// That of a stub, if an address is in one.
    pub fn of_stub(instruction: usize) -> Option<(Self, usize)> {
        let at = instruction.wrapping_sub(base() + STUBS_AT);
        (at < THREADS_MAX * STUB_BYTES).then_some((Self(at / STUB_BYTES), at % STUB_BYTES))
    }

    fn place(self) -> usize {
        base() + SLOTS_AT + self.0 * SLOT_BYTES
    }

    /// Where its stack starts, and how large it is.
    pub fn stack(self) -> (usize, usize) {
        (self.place(), SLOT_AT)
    }

    fn slot(self) -> *mut Slot {
        (self.place() + SLOT_AT) as *mut Slot
    }

    /// What is the thread's.
    ///
    /// # Safety
    /// The caller is the only one to use it: the thread's own handler, which no other interrupts
    /// where it uses this, or who has claimed it.
    #[expect(clippy::mut_from_ref, reason = "a slot is not where its number is")]
    pub unsafe fn own(&self) -> &mut Slot {
        // SAFETY: the slots are mapped as long as the gate is; the caller vouches for the rest.
        unsafe { &mut *self.slot() }
    }

    /// The stub of the thread.
    pub fn stub(self) -> usize {
        base() + STUBS_AT + self.0 * STUB_BYTES
    }

    fn its_return(self) -> *mut Return {
        (base() + RETURNS_AT + self.0 * STUB_BYTES) as *mut Return
    }

    /// What its stub reads.
    ///
    /// # Safety
    /// As [`Seat::own`].
    #[expect(clippy::mut_from_ref, reason = "as above")]
    pub unsafe fn to_return(&self) -> &mut Return {
        // SAFETY: as above.
        unsafe { &mut *self.its_return() }
    }

    /// The thread's number.
    pub fn task(&self) -> &AtomicU32 {
        // SAFETY: it is mapped and aligned; all use it by this.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.slot()).task) }
    }

    /// Signals that are to come again.
    pub fn pending(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.slot()).pending) }
    }

    /// Whether its holds count.
    pub fn held(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.its_return()).held) }
    }

    /// What its letter is about.
    pub fn asks(self) -> &'static AtomicU64 {
        // SAFETY: as above, as long as the gate is.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.slot()).asks) }
    }

    fn is_foreign(self) -> bool {
        // SAFETY: it is mapped; it changes only while the slot is claimed.
        unsafe { (&raw const (*self.slot()).is_foreign).read_volatile() != 0 }
    }

    /// Frees it.
    pub fn free(self) {
        self.held().store(0, Relaxed);
        // Release: with the claim.
        self.task().store(0, Release);
    }

    /// Gives it to a thread.
    pub fn give(self, task: u32) {
        self.task().store(task, Release);
    }

    fn claim(self) -> bool {
        let task = self.task().load(Relaxed);
        let is_left = match task {
            0 => true,
            CLAIMED => false,
            task => !self.is_foreign() && kernel::send_signal(task, 0) == -ESRCH,
        };
        is_left && self.task().compare_exchange(task, CLAIMED, AcqRel, Relaxed).is_ok()
    }

    fn clear(self, actions: u64) {
        self.held().store(0, Relaxed);
        self.pending().store(0, Relaxed);
        // SAFETY: it is claimed.
        let slot = unsafe { self.own() };
        (slot.believed, slot.has_wait, slot.is_foreign) = (0, 0, 0);
        (slot.stack, slot.stack_bytes, slot.stack_flags) = (0, 0, 0);
        slot.actions = actions;
        for pin in &mut slot.pins {
            (pin.start, pin.end) = (0, 0);
        }
    }
}

/// What is the process's.
fn globals() -> *mut Globals {
    (base() + GLOBALS_AT) as *mut Globals
}

fn word(field: *mut u32) -> &'static AtomicU32 {
    // SAFETY: the callers pass fields of the globals, which are mapped, aligned, and used so alone.
    unsafe { AtomicU32::from_ptr(field) }
}

fn slots() -> &'static AtomicU32 {
    // SAFETY: a field's place.
    word(unsafe { &raw mut (*globals()).slots })
}

/// Finds a slot for a new thread; `None` if all are in use, or there is no memory. It is claimed.
pub fn new_seat(actions: u64) -> Option<Seat> {
    let used = (slots().load(Acquire) as usize).min(THREADS_MAX);
    let seat = match (0..used).map(Seat).find(|seat| seat.claim()) {
        Some(seat) => seat,
        None => next_seat()?,
    };
    seat.clear(actions);
    Some(seat)
}

fn next_seat() -> Option<Seat> {
    loop {
        let seat = Seat(slots().load(Acquire) as usize);
        if seat.0 >= THREADS_MAX || !has_stub(seat) {
            return None;
        }
        let next = seat.0 as u32 + 1;
        let is_new = slots().compare_exchange(seat.0 as u32, next, AcqRel, Relaxed).is_ok();
        // Whoever looks for one that was left finds it from here on, too.
        if is_new && seat.claim() {
            return Some(seat);
        }
    }
}

/// Makes the page of stubs that a slot's is in, if it is not there.
fn has_stub(seat: Seat) -> bool {
    // SAFETY: fields' places.
    let (pages, lock) = unsafe { (&raw mut (*globals()).stub_pages, &raw mut (*globals()).stub_lock) };
    let page = (seat.0 / STUBS_OF_PAGE) as u32;
    if page < word(pages).load(Acquire) {
        return true;
    }
    let _guard = Guard::take(word(lock));
    if page < word(pages).load(Acquire) {
        return true;
    }
    let start = base() + STUBS_AT + page as usize * PAGE_BYTES;
    if kernel::map_at(start, PAGE_BYTES) < 0 {
        return false;
    }
    for at in (start..start + PAGE_BYTES).step_by(STUB_BYTES) {
        // SAFETY: the page was just made, and nobody runs there.
        let copied = unsafe { memory::move_bytes(at, base() + STUB_AT, STUB_BYTES) };
        if copied.is_err() {
            return false;
        }
    }
    if kernel::make_code(start, PAGE_BYTES) < 0 {
        return false;
    }
    word(pages).store(page + 1, Release);
    true
}

/// Has a child's copy of the memory begin with its one thread.
pub fn only(seat: Seat) {
    let used = (slots().load(Relaxed) as usize).min(THREADS_MAX);
    (0..used).map(Seat).filter(|other| *other != seat).for_each(Seat::free);
    seat.held().store(0, Relaxed);
    seat.pending().store(0, Relaxed);
    seat.give(kernel::this_task());
    // SAFETY: fields' places.
    let locks = unsafe { [&raw mut (*globals()).lock, &raw mut (*globals()).stub_lock] };
    for lock in locks {
        word(lock).store(0, Relaxed);
    }
}

/// A lock that somebody who has ended does not keep.
struct Guard(&'static AtomicU32);

impl Guard {
    fn take(lock: &'static AtomicU32) -> Self {
        let me = kernel::this_task();
        let mut tries = 0;
        loop {
            // Acquire: with the release of who had it.
            match lock.compare_exchange(0, me, Acquire, Relaxed) {
                Ok(_) => return Self(lock),
                Err(_) if tries < TRIES => tries += 1,
                Err(holder) => {
                    tries = 0;
                    let is_left = kernel::send_signal(holder, 0) == -ESRCH;
                    if is_left && lock.compare_exchange(holder, me, Acquire, Relaxed).is_ok() {
                        return Self(lock);
                    }
                }
            }
            kernel::yield_now();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// Looks at what a signal does, and may change it. `table` is a slot's.
pub fn with_action<R>(table: u64, signal: usize, f: impl FnOnce(&mut Action) -> R) -> Option<R> {
    if signal >= SIGNALS {
        return None;
    }
    // SAFETY: a field's place.
    let _guard = Guard::take(word(unsafe { &raw mut (*globals()).lock }));
    // SAFETY: all tables are mapped and have so many entries; whoever uses one has the lock.
    Some(f(unsafe { &mut *(table as *mut Action).add(signal) }))
}

/// Waits until the agent moves nothing that it chose before it could see what was written before
/// this.
pub fn await_agent() {
    // SAFETY: a field's place.
    let moving = word(unsafe { &raw mut (*globals()).moving });
    // SeqCst: with the agent's, which makes the word odd, and then reads what is held.
    core::sync::atomic::fence(SeqCst);
    // Acquire: with the end of its moves.
    while moving.load(Acquire) % 2 != 0 {
        kernel::yield_now();
    }
}
