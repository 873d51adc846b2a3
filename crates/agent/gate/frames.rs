//! Frames of signals: the kernel's, on the thread's slot, and the program's, where it wants them.
//!
//! Owns: what the kernel puts on a stack (`arch/x86/include/uapi/asm/sigcontext.h`, `ucontext.h`;
//! `arch/x86/kernel/signal_64.c`), and copying it there and back.
//! Invariants: the state of the floating point unit goes along, as large as the kernel says it is.
//! What lies on the program's stack is as the kernel would have made it.
//! Not here: which signal, and what it does ([`crate::signals`]).

use crate::memory::{self, Fault};
use core::mem::offset_of;

/// Below the stack pointer a function may use so much.
const RED_ZONE: usize = 128;
/// In the state of the floating point unit: how large it is, if it is more than the oldest.
const MAGIC_AT: usize = 464;
const MAGIC: u32 = 0x4650_5853;
const OLDEST_STATE_BYTES: usize = 512;
const STATE_ALIGNMENT: usize = 64;
/// Of what the program finds on its stack: where to return to, context, information.
const CONTEXT_AT: usize = 8;
const INFO_AT: usize = CONTEXT_AT + size_of::<Context>();
const FRAME_BYTES: usize = INFO_AT + size_of::<Info>();
/// In a context: the stack for signals, and the registers.
const STACK_AT: usize = offset_of!(Context, stack);
const REGISTERS_AT: usize = offset_of!(Context, r8);
const REGISTERS_BYTES: usize = offset_of!(Context, state) - REGISTERS_AT;
/// Trap, direction, resume.
const FLAGS_OFF: u64 = 0x1_0500;

/// `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Context {
    pub flags: u64,
    pub link: u64,
    pub stack: u64,
    pub stack_flags: u64,
    pub stack_bytes: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub eflags: u64,
    pub segments: u64,
    pub error: u64,
    pub trap: u64,
    pub old_mask: u64,
    pub address: u64,
    /// Where the state of the floating point unit is; 0 for the initial one.
    pub state: u64,
    pub reserved: [u64; 8],
    pub mask: u64,
}

/// `siginfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub signal: i32,
    pub error: i32,
    pub code: i32,
    pub unused: i32,
    pub address: u64,
    pub rest: [u64; 13],
}

const _: () = assert!(size_of::<Context>() == 304 && size_of::<Info>() == 128);

impl Context {
    /// The arguments of a call.
    pub fn arguments(&self) -> [usize; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9].map(|word| word as usize)
    }

    /// Puts other arguments in their place.
    pub fn set_arguments(&mut self, arguments: [usize; 6]) {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments.map(|word| word as u64);
        (self.rdi, self.rsi, self.rdx) = (rdi, rsi, rdx);
        (self.r10, self.r8, self.r9) = (r10, r8, r9);
    }

    /// Ends the call that it stands behind.
    pub fn returns(&mut self, result: isize) {
        self.rax = result as u64;
        (self.rcx, self.r11) = (self.rip, self.eflags);
    }
}

/// How large a state is.
fn state_bytes(state: u64) -> Result<usize, Fault> {
    if state == 0 {
        return Ok(0);
    }
    let [magic, bytes] = memory::read::<[u32; 2]>(state as usize + MAGIC_AT)?;
    Ok(if magic == MAGIC { bytes as usize } else { OLDEST_STATE_BYTES })
}

/// Copies the state of a context below an address. Returns where.
///
/// # Safety
/// Below it nothing of ours is borrowed.
unsafe fn copy_state(context: &Context, below: usize) -> Result<usize, Fault> {
    let bytes = state_bytes(context.state)?;
    let at = (below.wrapping_sub(bytes)) & !(STATE_ALIGNMENT - 1);
    if bytes > 0 {
        // SAFETY: the caller vouches for it.
        unsafe { memory::move_bytes(at, context.state as usize, bytes) }?;
    }
    Ok(at)
}

/// Copies a context to another place, with what is to be different there.
///
/// # Safety
/// Nothing of ours is borrowed there.
unsafe fn copy_context(context: &Context, to: usize, state: usize) -> Result<(), Fault> {
    let state = if context.state == 0 { 0 } else { state as u64 };
    let from = core::ptr::from_ref(context) as usize;
    // SAFETY: the caller vouches for it.
    unsafe { memory::move_bytes(to, from, size_of::<Context>()) }?;
    memory::write(to + offset_of!(Context, state), &state)
}

/// Copies a context and its state below an address. Returns where the context is.
///
/// # Safety
/// Below it nothing of ours is borrowed, and so much is mapped.
pub unsafe fn copy_below(context: &Context, below: usize) -> Result<usize, Fault> {
    // SAFETY: the caller vouches for it.
    let state = unsafe { copy_state(context, below) }?;
    let at = (state - size_of::<Context>() - size_of::<Info>()) & !15;
    // SAFETY: as above.
    unsafe { copy_context(context, at, state) }?;
    Ok(at)
}

/// What a handler of the program's is called with.
pub struct Delivery {
    pub signal: usize,
    pub handler: u64,
    pub restorer: u64,
    /// What the program finds in its context.
    pub mask: u64,
    /// The program's stack for signals, as the context is to say it.
    pub stack: [u64; 3],
    /// Where the stack pointer is to start, if not where it is.
    pub stack_end: Option<u64>,
}

/// Puts a frame onto the program's stack, and has the kernel's context go on in the handler.
pub fn deliver(context: &mut Context, info: &Info, delivery: &Delivery) -> Result<(), Fault> {
    let below = match delivery.stack_end {
        Some(end) => end as usize,
        None => (context.rsp as usize).wrapping_sub(RED_ZONE),
    };
    // SAFETY: that is the program's stack.
    let state = unsafe { copy_state(context, below) }?;
    let frame = (state.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(8);
    let (seen, info_at) = (frame + CONTEXT_AT, core::ptr::from_ref(info) as usize);
    memory::write(frame, &delivery.restorer)?;
    // SAFETY: as above.
    unsafe { copy_context(context, seen, state) }?;
    memory::write(seen + offset_of!(Context, mask), &delivery.mask)?;
    memory::write(seen + STACK_AT, &delivery.stack)?;
    // SAFETY: as above.
    unsafe { memory::move_bytes(frame + INFO_AT, info_at, size_of::<Info>()) }?;
    (context.rsp, context.rip) = (frame as u64, delivery.handler);
    (context.rdi, context.rax) = (delivery.signal as u64, 0);
    (context.rsi, context.rdx) = ((frame + INFO_AT) as u64, seen as u64);
    context.eflags &= !FLAGS_OFF;
    context.state = 0;
    Ok(())
}

/// Has the kernel's context go on as the one on the program's stack says, to which its handler has
/// returned. Returns the program's stack for signals, as it is there.
pub fn go_back(context: &mut Context) -> Result<[u64; 3], Fault> {
    let seen = context.rsp as usize;
    let stack = memory::read(seen + STACK_AT)?;
    let flags = memory::read(seen + offset_of!(Context, flags))?;
    let mask = memory::read(seen + offset_of!(Context, mask))?;
    let state = memory::read::<u64>(seen + offset_of!(Context, state))?;
    let (room, bytes) = (state_bytes(context.state)?, state_bytes(state)?);
    let registers = (&raw mut context.r8) as usize;
    // SAFETY: the registers of the context, which is borrowed here.
    unsafe { memory::move_bytes(registers, seen + REGISTERS_AT, REGISTERS_BYTES) }?;
    (context.flags, context.mask) = (flags, mask);
    if bytes == 0 || bytes > room {
        context.state = state;
    } else {
        // SAFETY: the kernel has put a state of that size there, which nothing else has borrowed.
        unsafe { memory::move_bytes(context.state as usize, state as usize, bytes) }?;
    }
    Ok(stack)
}
