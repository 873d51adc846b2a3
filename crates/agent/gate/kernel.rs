//! The calls that the gate makes for itself, and numbers of those that it knows.
//!
//! Owns: the numbers on x86-64, from `arch/x86/entry/syscalls/syscall_64.tbl`.
//! Not here: calls of the program that are made as they are ([`crate::calls`]).

use crate::gate::{Action, PASSES_AT, RETURNS_AT};
use crate::place::base;
use crate::raw;
use crate::words::PAGE_BYTES;
use core::sync::atomic::AtomicU32;

pub mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const FSTAT: usize = 5;
    pub const POLL: usize = 7;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGRETURN: usize = 15;
    pub const IOCTL: usize = 16;
    pub const PREAD64: usize = 17;
    pub const PWRITE64: usize = 18;
    pub const READV: usize = 19;
    pub const WRITEV: usize = 20;
    pub const MADVISE: usize = 28;
    pub const SHMAT: usize = 30;
    pub const SENDTO: usize = 44;
    pub const RECVFROM: usize = 45;
    pub const GETSOCKOPT: usize = 55;
    pub const PREADV: usize = 295;
    pub const PWRITEV: usize = 296;
    pub const PREADV2: usize = 327;
    pub const PWRITEV2: usize = 328;
    pub const SCHED_YIELD: usize = 24;
    pub const MREMAP: usize = 25;
    pub const GETPID: usize = 39;
    pub const CLONE: usize = 56;
    pub const FORK: usize = 57;
    pub const VFORK: usize = 58;
    pub const EXECVE: usize = 59;
    pub const CLOSE: usize = 3;
    pub const EXIT: usize = 60;
    pub const WAIT4: usize = 61;
    pub const GETPPID: usize = 110;
    pub const RT_SIGPENDING: usize = 127;
    pub const RT_SIGSUSPEND: usize = 130;
    pub const SIGALTSTACK: usize = 131;
    pub const MLOCK: usize = 149;
    pub const PRCTL: usize = 157;
    pub const GETTID: usize = 186;
    pub const IO_SETUP: usize = 206;
    pub const IO_SUBMIT: usize = 209;
    pub const SET_TID_ADDRESS: usize = 218;
    pub const FUTEX: usize = 202;
    pub const TGKILL: usize = 234;
    pub const EXIT_GROUP: usize = 231;
    pub const WAITID: usize = 247;
    pub const PSELECT6: usize = 270;
    pub const PPOLL: usize = 271;
    pub const SET_ROBUST_LIST: usize = 273;
    pub const EPOLL_PWAIT: usize = 281;
    pub const SECCOMP: usize = 317;
    pub const EXECVEAT: usize = 322;
    pub const USERFAULTFD: usize = 323;
    pub const MLOCK2: usize = 325;
    pub const PKEY_MPROTECT: usize = 329;
    pub const RSEQ: usize = 334;
    pub const IO_URING_SETUP: usize = 425;
    pub const IO_URING_REGISTER: usize = 427;
    pub const CLONE3: usize = 435;
    pub const PROCESS_MADVISE: usize = 440;
    pub const EPOLL_PWAIT2: usize = 441;
    pub const MSEAL: usize = 462;
}

/// Flags of mremap(2).
pub const MREMAP_FIXED: usize = 2;
pub const MREMAP_DONTUNMAP: usize = 4;

pub const EPERM: isize = 1;
pub const ESRCH: isize = 3;
pub const E2BIG: isize = 7;
pub const EAGAIN: isize = 11;
pub const ENOMEM: isize = 12;
pub const EBUSY: isize = 16;
pub const EFAULT: isize = 14;
pub const EINVAL: isize = 22;
pub const ENOSYS: isize = 38;

/// Bytes of a set of signals.
pub const MASK_BYTES: usize = 8;
pub const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
pub const PR_SET_SECCOMP: usize = 22;
const PR_SYS_DISPATCH_ON: usize = 1;
const MAP_FIXED_PRIVATE_ANONYMOUS: usize = 0x32;
const PROT_READ_WRITE: usize = 3;
const PROT_READ_EXECUTE: usize = 5;
const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;
/// How long a word is waited for at a time.
const WORD_WAIT_NS: u64 = 20_000_000;
const USERFAULTFD_FLAGS: usize = 0o2_004_001;
const P_PID: usize = 1;
/// WNOHANG, WEXITED, __WALL, and WNOWAIT.
const WAIT_LOOK: usize = 0x4100_0005;
const WALL: usize = 0x4000_0000;
const ETIMEDOUT: isize = 110;

/// Makes a call of the program's, or one of ours that writes nothing of ours.
pub fn make(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: what the kernel writes is what the program has asked for, or nothing.
    unsafe { raw::call(number, arguments) }
}

pub fn this_task() -> u32 {
    make(number::GETTID, [0; 6]) as u32
}

pub fn this_process() -> u64 {
    make(number::GETPID, [0; 6]) as u64
}

/// The number of the parent, which changes with its end.
pub fn parent() -> isize {
    make(number::GETPPID, [0; 6])
}

pub fn yield_now() {
    make(number::SCHED_YIELD, [0; 6]);
}

/// Sends a signal to a thread of this process; with 0 only looks whether it is there.
pub fn send_signal(task: u32, signal: usize) -> isize {
    let process = this_process() as usize;
    make(number::TGKILL, [process, task as usize, signal, 0, 0, 0])
}

/// Makes an action the kernel's, or asks for the one it has.
pub fn action(signal: usize, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    let new = new.map_or(0, |new| core::ptr::from_ref(new) as usize);
    let old = old.map_or(0, |old| core::ptr::from_mut(old) as usize);
    make(number::RT_SIGACTION, [signal, new, old, MASK_BYTES, 0, 0])
}

/// Blocks more signals.
pub fn block(signals: u64) {
    let set = core::ptr::from_ref(&signals) as usize;
    make(number::RT_SIGPROCMASK, [0, set, 0, MASK_BYTES, 0, 0]);
}

/// Has the kernel run this thread's handlers on a stack.
pub fn signal_stack(start: usize, bytes: usize) {
    let stack = [start, 0, bytes];
    make(number::SIGALTSTACK, [stack.as_ptr() as usize, 0, 0, 0, 0, 0]);
}

/// Has all calls of this thread sent to the gate that do not come from there.
pub fn shut() {
    let [option, on] = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON];
    make(number::PRCTL, [option, on, base() + PASSES_AT, RETURNS_AT - PASSES_AT, 0, 0]);
}

/// Makes memory of the gate writable, and empty.
pub fn map_at(start: usize, bytes: usize) -> isize {
    let how = MAP_FIXED_PRIVATE_ANONYMOUS;
    make(number::MMAP, [start, bytes, PROT_READ_WRITE, how, usize::MAX, 0])
}

/// Makes it code.
pub fn make_code(start: usize, bytes: usize) -> isize {
    make(number::MPROTECT, [start, bytes, PROT_READ_EXECUTE, 0, 0, 0])
}

/// Waits while a word of shared memory has a value; false if it has after a while.
pub fn wait_for_word(word: &AtomicU32, value: u32) -> bool {
    let time = [0, WORD_WAIT_NS];
    let (at, time) = (core::ptr::from_ref(word) as usize, time.as_ptr() as usize);
    make(number::FUTEX, [at, FUTEX_WAIT, value as usize, time, 0, 0]) != -ETIMEDOUT
}

/// Wakes who waits for a word of shared memory to change.
pub fn wake_word(word: &AtomicU32) {
    make(number::FUTEX, [core::ptr::from_ref(word) as usize, FUTEX_WAKE, 1, 0, 0, 0]);
}

/// A userfaultfd of this address space, for its own touches; or an error.
pub fn userfaultfd() -> isize {
    make(number::USERFAULTFD, [USERFAULTFD_FLAGS, 0, 0, 0, 0, 0])
}

pub fn close(descriptor: isize) {
    make(number::CLOSE, [descriptor as usize, 0, 0, 0, 0, 0]);
}

/// True if a child has ended. It stays to be waited for.
pub fn has_ended(child: isize) -> bool {
    let mut info = [0u64; 16];
    let at = info.as_mut_ptr() as usize;
    let looked = make(number::WAITID, [P_PID, child as usize, at, WAIT_LOOK, 0, 0]);
    let [head, ..] = info;
    looked == 0 && head != 0
}

/// Waits for a child that has ended.
pub fn reap(child: isize) {
    make(number::WAIT4, [child as usize, 0, WALL, 0, 0, 0]);
}

pub fn exit() -> ! {
    loop {
        make(number::EXIT_GROUP, [127, 0, 0, 0, 0, 0]);
    }
}

/// The kernel keeps the page that an end lies in.
pub fn whole_pages(end: usize) -> usize {
    end.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}
