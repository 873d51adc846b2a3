//! Address hints: addresses that a program asks for without MAP_FIXED.
//!
//! The managed range has a fixed place, so hints are ignored, and most programs take what they get.
//! Some want one of a few places (Java's ZGC): they unmap what they got and ask again, a hundred
//! thousand times. After a number of these, their reservations are left to the kernel, which
//! follows hints.
//! Rejected: following all hints. Other heaps try in vain and take what they get (Java's G1, V8),
//! and they are paged.

use libc::c_int;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Reservations in a row that were unmapped at once. G1 tries about thirty.
const PATIENCE: u32 = 128;

static IN_VAIN: AtomicU32 = AtomicU32::new(0);
/// Address of the last reservation with an ignored hint; 0 once it was unmapped.
static LAST: AtomicUsize = AtomicUsize::new(0);

fn is_reservation(hint: usize, prot: c_int) -> bool {
    hint != 0 && prot == libc::PROT_NONE
}

/// Returns true if a mapping must be at the address that the program asks for.
pub(crate) fn insists(hint: usize, prot: c_int) -> bool {
    is_reservation(hint, prot) && IN_VAIN.load(Relaxed) >= PATIENCE
}

/// Notes a mapping at `address`, whatever its hint.
pub(crate) fn not_heeded(hint: usize, prot: c_int, address: usize) {
    if is_reservation(hint, prot) && LAST.swap(address, Relaxed) != 0 {
        IN_VAIN.store(0, Relaxed);
    }
}

/// Notes that the mapping at `address` was unmapped.
pub(crate) fn given_back(address: usize) {
    if LAST.compare_exchange(address, 0, Relaxed, Relaxed).is_ok() {
        IN_VAIN.fetch_add(1, Relaxed);
    }
}
