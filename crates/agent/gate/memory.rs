//! The program's memory.
//!
//! Owns: reading and writing it where it may not be there.
//! Invariants: an address that leads nowhere is an error, as it is for the kernel: the handler of
//! SIGSEGV and SIGBUS knows the instructions here, and goes on behind them. A page that is out is
//! waited for.
//! Not here: whether it stays ([`crate::holds`]).

use crate::gate::Span;
use core::arch::{asm, naked_asm};
use core::mem::MaybeUninit;

/// Copies as far as there is memory. Returns how many bytes were not copied.
#[unsafe(naked)]
unsafe extern "C" fn copy_bytes(to: usize, from: usize, bytes: usize) -> usize {
    naked_asm!(
        "mov rcx, rdx",
        "overspill_gate_copies:",
        "rep movsb",
        "overspill_gate_copied:",
        "mov rax, rcx",
        "ret",
    )
}

/// Reads a byte. Returns 0 if it is there.
#[unsafe(naked)]
unsafe extern "C" fn read_byte(at: usize) -> usize {
    naked_asm!(
        "mov ecx, 1",
        "overspill_gate_touches:",
        "mov al, byte ptr [rdi]",
        "xor ecx, ecx",
        "jmp overspill_gate_copied",
    )
}

macro_rules! place {
    ($label:literal) => {{
        let place: usize;
        // SAFETY: an address is computed.
        unsafe { asm!(concat!("lea {}, [rip + ", $label, "]"), out(reg) place, options(nomem, nostack)) };
        place
    }};
}

/// If an instruction here has touched what is not there: where to go on.
pub fn mended(instruction: usize) -> Option<usize> {
    let known = [place!("overspill_gate_copies"), place!("overspill_gate_touches")];
    known.contains(&instruction).then(|| place!("overspill_gate_copied"))
}

/// Nothing is there.
#[derive(Clone, Copy)]
pub struct Fault;

/// Copies between the program's memory and ours; bytes that were not copied.
fn copy(to: usize, from: usize, bytes: usize) -> Result<(), Fault> {
    // SAFETY: of what is ours the callers below pass a reference's address and size; the rest is
    // the program's, and written because the program has asked for it.
    match unsafe { copy_bytes(to, from, bytes) } {
        0 => Ok(()),
        _ => Err(Fault),
    }
}

/// What may be read from any bytes.
///
/// # Safety
/// Every pattern of bits is a value.
pub unsafe trait Plain: Copy {}

// SAFETY: integers, and structures of them.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: as above.
unsafe impl Plain for crate::gate::Action {}

/// Reads a value.
pub fn read<T: Plain>(at: usize) -> Result<T, Fault> {
    let mut value = MaybeUninit::<T>::uninit();
    copy(value.as_mut_ptr() as usize, at, size_of::<T>())?;
    // SAFETY: all its bytes were written, and any are a value.
    Ok(unsafe { value.assume_init() })
}

/// Writes a value.
pub fn write<T: Plain>(at: usize, value: &T) -> Result<(), Fault> {
    copy(at, core::ptr::from_ref(value) as usize, size_of::<T>())
}

/// Copies bytes from one place to another: to what is the program's, or to the thread's own stack.
///
/// # Safety
/// Nothing of ours is borrowed there.
pub unsafe fn move_bytes(to: usize, from: usize, bytes: usize) -> Result<(), Fault> {
    copy(to, from, bytes)
}

/// Touches a byte; false if it cannot be read.
pub fn touch(at: usize) -> bool {
    // SAFETY: reading changes nothing of ours.
    unsafe { read_byte(at) == 0 }
}

impl Span {
    /// So many bytes from an address on; none if that is nowhere.
    pub fn of(start: usize, bytes: usize) -> Self {
        Self { start: start as u64, end: (start as u64).saturating_add(bytes as u64) }
    }
}
