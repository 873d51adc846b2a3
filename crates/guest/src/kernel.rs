//! The real kernel, as [`System`] asks it.
//!
//! Owns: the system calls, and how their results are read: each in one place.
//! Invariants: ptrace belongs to a thread: what one has seized only it can let go, so a value is
//! used by the thread that made it. `ptrace` reads and writes only what is borrowed here.
//! Rejected: a crate for ptrace: the maintained ones know neither PTRACE_SEIZE's stops nor register
//! sets of several processors.

use crate::arch;
use crate::arch::Registers;
use crate::peer::Peer;
use crate::system::{Change, Result, Stop, System, URGENT, Until};
use linux_raw_sys::ptrace as raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::io::IoSlice;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::time::Duration;

const NT_PRSTATUS: usize = 1;
#[cfg(target_arch = "aarch64")]
const NT_ARM_SYSTEM_CALL: usize = 0x404;
/// What wait(2) has in the lowest byte of the status of a stop; waitid(2) leaves it out.
const STOPPED: i32 = 0x7f;
/// Bytes of a set of signals.
const MASK_BYTES: usize = 8;
/// What PTRACE_O_TRACESYSGOOD adds to SIGTRAP.
const CALL_FLAG: i32 = 0x80;
/// PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, which the bindings leave out: mode, selector, start,
/// length.
const GET_DISPATCH: u32 = 0x4211;
/// Descriptors that a packet can bring.
const DESCRIPTORS_MAX: usize = 2;

/// The kernel of this machine. It stays with the thread that traces.
#[derive(Debug, Default)]
pub struct Kernel {
    /// A child of this process, whose end its parent waits for, and not its tracer.
    child: Option<Pid>,
    of_thread: PhantomData<*const ()>,
}

impl Kernel {
    /// The kernel, for this thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for a process that is the parent of what it traces: the status with which `child`
    /// ends is left for whoever waits for it.
    pub fn of_parent(child: Pid) -> Self {
        Self { child: Some(child), ..Self::default() }
    }

    /// What has become of the child. Its end may come at any moment, and is not taken: only stops
    /// are.
    fn wait_for_child(child: Pid) -> Result<Option<Change>> {
        if has_ended(child)? {
            return Ok(Some(Change::Ended));
        }
        match waitid(WaitId::Pid(child), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG) {
            Ok(seen) => {
                let code = seen.and_then(|status| status.trapping_signal());
                Ok(code.map(|code| change(code << 8 | STOPPED)))
            }
            // It has just ended, which is seen next time.
            Err(Errno::CHILD) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// True if a child of this process has ended, which is left to be reaped.
///
/// # Errors
/// ECHILD if it is none, or was reaped.
pub fn has_ended(child: Pid) -> Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let seen = waitid(WaitId::Pid(child), look)?;
    // A stop that its tracer is told is seen, too.
    Ok(seen.is_some_and(|status| status.exited() || status.killed() || status.dumped()))
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(error.unwrap_or(libc::EIO))
}

/// Makes a ptrace request that has two numbers, or the address of something that `data` borrows.
fn ptrace(request: u32, task: Pid, address: usize, data: usize) -> Result<()> {
    let task = task.as_raw_nonzero().get();
    // SAFETY: the requests below take numbers, or write to and read from `data` no more than its
    // callers say with `address`, and that they borrow until this returns.
    match unsafe { libc::ptrace(request as _, task, address, data) } {
        -1 => Err(last_error()),
        _ => Ok(()),
    }
}

/// Reads or writes a set of registers. Returns the bytes that it has.
fn register_set<T>(request: u32, task: Pid, set: usize, words: &mut T) -> Result<usize> {
    let mut vector = libc::iovec { iov_base: (&raw mut *words).cast(), iov_len: size_of::<T>() };
    ptrace(request, task, set, (&raw mut vector).addr())?;
    Ok(vector.iov_len)
}

fn change(status: i32) -> Change {
    if !libc::WIFSTOPPED(status) {
        return Change::Ended;
    }
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    let is_told = event == raw::PTRACE_EVENT_STOP as i32;
    Change::Stopped(match event {
        0 if signal == libc::SIGTRAP | CALL_FLAG => Stop::Call,
        0 => Stop::Signal(signal),
        _ if is_told && signal == libc::SIGTRAP => Stop::Told,
        _ if is_told => Stop::Group,
        _ if event == raw::PTRACE_EVENT_CLONE as i32 => Stop::Clone,
        _ => Stop::Event(event),
    })
}

impl System for Kernel {
    fn seize(&self, task: Pid) -> Result<()> {
        ptrace(raw::PTRACE_SEIZE, task, 0, 0)
    }

    fn interrupt(&self, task: Pid) -> Result<()> {
        ptrace(raw::PTRACE_INTERRUPT, task, 0, 0)
    }

    fn set_options(&self, task: Pid, options: u32) -> Result<()> {
        ptrace(raw::PTRACE_SETOPTIONS, task, 0, options as usize)
    }

    fn resume(&self, task: Pid, until: Until, signal: i32) -> Result<()> {
        let request = match until {
            Until::Stop => raw::PTRACE_CONT,
            Until::Call => raw::PTRACE_SYSCALL,
        };
        ptrace(request, task, 0, signal as usize)
    }

    fn detach(&self, task: Pid, signal: i32) -> Result<()> {
        ptrace(raw::PTRACE_DETACH, task, 0, signal as usize)
    }

    fn wait(&self, task: Pid) -> Result<Option<Change>> {
        if self.child == Some(task) {
            return Self::wait_for_child(task);
        }
        let (task, mut status) = (task.as_raw_nonzero().get(), 0);
        // SAFETY: the status is borrowed for the call.
        match unsafe { libc::waitpid(task, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            -1 => Err(last_error()),
            0 => Ok(None),
            _ => Ok(Some(change(status))),
        }
    }

    fn event_message(&self, task: Pid) -> Result<u64> {
        let mut message = 0_u64;
        ptrace(raw::PTRACE_GETEVENTMSG, task, 0, (&raw mut message).addr())?;
        Ok(message)
    }

    fn registers(&self, task: Pid) -> Result<Registers> {
        let mut words = [0; arch::REGISTERS];
        match register_set(raw::PTRACE_GETREGSET, task, NT_PRSTATUS, &mut words)? {
            bytes if bytes == size_of_val(&words) => Ok(Registers(words)),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn set_registers(&self, task: Pid, registers: &Registers) -> Result<()> {
        let mut words = registers.0;
        register_set(raw::PTRACE_SETREGSET, task, NT_PRSTATUS, &mut words)?;
        // Without it a call whose entry was stopped at would still be made.
        #[cfg(target_arch = "aarch64")]
        register_set(raw::PTRACE_SETREGSET, task, NT_ARM_SYSTEM_CALL, &mut -1_i32)?;
        Ok(())
    }

    fn signal_mask(&self, task: Pid) -> Result<u64> {
        let mut mask = 0_u64;
        ptrace(raw::PTRACE_GETSIGMASK, task, MASK_BYTES, (&raw mut mask).addr())?;
        Ok(mask)
    }

    fn set_signal_mask(&self, task: Pid, mut mask: u64) -> Result<()> {
        ptrace(raw::PTRACE_SETSIGMASK, task, MASK_BYTES, (&raw mut mask).addr())
    }

    fn rseq(&self, task: Pid) -> Result<u64> {
        let mut words = raw::ptrace_rseq_configuration {
            rseq_abi_pointer: 0,
            rseq_abi_size: 0,
            signature: 0,
            flags: 0,
            pad: 0,
        };
        let bytes = size_of_val(&words);
        ptrace(raw::PTRACE_GET_RSEQ_CONFIGURATION, task, bytes, (&raw mut words).addr())?;
        Ok(words.rseq_abi_pointer)
    }

    fn robust_list(&self, task: Pid) -> Result<u64> {
        let (mut head, mut bytes) = (0_u64, 0_usize);
        let task = task.as_raw_nonzero().get();
        // SAFETY: both results are borrowed for the call.
        let done = unsafe {
            libc::syscall(libc::SYS_get_robust_list, task, &raw mut head, &raw mut bytes)
        };
        if done == -1 { Err(last_error()) } else { Ok(head) }
    }

    fn catches_calls(&self, task: Pid) -> Result<bool> {
        let mut words = [0_u64; 4];
        ptrace(GET_DISPATCH, task, size_of_val(&words), (&raw mut words).addr())?;
        let [mode, ..] = words;
        Ok(mode != 0)
    }

    fn tasks(&self, pid: Pid) -> Result<Vec<Pid>> {
        let path = format!("/proc/{}/task", pid.as_raw_nonzero());
        let entries = std::fs::read_dir(path).map_err(|error| errno(&error))?;
        let mut tasks = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| errno(&error))?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            tasks.extend(number.and_then(Pid::from_raw));
        }
        Ok(tasks)
    }

    fn descriptors(&self, pid: Pid) -> Result<Vec<String>> {
        let path = format!("/proc/{}/fd", pid.as_raw_nonzero());
        let entries = std::fs::read_dir(path).map_err(|error| errno(&error))?;
        // One that was closed meanwhile leads nowhere.
        let links = entries.flatten().flat_map(|entry| std::fs::read_link(entry.path()));
        Ok(links.map(|link| link.to_string_lossy().into_owned()).collect())
    }

    fn read_file(&self, path: &str) -> Result<String> {
        // A program's name, which it chooses itself, need not be text.
        let bytes = std::fs::read(path).map_err(|error| errno(&error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn read_link(&self, path: &str) -> Result<String> {
        let target = std::fs::read_link(path).map_err(|error| errno(&error))?;
        Ok(target.to_string_lossy().into_owned())
    }

    fn open(&self, path: &str, writes: bool) -> Result<OwnedFd> {
        let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
    }

    fn read_memory(&self, memory: BorrowedFd<'_>, address: u64, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(memory, &mut to[done..], address + done as u64)? {
                0 => return Err(Errno::IO),
                read => done += read,
            }
        }
        Ok(())
    }

    fn write_memory(&self, memory: BorrowedFd<'_>, address: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < from.len() {
            match rustix::io::pwrite(memory, &from[done..], address + done as u64)? {
                0 => return Err(Errno::IO),
                written => done += written,
            }
        }
        Ok(())
    }

    fn open_process(&self, pid: Pid) -> Result<OwnedFd> {
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
    }

    fn take_descriptor(&self, process: BorrowedFd<'_>, number: i32) -> Result<OwnedFd> {
        rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())
    }

    fn address(&self, socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket)?)?;
        let name = address.abstract_name().ok_or(Errno::ADDRNOTAVAIL)?;
        Ok([&AddressFamily::UNIX.as_raw().to_ne_bytes()[..], &[0], name].concat())
    }

    fn accept(&self, listener: BorrowedFd<'_>) -> Result<(OwnedFd, Option<Pid>)> {
        let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
        let peer = Peer::of(&socket)?;
        let process = peer.process.filter(|_| peer.goes_on());
        Ok((socket, process))
    }

    fn kill(&self, pid: Pid) -> Result<()> {
        rustix::process::kill_process(pid, Signal::KILL)
    }

    fn urge(&self, task: Pid) -> Result<()> {
        rustix::process::setpriority_process(Some(task), URGENT)
    }

    fn readable(&self, descriptor: BorrowedFd<'_>, wait: Duration) -> Result<bool> {
        let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        let wait = Timespec::try_from(wait).map_err(|_| Errno::INVAL)?;
        Ok(poll(&mut polled, Some(&wait))? > 0)
    }

    fn send(&self, socket: BorrowedFd<'_>, packet: &[u8], with: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() && !control.push(SendAncillaryMessage::ScmRights(with)) {
            return Err(Errno::INVAL);
        }
        let packet = [IoSlice::new(packet)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(socket, &packet, &mut control, flags)?;
        Ok(())
    }

    fn receive(&self, socket: BorrowedFd<'_>, packet: &mut [u8]) -> Result<usize> {
        rustix::net::recv(socket, packet, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes)
    }
}

/// Reads memory of another process as one of its threads would: what is missing is waited for. For
/// that it takes the right to trace it, and that a page comes without this thread.
///
/// # Errors
/// Of the kernel. EFAULT: nothing is mapped there, or the page is lost.
pub fn read_as_a_thread(pid: Pid, address: u64, to: &mut [u8]) -> Result<()> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: to.len() };
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: what is written to is borrowed; the other address is another process's.
    match unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) } {
        -1 => Err(last_error()),
        read if read as usize == to.len() => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::kill_process;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Statuses as `ptrace(2)` has them: signal, then event.
    #[test]
    fn statuses_are_read() {
        let stopped = |event: i32, signal: i32| change(event << 16 | signal << 8 | 0x7f);
        let cases = [
            (stopped(128, libc::SIGTRAP), Change::Stopped(Stop::Told)),
            (stopped(128, libc::SIGTSTP), Change::Stopped(Stop::Group)),
            (stopped(0, libc::SIGUSR1), Change::Stopped(Stop::Signal(libc::SIGUSR1))),
            (stopped(0, libc::SIGTRAP), Change::Stopped(Stop::Signal(libc::SIGTRAP))),
            (stopped(0, libc::SIGTRAP | 0x80), Change::Stopped(Stop::Call)),
            (stopped(3, libc::SIGTRAP), Change::Stopped(Stop::Clone)),
            (stopped(4, libc::SIGTRAP), Change::Stopped(Stop::Event(4))),
            (change(7 << 8), Change::Ended),
            (change(libc::SIGKILL), Change::Ended),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
    }

    /// Its end comes while it is asked for stops, whose trace this is.
    #[test]
    fn the_end_of_a_child_is_left_for_its_parent() {
        for _ in 0..50 {
            let mut child = Command::new("true").spawn().unwrap();
            let pid = Pid::from_child(&child);
            let kernel = Kernel::of_parent(pid);
            // It may have ended.
            let _ = kernel.seize(pid);
            while kernel.wait(pid).unwrap() != Some(Change::Ended) {}
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn stops_of_a_child_are_told() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let kernel = Kernel::of_parent(pid);
        let next = || {
            std::iter::repeat_with(|| kernel.wait(pid).unwrap()).find_map(|change| change).unwrap()
        };
        kernel.seize(pid).unwrap();
        kernel.interrupt(pid).unwrap();
        assert_eq!(next(), Change::Stopped(Stop::Told));
        kernel.resume(pid, Until::Call, 0).unwrap();
        kill_process(pid, Signal::USR1).unwrap();
        while next() != Change::Stopped(Stop::Signal(libc::SIGUSR1)) {
            kernel.resume(pid, Until::Call, 0).unwrap();
        }
        kernel.resume(pid, Until::Stop, libc::SIGKILL).unwrap();
        assert_eq!(next(), Change::Ended);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
