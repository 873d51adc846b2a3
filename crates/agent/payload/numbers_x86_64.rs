//! Numbers of the system calls on x86-64.
//!
//! Owns: those that the agent makes, and what AUDIT calls this processor.
//! Source: `arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/linux/audit.h`.

pub const AUDIT: u32 = 0xc000_003e;
pub const CHDIR: usize = 80;
pub const CLOSE: usize = 3;
pub const MMAP: usize = 9;
pub const MPROTECT: usize = 10;
pub const MUNMAP: usize = 11;
pub const RT_SIGPROCMASK: usize = 14;
pub const IOCTL: usize = 16;
pub const PREAD64: usize = 17;
pub const PWRITE64: usize = 18;
pub const MINCORE: usize = 27;
pub const MADVISE: usize = 28;
pub const SOCKET: usize = 41;
pub const CONNECT: usize = 42;
pub const SENDTO: usize = 44;
pub const RECVMSG: usize = 47;
pub const SOCKETPAIR: usize = 53;
pub const CLONE: usize = 56;
pub const EXIT: usize = 60;
pub const SETSID: usize = 112;
pub const CAPSET: usize = 126;
pub const MUNLOCK: usize = 150;
pub const PRCTL: usize = 157;
pub const SCHED_SETAFFINITY: usize = 203;
pub const EXIT_GROUP: usize = 231;
pub const PPOLL: usize = 271;
pub const PRLIMIT64: usize = 302;
pub const SECCOMP: usize = 317;
pub const USERFAULTFD: usize = 323;
pub const PIDFD_SEND_SIGNAL: usize = 424;
pub const PIDFD_OPEN: usize = 434;
pub const CLOSE_RANGE: usize = 436;
