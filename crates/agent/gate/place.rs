//! Where the gate is.

use crate::gate::DOOR_AT;
use core::arch::asm;

/// Where the gate's memory starts.
pub fn base() -> usize {
    let base;
    // SAFETY: an address is computed.
    unsafe { asm!("lea {}, [rip + overspill_gate_entry]", out(reg) base, options(nomem, nostack)) };
    base
}

/// Where the door is.
pub fn door() -> usize {
    base() + DOOR_AT
}
