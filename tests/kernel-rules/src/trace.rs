//! ptrace, as a keeper uses it: SEIZE, INTERRUPT, look at registers, DETACH.
//!
//! Owns: a traced thread, which is let go when dropped.
//! Invariants: only the thread that has seized makes these calls, as the kernel wants it.
//! Not here: other machines than x86-64; their registers have other names.

use crate::memory::{Range, last_error};
use crate::until;
use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::{c_uint, c_void};
use std::mem::MaybeUninit;

/// `PTRACE_O_SUSPEND_SECCOMP` (<linux/ptrace.h>).
pub const SUSPEND_SECCOMP: usize = 1 << 21;

/// A thread that this one traces.
#[derive(Debug)]
pub struct Traced(Pid);

impl Traced {
    /// PTRACE_SEIZE with options.
    pub fn seize(pid: Pid, options: usize) -> Result<Self, Errno> {
        request(libc::PTRACE_SEIZE, pid, options).map(|()| Self(pid))
    }

    /// PTRACE_INTERRUPT.
    pub fn interrupt(&self) {
        request(libc::PTRACE_INTERRUPT, self.0, 0).expect("INTERRUPT of a traced thread");
    }

    /// It has stopped since it was last asked.
    pub fn has_stopped(&self) -> bool {
        let mut status = 0;
        // SAFETY: the status is a number of this function's own.
        let pid = unsafe {
            libc::waitpid(self.0.as_raw_pid(), &raw mut status, libc::__WALL | libc::WNOHANG)
        };
        pid > 0 && libc::WIFSTOPPED(status)
    }

    /// INTERRUPT, and waits for the stop.
    pub fn stop(&self) {
        self.interrupt();
        until("a thread that stops", || self.has_stopped());
    }

    /// Its registers at a stop.
    pub fn registers(&self) -> libc::user_regs_struct {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::uninit();
        request(libc::PTRACE_GETREGS, self.0, registers.as_mut_ptr() as usize).expect("registers");
        // SAFETY: the call has filled them.
        unsafe { registers.assume_init() }
    }

    /// Changes them.
    pub fn set_registers(&self, registers: &libc::user_regs_struct) {
        request(libc::PTRACE_SETREGS, self.0, std::ptr::from_ref(registers) as usize)
            .expect("registers of a stopped thread");
    }

    /// PTRACE_PEEKDATA at the start of a range.
    pub fn peek(&self, at: Range) -> Result<(), Errno> {
        let mut word = 0_u64;
        let (to, nowhere) = (&raw mut word as usize, at.start());
        // SAFETY: the kernel itself, unlike libc, writes the word to the last argument.
        let result = unsafe {
            libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, self.0.as_raw_pid(), nowhere, to)
        };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// PTRACE_DETACH from a stop.
    pub fn detach(self) {
        request(libc::PTRACE_DETACH, self.0, 0).expect("DETACH of a stopped thread");
    }
}

fn request(number: c_uint, pid: Pid, data: usize) -> Result<(), Errno> {
    let nothing = std::ptr::null_mut::<c_void>();
    // SAFETY: `data` is a number, or points to what the request wants; callers see to it.
    let result: i64 = unsafe { libc::ptrace(number, pid.as_raw_pid(), nothing, data) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// The registers' first: what a call returns, as a number with a sign.
pub fn result_in(registers: &libc::user_regs_struct) -> i64 {
    registers.rax.cast_signed()
}

/// Has the interrupted call made again when the thread goes on: its number back into the first
/// register, and back to the two bytes of the `syscall` instruction.
pub fn repeat_call(registers: &mut libc::user_regs_struct) {
    registers.rip -= 2;
    registers.rax = registers.orig_rax;
}
