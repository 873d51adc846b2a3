//! Programs that filter their own system calls.
//!
//! Owns: noticing it, at `prctl` and `syscall`. A program's filter allows what it and its malloc
//! are known to need: of the pager's calls on its threads only futex. From then on memory calls run
//! in the pager's process. Not caught: filters installed by a system call made without libc.

use crate::cpus;
use crate::fork;
use crate::real::fail;
use libc::{c_int, c_long, c_ulong};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

static FILTERED: AtomicBool = AtomicBool::new(false);

/// Returns true once this program has asked for a filter.
pub(crate) fn is_filtered() -> bool {
    FILTERED.load(Relaxed)
}

/// Calls `install`, which is to install a filter. Programs also call it with a bad address, to
/// find out whether they could.
fn filtered_by(install: impl FnOnce() -> c_long) -> c_long {
    cpus::before_a_filter();
    let was_filtered = FILTERED.swap(true, Relaxed);
    let result = install();
    if result < 0 {
        FILTERED.store(was_filtered, Relaxed);
    }
    result
}

/// Operations of seccomp(2) that install a filter; the others ask.
const INSTALLS: [c_long; 2] =
    [libc::SECCOMP_SET_MODE_STRICT as c_long, libc::SECCOMP_SET_MODE_FILTER as c_long];

/// Makes a system call.
///
/// # Safety
/// The call's own contract.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, args: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: passed on.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call.
///
/// # Safety
/// The call's own contract.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: c_long, args: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: passed on.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") args[0] => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5], options(nostack));
    }
    result
}

/// As libc's: returns -1 and sets errno if the kernel returns a negative number.
///
/// # Safety
/// The call's own contract.
unsafe fn checked(number: c_long, args: [c_long; 6]) -> c_long {
    // SAFETY: passed on.
    let result = unsafe { call(number, args) };
    if (-4095..0).contains(&result) { c_long::from(fail(-result as c_int)) } else { result }
}

/// syscall(2). Arguments that were not given are leftovers of registers and stack, which the kernel
/// ignores.
///
/// # Safety
/// The call's own contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_seccomp && INSTALLS.contains(&a) {
        // SAFETY: passed on.
        return filtered_by(|| unsafe { checked(number, [a, b, c, d, e, f]) });
    }
    cpus::before(number, a);
    if is_fork(number, a, b) {
        // SAFETY: passed on.
        return fork::fork_plainly(|| unsafe { checked(number, [a, b, c, d, e, f]) as c_int })
            .into();
    }
    // SAFETY: passed on.
    unsafe { checked(number, [a, b, c, d, e, f]) }
}

/// Returns true for a call that copies memory and returns in both processes.
fn is_fork(number: c_long, flags: c_long, stack: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return true;
    }
    number == libc::SYS_clone && flags & c_long::from(libc::CLONE_VM) == 0 && stack == 0
}

/// prctl(2).
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
    e: c_ulong,
) -> c_int {
    let [b, c, d, e] = [b, c, d, e].map(|arg| arg as c_long);
    // SAFETY: passed on.
    let pass = || unsafe { checked(libc::SYS_prctl, [c_long::from(option), b, c, d, e, 0]) };
    match option {
        libc::PR_SET_SECCOMP => filtered_by(pass) as c_int,
        _ => pass() as c_int,
    }
}
