//! What is asked of the kernel about other processes.
//!
//! Owns: the trait, and the kernel's reports as types. [`crate::Kernel`] asks the real kernel;
//! tests put something before it that lets the n-th call fail, or the process vanish at it.
//! Invariants: no method waits for a task. ESRCH means that there is no such task, or that it is
//! not stopped; EOPNOTSUPP that it runs 32-bit code.
//! Not here: what the calls are good for.

use crate::arch::Registers;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::time::Duration;

/// The result of a call.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// What has become of a traced task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It has stopped.
    Stopped(Stop),
    /// It has ended, and is reaped as far as its tracer is concerned.
    Ended,
}

/// Why a traced task has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It was told to, or it is new.
    Told,
    /// All threads of its process were stopped by a signal.
    Group,
    /// This signal is to be delivered.
    Signal(i32),
    /// It enters a system call, or leaves it.
    Call,
    /// It has made a task, whose number is the event's message.
    Clone,
    /// Another event.
    Event(i32),
}

impl Stop {
    /// The signal that is to be delivered when the task goes on; 0 if there is none.
    pub(crate) fn signal(self) -> i32 {
        if let Self::Signal(signal) = self { signal } else { 0 }
    }
}

/// The priority of who limits others: it runs seldom, and a crowd that fills memory must not make
/// it wait for its turn.
pub const URGENT: i32 = -15;
/// And of who decides that it is to be limited.
pub const MOST_URGENT: i32 = -20;

/// How far a stopped task goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// To where it stops by itself.
    Stop,
    /// To the next entry into a system call, or out of it.
    Call,
}

/// Options of a traced task, from `linux/ptrace.h`.
pub mod options {
    use linux_raw_sys::ptrace as raw;
    /// Stops at system calls can be told from signals.
    pub const CALLS: u32 = raw::PTRACE_O_TRACESYSGOOD;
    /// Tasks that it makes by `clone` are traced, too.
    pub const CLONES: u32 = raw::PTRACE_O_TRACECLONE;
    /// It ends with its tracer.
    pub const EXIT_KILL: u32 = raw::PTRACE_O_EXITKILL;
    /// Its filter of system calls does nothing.
    pub const NO_FILTER: u32 = raw::PTRACE_O_SUSPEND_SECCOMP;
}

/// The kernel, as far as other processes are concerned.
pub trait System {
    /// PTRACE_SEIZE: starts to trace a task, which runs on.
    fn seize(&self, task: Pid) -> Result<()>;
    /// PTRACE_INTERRUPT: tells a traced task to stop.
    fn interrupt(&self, task: Pid) -> Result<()>;
    /// PTRACE_SETOPTIONS, of a stopped task: [`options`].
    fn set_options(&self, task: Pid, options: u32) -> Result<()>;
    /// PTRACE_CONT or PTRACE_SYSCALL: lets a stopped task go on, with a signal unless it is 0.
    fn resume(&self, task: Pid, until: Until, signal: i32) -> Result<()>;
    /// PTRACE_DETACH: lets a stopped task go, with a signal unless it is 0.
    fn detach(&self, task: Pid, signal: i32) -> Result<()>;
    /// What has become of a task since the last time it was asked; `None` if it runs.
    fn wait(&self, task: Pid) -> Result<Option<Change>>;
    /// PTRACE_GETEVENTMSG: the number of the task that was made.
    fn event_message(&self, task: Pid) -> Result<u64>;
    /// The registers of a stopped task.
    fn registers(&self, task: Pid) -> Result<Registers>;
    /// Changes the registers of a stopped task.
    fn set_registers(&self, task: Pid, registers: &Registers) -> Result<()>;
    /// The signals that a stopped task blocks.
    fn signal_mask(&self, task: Pid) -> Result<u64>;
    /// Changes them.
    fn set_signal_mask(&self, task: Pid, mask: u64) -> Result<()>;
    /// Where a stopped task's area for restartable sequences is; 0 if it has none.
    fn rseq(&self, task: Pid) -> Result<u64>;
    /// Where the head of a task's list of robust futexes is; 0 if it has none.
    fn robust_list(&self, task: Pid) -> Result<u64>;
    /// Whether a stopped task's system calls are handed to the program (Syscall User Dispatch):
    /// PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, Linux 6.4. EIO: that cannot be asked.
    fn catches_calls(&self, task: Pid) -> Result<bool>;

    /// The tasks of a process.
    fn tasks(&self, pid: Pid) -> Result<Vec<Pid>>;
    /// What the descriptors of a process are called.
    fn descriptors(&self, pid: Pid) -> Result<Vec<String>>;
    /// All of a file of `/proc`.
    fn read_file(&self, path: &str) -> Result<String>;
    /// Where a symbolic link of `/proc` leads.
    fn read_link(&self, path: &str) -> Result<String>;
    /// Opens a file of `/proc`.
    fn open(&self, path: &str, writes: bool) -> Result<OwnedFd>;
    /// Reads memory of a process through its `mem` file, all or nothing.
    fn read_memory(&self, memory: BorrowedFd<'_>, address: u64, to: &mut [u8]) -> Result<()>;
    /// Writes memory of a process through its `mem` file, all or nothing, protected or not.
    fn write_memory(&self, memory: BorrowedFd<'_>, address: u64, from: &[u8]) -> Result<()>;

    /// A pidfd.
    fn open_process(&self, pid: Pid) -> Result<OwnedFd>;
    /// A copy of a descriptor of another process.
    fn take_descriptor(&self, process: BorrowedFd<'_>, number: i32) -> Result<OwnedFd>;
    /// The address of a socket, as the kernel has it.
    fn address(&self, socket: BorrowedFd<'_>) -> Result<Vec<u8>>;
    /// A connection that waits at a socket, and whose it is, if that is a process of this
    /// namespace.
    fn accept(&self, listener: BorrowedFd<'_>) -> Result<(OwnedFd, Option<Pid>)>;
    /// SIGKILL for a process that is traced, so that its number is still its own.
    fn kill(&self, pid: Pid) -> Result<()>;
    /// Has a task run before others ([`URGENT`]).
    fn urge(&self, task: Pid) -> Result<()>;
    /// Waits until a descriptor can be read, and returns whether it can.
    fn readable(&self, descriptor: BorrowedFd<'_>, wait: Duration) -> Result<bool>;
    /// Sends a packet, with descriptors; EAGAIN if the other end reads none.
    fn send(&self, socket: BorrowedFd<'_>, packet: &[u8], with: &[BorrowedFd<'_>]) -> Result<()>;
    /// Takes a packet that is there, and returns its bytes: 0 at the end.
    fn receive(&self, socket: BorrowedFd<'_>, packet: &mut [u8]) -> Result<usize>;
}
