//! The system calls that are not caught: those of the code in one section.
//!
//! Owns: that section. Syscall User Dispatch lets the calls of one range of addresses pass. A
//! caught call is made from here too: its thread goes on at [`resume`] or one of its kin, with its
//! registers as they were, on its own stack, so that signals, jumps out of handlers and restarts
//! are as without us.
//! Invariants: the code here changes no register that the kernel would keep, and of the stack only
//! what is below the red zone.
//!
//! ```text
//! rsp ──> address to go on at
//!         128 bytes, the red zone of the code that made the call
//! ```

use super::thread::{CAUGHT, HOLD, Thread, VFORK_DEPTH, VFORKS};
use libc::{c_int, c_long};
use std::arch::naked_asm;
use std::ffi::c_void;

/// Code that is not called: a thread is made to go on there.
pub(super) type Code = unsafe extern "C" fn();

/// Where code begins.
pub(super) fn address_of(code: Code) -> usize {
    code as *const () as usize
}

/// Bytes below the stack pointer that belong to a function without a frame.
pub(super) const RED_ZONE: usize = 128;

unsafe extern "C" {
    #[link_name = "__start_overspill_calls"]
    static FIRST: u8;
    #[link_name = "__stop_overspill_calls"]
    static END: u8;
}

/// Where calls pass: the first address, and bytes.
fn section() -> (usize, usize) {
    let (first, end) = (&raw const FIRST, &raw const END);
    (first.addr(), end.addr() - first.addr())
}

/// Makes a system call; returns what the kernel does.
///
/// # Safety
/// The call's own contract.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(crate) unsafe extern "C" fn call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "ret",
    )
}

/// What a signal handler of ours returns to.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn returns() {
    // The section ends after the address that a call returns to.
    naked_asm!("mov rax, {number}", "syscall", "ud2", number = const libc::SYS_rt_sigreturn)
}

/// The call, with the address to go on at on top of the stack and the red zone above it.
macro_rules! syscall_above_red_zone {
    () => {
        ".cfi_startproc
         .cfi_def_cfa rsp, 136
         .cfi_offset rip, -136
         syscall"
    };
}

/// Loads the address of the thread's state into rcx, which a call changes in any case.
macro_rules! load_state {
    () => {
        "mov rcx, qword ptr [rip + overspill_caught@gottpoff]
         mov rcx, qword ptr fs:[rcx]"
    };
}

/// Ends the thread's hold and goes on at the address, with the red zone as it was.
macro_rules! let_go_and_return {
    () => {
        concat!(
            load_state!(),
            "
         mov rcx, qword ptr [rcx + {hold}]
         mov qword ptr [rcx], 0
         ret 128"
        )
    };
}

/// Makes the call that is in the registers, ends the thread's hold, and goes on.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn resume() {
    naked_asm!(
        syscall_above_red_zone!(),
        ".globl overspill_after_resume",
        ".hidden overspill_after_resume",
        "overspill_after_resume:",
        let_go_and_return!(),
        ".cfi_endproc",
        hold = const HOLD,
    )
}

unsafe extern "C" {
    static overspill_after_resume: u8;
}

/// Where a call of [`resume`] has just been made.
pub(super) fn after_resume() -> usize {
    (&raw const overspill_after_resume).addr()
}

/// As [`resume`], for a call with two changed arguments: gives the program back its own, which are
/// below its address.
///
/// ```text
/// rsp ──> third argument · second argument · address to go on at · red zone
/// ```
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn resume_cut() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rsp, 152",
        ".cfi_offset rip, -136",
        "syscall",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        let_go_and_return!(),
        ".cfi_endproc",
        hold = const HOLD,
    )
}

/// As [`resume`], for a call that makes a child with a stack of its own: the child goes on at the
/// address below that stack.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn resume_with_child() {
    naked_asm!(
        syscall_above_red_zone!(),
        "test rax, rax",
        "jz 2f",
        "ret 128",
        "2:",
        "jmp [rsp - 8]",
        ".cfi_endproc",
    )
}

/// As [`resume_with_child`], for a child that has this thread's memory and thread-local storage
/// until it executes another program; its calls are caught too.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn resume_with_sharing_child() {
    naked_asm!(
        syscall_above_red_zone!(),
        "test rax, rax",
        "jz 2f",
        // The child may have ended while its calls passed.
        load_state!(),
        "mov byte ptr [rcx], {caught}",
        "ret 128",
        "2:",
        "sub rsp, 8",
        "call {catch}",
        "ret",
        ".cfi_endproc",
        catch = sym catch_as_child,
        caught = const CAUGHT,
    )
}

/// As above, for vfork, whose child has this thread's stack as well and overwrites what is below
/// its top.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn resume_vfork() {
    naked_asm!(
        "syscall",
        load_state!(),
        "mov r11, qword ptr [rcx + {depth}]",
        "mov r11, qword ptr [rcx + {vforks} + r11 * 8 - 8]",
        "test rax, rax",
        "jz 2f",
        "dec qword ptr [rcx + {depth}]",
        "mov byte ptr [rcx], {caught}",
        "lea rsp, [rsp + 136]",
        "jmp r11",
        "2:",
        "mov qword ptr [rsp], r11",
        "call {catch}",
        "ret 128",
        depth = const VFORK_DEPTH,
        vforks = const VFORKS,
        catch = sym catch_as_child,
        caught = const CAUGHT,
    )
}

/// Has this process's calls caught with the state of its thread-local storage. Returns 0 and
/// changes no other register but rcx and r11.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
unsafe extern "C" fn catch_as_child() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "mov eax, {prctl}",
        "mov edi, {dispatch}",
        "mov esi, {on}",
        "lea rdx, [rip + __start_overspill_calls]",
        "lea r10, [rip + __stop_overspill_calls]",
        "sub r10, rdx",
        "mov r8, qword ptr [rip + overspill_caught@gottpoff]",
        "mov r8, qword ptr fs:[r8]",
        "syscall",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "xor eax, eax",
        "ret",
        prctl = const libc::SYS_prctl,
        dispatch = const PR_SET_SYSCALL_USER_DISPATCH,
        on = const ON,
    )
}

/// Goes on with a handler of the program: on its stack, with its mask, and with the arguments of a
/// handler. `stack` points to its return address.
///
/// # Safety
/// `stack` is what a kernel would leave to `handler`; nothing on this thread's stack is needed
/// again.
#[unsafe(naked)]
#[unsafe(link_section = "overspill_calls")]
pub(super) unsafe extern "C" fn enter(
    stack: usize,
    signal: c_int,
    info: usize,
    context: usize,
    handler: usize,
    mask: *const u64,
) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        "mov ebx, esi",
        "mov r12, rdx",
        "mov r13, rcx",
        "mov r14, r8",
        "mov eax, {sigprocmask}",
        "mov edi, {how}",
        "mov rsi, r9",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "mov edi, ebx",
        "mov rsi, r12",
        "mov rdx, r13",
        "xor eax, eax",
        "jmp r14",
        sigprocmask = const libc::SYS_rt_sigprocmask,
        how = const libc::SIG_SETMASK,
    )
}

// linux/prctl.h
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const ON: c_int = 1;

/// Has the calling thread's calls caught where `thread` says so.
///
/// # Errors
/// The errno of prctl.
pub(super) fn catch(thread: *const Thread) -> Result<(), c_int> {
    let (first, len) = section();
    let (option, on) = (PR_SET_SYSCALL_USER_DISPATCH as usize, ON as usize);
    // SAFETY: the selector is the first byte of the state, which outlives the thread.
    match unsafe { call(libc::SYS_prctl, option, on, first, len, thread.addr(), 0) } {
        0 => Ok(()),
        error => Err(-error as c_int),
    }
}

/// Registers a stack for signals; returns the kernel's answer.
pub(super) fn set_signal_stack(bottom: *mut c_void, bytes: usize) -> isize {
    let stack = libc::stack_t { ss_sp: bottom, ss_flags: 0, ss_size: bytes };
    // SAFETY: memory that only this thread's signals use.
    unsafe { call(libc::SYS_sigaltstack, (&raw const stack).addr(), 0, 0, 0, 0, 0) }
}
