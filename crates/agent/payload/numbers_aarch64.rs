//! Numbers of the system calls on AArch64.
//!
//! Owns: those that the agent makes, and what AUDIT calls this processor.
//! Source: `include/uapi/asm-generic/unistd.h`, `include/uapi/linux/audit.h`.

pub const AUDIT: u32 = 0xc000_00b7;
pub const IOCTL: usize = 29;
pub const CHDIR: usize = 49;
pub const CLOSE: usize = 57;
pub const PREAD64: usize = 67;
pub const PWRITE64: usize = 68;
pub const PPOLL: usize = 73;
pub const CAPSET: usize = 91;
pub const EXIT: usize = 93;
pub const EXIT_GROUP: usize = 94;
pub const SCHED_SETAFFINITY: usize = 122;
pub const RT_SIGPROCMASK: usize = 135;
pub const SETSID: usize = 157;
pub const PRCTL: usize = 167;
pub const SOCKET: usize = 198;
pub const SOCKETPAIR: usize = 199;
pub const CONNECT: usize = 203;
pub const SENDTO: usize = 206;
pub const RECVMSG: usize = 212;
pub const MUNMAP: usize = 215;
pub const CLONE: usize = 220;
pub const MMAP: usize = 222;
pub const MPROTECT: usize = 226;
pub const MUNLOCK: usize = 229;
pub const MINCORE: usize = 232;
pub const MADVISE: usize = 233;
pub const PRLIMIT64: usize = 261;
pub const SECCOMP: usize = 277;
pub const USERFAULTFD: usize = 282;
pub const PIDFD_SEND_SIGNAL: usize = 424;
pub const PIDFD_OPEN: usize = 434;
pub const CLOSE_RANGE: usize = 436;
