//! The instructions that have a place of their own.
//!
//! Owns: where the kernel begins a handler and where a handler returns to; the stub of which all
//! others are copies.
//! Invariants: the first two pieces and the stub are where `gate.rs` says. A stub changes nothing
//! that a system call does not: rcx and r11 are as the kernel leaves them.

use crate::calls::on_signal;
use crate::gate::{RETURNS_AT, Return, STUBS_AT};
use core::arch::global_asm;
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
