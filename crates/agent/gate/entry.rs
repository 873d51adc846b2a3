//! The instructions that have a place of their own.
//!
//! Owns: where the kernel begins a handler and where a handler returns to; the stub of which all
//! others are copies; the way of a new thread.
//! Invariants: the first two pieces and the stub are where `gate.rs` says. A stub changes nothing
//! that a system call does not: rcx and r11 are as the kernel leaves them.

use crate::calls::on_signal;
use crate::children::begin_child;
use crate::gate::{DOOR_AT, RETURNS_AT, Return, STUBS_AT};
use core::arch::{asm, global_asm, naked_asm};
use core::mem::offset_of;

/// From a stub to its return.
const AWAY: usize = RETURNS_AT - STUBS_AT;

global_asm!(
    ".pushsection .text.entry, \"ax\"",
    ".globl overspill_gate_entry",
    "overspill_gate_entry:",
    "syscall",
    "ud2",
    ".balign 16, 0xcc",
    "jmp {on_signal}",
    ".balign 16, 0xcc",
    "mov eax, 15", // rt_sigreturn
    "syscall",
    "ud2",
    ".balign 64, 0xcc",
    "overspill_gate_stub:",
    "syscall",
    "mov rcx, qword ptr [rip + overspill_gate_stub + {to}]",
    "mov qword ptr [rip + overspill_gate_stub + {held}], 0",
    "jmp rcx",
    ".balign 32, 0xcc",
    "syscall",
    "jmp qword ptr [rip + overspill_gate_stub + {door}]",
    ".balign 64, 0xcc",
    "syscall",
    "mov rdi, qword ptr [rip + overspill_gate_stub + {first}]",
    "mov rsi, qword ptr [rip + overspill_gate_stub + {first} + 8]",
    "mov rdx, qword ptr [rip + overspill_gate_stub + {first} + 16]",
    "mov r10, qword ptr [rip + overspill_gate_stub + {first} + 24]",
    "mov r8, qword ptr [rip + overspill_gate_stub + {first} + 32]",
    "mov r9, qword ptr [rip + overspill_gate_stub + {first} + 40]",
    "mov rcx, qword ptr [rip + overspill_gate_stub + {to}]",
    "mov qword ptr [rip + overspill_gate_stub + {held}], 0",
    "jmp rcx",
    ".popsection",
    on_signal = sym on_signal,
    to = const AWAY + offset_of!(Return, to),
    held = const AWAY + offset_of!(Return, held),
    door = const AWAY + offset_of!(Return, door),
    first = const AWAY + offset_of!(Return, arguments),
);

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

/// Goes on with a context.
///
/// # Safety
/// It is one that the kernel has made for this thread, or a copy of one, and lies on this thread's
/// stack for signals.
#[unsafe(naked)]
pub unsafe extern "C" fn leave(context: usize) -> ! {
    naked_asm!("mov rsp, rdi", "mov eax, 15", "syscall", "ud2")
}

/// Makes `clone` or `clone3`, by number, for a child that has this memory and a stack of its own,
/// at whose top the address of its context lies. Returns what the kernel says to the parent.
///
/// # Safety
/// The stack is nobody else's, and the context one to leave with.
#[unsafe(naked)]
pub unsafe extern "C" fn clone_raw(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> isize {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2: pop rdi",
        "xor ebp, ebp",
        "call {begin_child}",
        "ud2",
        begin_child = sym begin_child,
    )
}
