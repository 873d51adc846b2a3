//! One system call, on each processor.
//!
//! Owns: the instruction. This file is part of both images.
//! Not here: which calls there are.

use core::arch::asm;

/// Makes a system call. The result is an error from -4095 to -1.
///
/// # Safety
/// What the call does to memory is what its caller says it may: whatever the arguments name as the
/// image's own is borrowed for the time of the call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the caller vouches for memory; the instruction changes rax, rcx and r11 alone.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1],
            in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call. The result is an error from -4095 to -1.
///
/// # Safety
/// As on the other processor.
#[cfg(target_arch = "aarch64")]
pub unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the caller vouches for memory; the instruction changes x0 alone.
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") a[0] as isize => result, in("x1") a[1],
            in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}
