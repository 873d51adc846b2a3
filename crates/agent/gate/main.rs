//! The gate's image: what a program's threads run through on their way into the kernel.
//!
//! Owns: the way in ([`entry`]): while the gate is shut, the kernel sends SIGSYS for every system
//! call (Syscall User Dispatch, Linux 5.11); what the call is ([`calls`]), what it touches
//! ([`holds`]), signals ([`signals`], [`frames`]) and children ([`children`]).
//! Invariants: all is done on the thread's own stack for signals, with all signals blocked but
//! those that a touch can raise; what is the thread's lies at that stack's end ([`slots`]). No
//! libc, no thread-local storage of the program's, nothing of the program written but what the
//! call writes, and the frames of its own signals. A call is made once: never again after EFAULT,
//! which would lose data. A thread that waits in the kernel waits in a stub, not in a handler, and
//! if a signal comes there it is shown where the program's own instruction is.
//! Not here: shutting and opening the gate, which is done from outside (`guest`).
//! Rejected: rewriting system call instructions, which takes page zero, or changes code unseen;
//! making calls from the handler, in which no signal could come, and no thread be cancelled.
#![no_std]
#![no_main]
#![no_builtins]

mod calls;
mod children;
mod entry;
mod frames;
#[path = "../src/gate.rs"]
#[expect(dead_code, reason = "some words are the front's alone")]
mod gate;
mod holds;
mod kernel;
mod letters;
mod memory;
mod place;
#[path = "../payload/raw.rs"]
mod raw;
mod shut;
mod signals;
mod slots;
mod touches;
mod transfers;
#[path = "../../calls/src/types.rs"]
#[expect(dead_code, reason = "calls have no names here")]
mod types;
#[path = "../../calls/src/walk.rs"]
mod walk;
#[path = "../src/words.rs"]
#[expect(dead_code, reason = "most words are the agent's")]
mod words;

unsafe extern "C" {
    /// There is none: a panic that can happen does not link.
    safe fn the_gate_must_not_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    the_gate_must_not_panic()
}
