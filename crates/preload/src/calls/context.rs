//! The registers that a signal has interrupted.
//!
//! Owns: the layout of a signal's frame as the kernel makes it, and its copies. x86-64.
//! Built on: `arch/x86/include/asm/sigframe.h` and `uapi/asm/sigcontext.h`: a return address, the
//! context, the description of the signal; and above it the other registers (xsave), aligned to 64.

use libc::{c_int, siginfo_t, stack_t, ucontext_t};

use super::thread::Mask;

/// Bytes of the extended registers that are always there.
pub(super) const LEGACY_BYTES: usize = 512;

/// The context as the kernel makes it; libc's has more room for signals.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Context {
    flags: u64,
    link: u64,
    pub(super) stack: stack_t,
    registers: [i64; 23],
    /// The registers that xsave writes.
    pub(super) extended: u64,
    reserved: [u64; 8],
    pub(super) mask: Mask,
}

const _: () = assert!(size_of::<Context>() == 304);
const _: () = assert!(
    std::mem::offset_of!(Context, registers) == std::mem::offset_of!(ucontext_t, uc_mcontext)
);

/// A signal's frame, without the extended registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) returns_to: usize,
    pub(super) context: Context,
    pub(super) info: siginfo_t,
}

const _: () = assert!(size_of::<Frame>() == 440);

impl Context {
    pub(super) fn register(&self, name: c_int) -> usize {
        self.registers[name as usize] as usize
    }

    pub(super) fn set_register(&mut self, name: c_int, value: usize) {
        self.registers[name as usize] = value as i64;
    }

    /// The arguments of a system call.
    pub(super) fn arguments(&self) -> [usize; 6] {
        use libc::{REG_R8, REG_R9, REG_R10, REG_RDI, REG_RDX, REG_RSI};
        [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(|name| self.register(name))
    }

    /// What the call returns to the program.
    pub(super) fn set_result(&mut self, result: isize) {
        self.set_register(libc::REG_RAX, result as usize);
    }

    /// Bytes of the extended registers.
    ///
    /// # Safety
    /// `extended` is 0 or points to what the kernel wrote.
    pub(super) unsafe fn extended_bytes(&self) -> usize {
        // struct fpx_sw_bytes at the end of the part that was always there.
        const SOFTWARE: usize = 464;
        const MAGIC: u32 = 0x4650_5853;
        if self.extended == 0 {
            return 0;
        }
        let software = (self.extended as usize + SOFTWARE) as *const u32;
        // SAFETY: contract; the kernel writes at least 512 bytes.
        let (magic, bytes) = unsafe { (software.read(), software.add(1).read()) };
        if magic == MAGIC { bytes as usize } else { LEGACY_BYTES }
    }
}
