//! What libc's fork touches in the child before our handlers run, and locks that it waits for after
//! our last handler before it: stdio's list of streams, and the forking thread's own stack and
//! thread block.
//!
//! Invariants: from [`lock`] to [`unlock`] no other thread holds the list's lock; libc's fork takes
//! it once more, on the same thread. A thread that flushes all streams holds it while it may wait
//! for a page, so it must be taken before the pager is parked.
//! Built on: the part of libc's FILE that is compiled into every program that uses it, so it cannot
//! change.

use crate::calls;
use crate::pager::{Process, is_managed};
use libc::c_void;
use overspill_base::PAGE_SIZE;
use overspill_engine::AddressSpace;

#[repr(C)]
struct Stream {
    _flags: i32,
    _buffers: [*mut c_void; 12],
    chain: *mut Stream,
    _rest: [usize; 3],
    lock: *mut c_void,
}

unsafe extern "C" {
    #[link_name = "_IO_list_all"]
    static mut STREAMS: *mut Stream;
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// Stack that a fork uses, below here and above, with the frames of its callers' handlers.
const STACK_BELOW: usize = 64 << 10;
const STACK_ABOVE: usize = 16 << 10;
/// Thread block, on both sides of the thread pointer.
const BLOCK: usize = 4 << 10;

/// Locks the list of streams; waits for other threads.
pub(super) fn lock() {
    // SAFETY: the list's own lock, which is recursive.
    unsafe { _IO_list_lock() };
}

/// Unlocks the list in the parent; in the child libc resets the lock.
pub(super) fn unlock() {
    // SAFETY: taken by `lock` on this thread.
    unsafe { _IO_list_unlock() };
}

/// Touches all that must be in memory; returns an address in each managed page of it. The pager
/// must be running.
pub(super) fn touch_all(process: &Process) -> Vec<usize> {
    let space = process.memory().space();
    let mut pages = Vec::new();
    let mut touch = |address: usize| {
        if is_managed(address) && space.span(space.page_at(address)) > 0 {
            calls::settle(process, address, 1);
            // SAFETY: a byte of a stream or its lock, alive while the list is locked, or of this
            // thread's own stack or block.
            unsafe { std::ptr::read_volatile(address as *const u8) };
            pages.push(address / PAGE_SIZE * PAGE_SIZE);
        }
    };
    touch_streams(&mut touch);
    touch_own(&mut touch);
    pages.sort_unstable();
    pages.dedup();
    pages
}

fn touch_streams(touch: &mut impl FnMut(usize)) {
    // SAFETY: the list is locked, so streams are neither opened nor closed.
    unsafe {
        let mut at = STREAMS;
        while !at.is_null() {
            touch(at.addr() + size_of::<Stream>() - 1);
            touch(at.addr());
            touch((&raw const (*at).lock).addr());
            let lock = (&raw const (*at).lock).read();
            touch(lock.addr());
            touch(lock.addr() + 15);
            touch((&raw const (*at).chain).addr());
            at = (&raw const (*at).chain).read();
        }
    }
}

/// A thread may have its stack in managed memory, from malloc, with its block at the upper end.
fn touch_own(touch: &mut impl FnMut(usize)) {
    let here = 0u8;
    let stack = (&raw const here).addr();
    // SAFETY: only reads this thread's identity, the address of its block.
    let block = unsafe { libc::pthread_self() } as usize;
    for (at, below, above) in [(stack, STACK_BELOW, STACK_ABOVE), (block, BLOCK, BLOCK)] {
        if is_managed(at) {
            (at - below..at + above).step_by(PAGE_SIZE).for_each(&mut *touch);
        }
    }
}
