//! Addresses that a program asks for without MAP_FIXED.
//!
//! The managed range is where it is, so they are not heeded, and most programs take what they get.
//! Some want one of a few places (Java's ZGC): they unmap what they got and ask again, a hundred
//! thousand times. After some of these their reservations are left to the kernel, which heeds what
//! they ask.
//! Rejected: heeding all. Other heaps ask in vain and are content (Java's G1, V8), and they are
//! paged.

use libc::c_int;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Reservations in a row that were given back at once. G1 tries some thirty.
const PATIENCE: u32 = 128;

static IN_VAIN: AtomicU32 = AtomicU32::new(0);
/// Where the last reservation is whose hint was not heeded; 0 when it was given back.
static LAST: AtomicUsize = AtomicUsize::new(0);

fn is_reservation(hint: usize, prot: c_int) -> bool {
    hint != 0 && prot == libc::PROT_NONE
}

/// True if a mapping is to be where the program asks for.
pub(crate) fn insists(hint: usize, prot: c_int) -> bool {
    is_reservation(hint, prot) && IN_VAIN.load(Relaxed) >= PATIENCE
}

/// A mapping is at `address`, wherever it was asked for.
pub(crate) fn not_heeded(hint: usize, prot: c_int, address: usize) {
    if is_reservation(hint, prot) && LAST.swap(address, Relaxed) != 0 {
        IN_VAIN.store(0, Relaxed);
    }
}

/// The mapping at `address` is given back.
pub(crate) fn given_back(address: usize) {
    if LAST.compare_exchange(address, 0, Relaxed, Relaxed).is_ok() {
        IN_VAIN.fetch_add(1, Relaxed);
    }
}
