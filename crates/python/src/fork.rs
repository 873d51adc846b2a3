//! What a child made by fork must not do.
//!
//! Owns: who may end a thing ([`Own`]); the words with which a child ends that touches a region.
//! Invariants: only the process that made a thing uses or drops it: its threads are there alone,
//! and a child's copy of its tables would go on with the same slots.
//! Rejected: sharing regions with children, as `overspill run` does: it takes a session that is
//! there before the first allocation.

use crate::error;
use crate::region::leave_to_parent;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A thing, and the process that made it.
pub(crate) struct Own<T> {
    thing: ManuallyDrop<T>,
    maker: u32,
}

impl<T> Own<T> {
    pub(crate) fn new(thing: T) -> Self {
        Self { thing: ManuallyDrop::new(thing), maker: std::process::id() }
    }

    /// The thing, or an error in a child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.maker == std::process::id() {
            return Ok(&self.thing);
        }
        Err(error(format!(
            "this was made by process {}; a child made by fork cannot use it: start children by \
             multiprocessing.set_start_method(\"spawn\"), or the whole program by `overspill run`",
            self.maker
        )))
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.maker == std::process::id() {
            // SAFETY: dropped once, here. In a child it is left: its threads are not there, and its
            // memory is not the child's.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}

/// Where this process's parents had regions when it was forked, in order; null if it was not. Never
/// freed: a signal handler reads it.
static INHERITED: AtomicPtr<Vec<Range<usize>>> = AtomicPtr::new(std::ptr::null_mut());

const WORDS: &[u8] = b"overspill: this process was made by fork, and touched memory that only its parent has: \
start children by multiprocessing.set_start_method(\"spawn\"), or the whole program by `overspill run`\n";

fn inherited() -> &'static [Range<usize>] {
    // SAFETY: null, or a box that is never freed; Acquire is for the Release below.
    unsafe { INHERITED.load(Acquire).as_ref() }.map_or(&[], Vec::as_slice)
}

/// True if a region of a parent had the address.
pub(crate) fn is_inherited(address: usize) -> bool {
    let after = inherited().partition_point(|region| region.start <= address);
    after > 0 && inherited()[after - 1].contains(&address)
}

/// Leaves the parent's regions to the parent, and makes the child say why it ends, should it touch
/// one.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    let mut regions = leave_to_parent();
    if regions.is_empty() {
        return;
    }
    regions.extend_from_slice(inherited());
    regions.sort_unstable_by_key(|region| region.start);
    INHERITED.store(Box::into_raw(Box::new(regions)), Release);
    // SAFETY: a zeroed sigaction is a valid one; the handler is made for signals.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = explain as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
    }
}

/// Says why, if the address was a region's. The touch is repeated when this returns, and the signal
/// then has its default effect.
extern "C" fn explain(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    if is_inherited(address) {
        // SAFETY: a plain system call. If it fails there is nowhere to say so.
        unsafe { libc::write(libc::STDERR_FILENO, WORDS.as_ptr().cast(), WORDS.len()) };
    }
}
