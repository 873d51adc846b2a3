//! The system calls of the agent.
//!
//! Owns: the calls that there are, their numbers, and their errors. All memory
//! that the kernel writes for the agent is passed here by reference; addresses of the program are
//! plain numbers, which nothing here reads through.
//! Invariants: no call is repeated but after EINTR, which only a debugger causes: all signals are
//! blocked.
//! Not here: which of them may still be made once the agent is set up ([`crate::filter`]).

use crate::raw;
use crate::words::{ADDRESS_BYTES, PAGE_BYTES};
use core::arch::asm;

/// The number of an error, as the kernel counts them.
pub type Errno = i32;

pub const EPERM: Errno = 1;
pub const ENOENT: Errno = 2;
pub const EINTR: Errno = 4;
pub const EIO: Errno = 5;
pub const EAGAIN: Errno = 11;
pub const EBUSY: Errno = 16;
pub const EEXIST: Errno = 17;
pub const EINVAL: Errno = 22;
pub const EBADF: Errno = 9;
pub const ESRCH: Errno = 3;

#[cfg(target_arch = "x86_64")]
#[path = "numbers_x86_64.rs"]
pub mod number;
#[cfg(target_arch = "aarch64")]
#[path = "numbers_aarch64.rs"]
pub mod number;

const SOCKETPAIR_SEQPACKET: (usize, usize) = (1, 5 | 0o2_000_000);
const O_CLOEXEC_NONBLOCK: usize = 0o2_004_000;
const UFFD_USER_MODE_ONLY: usize = 1;
pub const PROT_NONE: usize = 0;
pub const PROT_READ: usize = 1;
pub const PROT_WRITE: usize = 2;
pub const PROT_EXECUTE: usize = 4;
pub const PROT_READ_WRITE: usize = 3;
pub const PROT_ALL: usize = 7;
const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
const MAP_SHARED: usize = 0x01;
pub const MAP_SHARED_FIXED: usize = 0x11;
const NO_FILE: usize = usize::MAX;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const SIGKILL: usize = 9;
const SIG_SETMASK: usize = 2;
const RLIMIT_CPU: usize = 0;
const RLIMIT_FSIZE: usize = 1;
const RLIMIT_DATA: usize = 2;
const RLIMIT_CORE: usize = 4;
const RLIMIT_AS: usize = 9;
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const POLLIN: i16 = 1;

const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_MOVE_MODE_DONTWAKE: u64 = 1;
pub const UFFDIO_REGISTER: usize = 0xc020_aa00;
pub const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
pub const UFFDIO_MOVE: usize = 0xc028_aa05;
const USERFAULTFD_IOC_NEW: usize = 0xaa00;

pub const MADV_DONTNEED: usize = 4;
pub const MADV_DONTFORK: usize = 10;
pub const MADV_NOHUGEPAGE: usize = 15;
pub const MADV_DONTDUMP: usize = 16;
pub const MADV_POPULATE_WRITE: usize = 23;
pub const MADV_GUARD_INSTALL: usize = 102;
pub const MADV_GUARD_REMOVE: usize = 103;

pub const PR_SET_NAME: usize = 15;
pub const PR_SET_NO_NEW_PRIVS: usize = 38;
pub const PR_SET_THP_DISABLE: usize = 41;
pub const PR_GET_THP_DISABLE: usize = 42;

/// Makes a call that reads or writes no memory of the agent, or only what its wrapper borrows.
fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: every wrapper below passes numbers, addresses of the program or of staging, which no
    // reference covers, or a reference of its own with the size of what it refers to.
    match unsafe { raw::call(number, arguments) } {
        error @ -4095..=-1 => Err(-error as Errno),
        value => Ok(value as usize),
    }
}

fn address<T>(value: &T) -> usize {
    core::ptr::from_ref(value) as usize
}

fn address_mut<T>(value: &mut T) -> usize {
    core::ptr::from_mut(value) as usize
}

pub fn block_signals() -> Result<usize, Errno> {
    let all = u64::MAX;
    call(number::RT_SIGPROCMASK, [SIG_SETMASK, address(&all), 0, 8, 0, 0])
}

/// Is in no directory of the program's, which could not be unmounted.
pub fn leave_directory() -> Result<usize, Errno> {
    let root = *b"/\0";
    call(number::CHDIR, [address(&root), 0, 0, 0, 0, 0])
}

pub fn set_sid() -> Result<usize, Errno> {
    call(number::SETSID, [0; 6])
}

pub fn close_all() -> Result<usize, Errno> {
    call(number::CLOSE_RANGE, [0, u32::MAX as usize, 0, 0, 0, 0])
}

/// No core, neither as a file (less than a page is none) nor by a pipe (1 is none).
pub fn no_core() -> Result<usize, Errno> {
    set_limit(RLIMIT_CORE, [1; 2])
}

/// Takes the program's limits off this task, as far as it may: what it writes and maps, and its
/// time, are not the program's.
pub fn raise_limits() {
    for resource in [RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_AS] {
        if set_limit(resource, [u64::MAX; 2]).is_err() {
            let mut limit = [0; 2];
            let _ = call(number::PRLIMIT64, [0, resource, 0, address_mut(&mut limit), 0, 0]);
            let [_, most] = limit;
            let _ = set_limit(resource, [most; 2]);
        }
    }
}

fn set_limit(resource: usize, limit: [u64; 2]) -> Result<usize, Errno> {
    call(number::PRLIMIT64, [0, resource, address(&limit), 0, 0, 0])
}

pub fn drop_capabilities() -> Result<usize, Errno> {
    let (header, none) = ([CAPABILITY_VERSION, 0], [0u32; 6]);
    call(number::CAPSET, [address(&header), address(&none), 0, 0, 0, 0])
}

pub fn control(option: usize, argument: usize) -> Result<usize, Errno> {
    call(number::PRCTL, [option, argument, 0, 0, 0, 0])
}

pub fn set_name(name: &[u8; 16]) -> Result<usize, Errno> {
    control(PR_SET_NAME, address(name))
}

pub fn filter<const N: usize>(program: &[u64; N]) -> Result<usize, Errno> {
    let words = (N, address(program));
    call(number::SECCOMP, [SECCOMP_SET_MODE_FILTER, 0, address(&words), 0, 0, 0])
}

pub fn socket_pair(ends: &mut [i32; 2]) -> Result<usize, Errno> {
    let (family, kind) = SOCKETPAIR_SEQPACKET;
    call(number::SOCKETPAIR, [family, kind, 0, address_mut(ends), 0, 0])
}

/// A socket that is connected with who waits at an address.
pub fn connect(address: &[u8; ADDRESS_BYTES], bytes: usize) -> Result<i32, Errno> {
    let (family, kind) = SOCKETPAIR_SEQPACKET;
    let socket = call(number::SOCKET, [family, kind, 0, 0, 0, 0])?;
    let at = core::ptr::from_ref(address) as usize;
    call(number::CONNECT, [socket, at, bytes, 0, 0, 0])?;
    Ok(socket as i32)
}

pub fn open_process(pid: i32) -> Result<i32, Errno> {
    call(number::PIDFD_OPEN, [pid as usize, 0, 0, 0, 0, 0]).map(|number| number as i32)
}

pub fn kill(process: i32) -> Result<usize, Errno> {
    call(number::PIDFD_SEND_SIGNAL, [process as usize, SIGKILL, 0, 0, 0, 0])
}

/// Waits until a descriptor can be read, and returns whether it can.
pub fn wait_readable(descriptor: i32, seconds: u64) -> Result<bool, Errno> {
    #[repr(C)]
    struct Poll(i32, i16, i16);
    let mut poll = Poll(descriptor, POLLIN, 0);
    let mut left = [seconds, 0];
    let arguments = [address_mut(&mut poll), 1, address_mut(&mut left), 0, 0, 0];
    call(number::PPOLL, arguments).map(|ready| ready > 0)
}

/// Has the agent run on CPUs of a mask.
pub fn run_on<const N: usize>(cpus: &[u64; N]) -> Result<usize, Errno> {
    call(number::SCHED_SETAFFINITY, [0, size_of_val(cpus), address(cpus), 0, 0, 0])
}

/// Receives a message with what it brings, as `header` says.
pub fn receive<T>(channel: i32, header: &mut T) -> Result<usize, Errno> {
    let arguments = [channel as usize, address_mut(header), MSG_CMSG_CLOEXEC, 0, 0, 0];
    again(number::RECVMSG, arguments)
}

pub fn send<T>(channel: i32, message: &T) -> Result<usize, Errno> {
    let arguments = [channel as usize, address(message), size_of::<T>(), MSG_NOSIGNAL, 0, 0];
    again(number::SENDTO, arguments)
}

/// Reads so many bytes of a file into staging.
pub fn read_at(file: i32, start: usize, bytes: usize, offset: usize) -> Result<(), Errno> {
    all(number::PREAD64, file, start, bytes, offset)
}

/// Writes memory of staging to a file.
pub fn write_at(file: i32, start: usize, bytes: usize, offset: usize) -> Result<(), Errno> {
    all(number::PWRITE64, file, start, bytes, offset)
}

/// Makes a call until it has moved all.
fn all(number: usize, file: i32, start: usize, bytes: usize, offset: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let rest = [file as usize, start + done, bytes - done, offset + done, 0, 0];
        match again(number, rest)? {
            0 => return Err(EIO),
            moved => done += moved,
        }
    }
    Ok(())
}

fn again(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    loop {
        match call(number, arguments) {
            Err(EINTR) => {}
            result => return result,
        }
    }
}

pub fn close(descriptor: i32) -> Result<usize, Errno> {
    call(number::CLOSE, [descriptor as usize, 0, 0, 0, 0, 0])
}

pub fn map(bytes: usize) -> Result<usize, Errno> {
    let arguments = [0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, NO_FILE, 0];
    call(number::MMAP, arguments)
}

/// Maps the start of a file somewhere.
pub fn map_file(bytes: usize, file: i32) -> Result<usize, Errno> {
    call(number::MMAP, [0, bytes, PROT_READ_WRITE, MAP_SHARED, file as usize, 0])
}

/// Maps a file in the place of what is there.
pub fn map_shared(at: usize, bytes: usize, file: i32) -> Result<usize, Errno> {
    let arguments = [at, bytes, PROT_READ_WRITE, MAP_SHARED_FIXED, file as usize, 0];
    call(number::MMAP, arguments)
}

/// Undoes what mlockall has done to a new mapping: locked pages do not take others in.
pub fn unlock(start: usize, bytes: usize) -> Result<usize, Errno> {
    call(number::MUNLOCK, [start, bytes, 0, 0, 0, 0])
}

pub fn unmap(start: usize, bytes: usize) -> Result<usize, Errno> {
    call(number::MUNMAP, [start, bytes, 0, 0, 0, 0])
}

/// Changes what may be done with memory of the program.
pub fn protect(start: usize, bytes: usize, protection: usize) -> Result<usize, Errno> {
    call(number::MPROTECT, [start, bytes, protection, 0, 0, 0])
}

pub fn advise(start: usize, bytes: usize, advice: usize) -> Result<usize, Errno> {
    call(number::MADVISE, [start, bytes, advice, 0, 0, 0])
}

/// True if there is a page in memory at an address.
pub fn is_there(address: usize) -> bool {
    let mut there = 0u8;
    let result = &raw mut there as usize;
    let asked = call(number::MINCORE, [address, PAGE_BYTES, result, 0, 0, 0]);
    asked.is_ok() && there & 1 != 0
}

/// One for touches of the program's own code alone, which everybody may make.
pub fn userfaultfd() -> Result<i32, Errno> {
    let flags = O_CLOEXEC_NONBLOCK | UFFD_USER_MODE_ONLY;
    call(number::USERFAULTFD, [flags, 0, 0, 0, 0, 0]).map(|number| number as i32)
}

pub fn userfaultfd_of(device: i32) -> Result<i32, Errno> {
    let new = [device as usize, USERFAULTFD_IOC_NEW, O_CLOEXEC_NONBLOCK, 0, 0, 0];
    call(number::IOCTL, new).map(|number| number as i32)
}

pub fn register(userfaultfd: i32, start: usize, bytes: usize) -> Result<usize, Errno> {
    let mut words = [start as u64, bytes as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
    let arguments = [userfaultfd as usize, UFFDIO_REGISTER, address_mut(&mut words), 0, 0, 0];
    call(number::IOCTL, arguments)
}

pub fn unregister(userfaultfd: i32, start: usize, bytes: usize) -> Result<usize, Errno> {
    let words = [start as u64, bytes as u64];
    call(number::IOCTL, [userfaultfd as usize, UFFDIO_UNREGISTER, address(&words), 0, 0, 0])
}

/// Moves pages. Returns the bytes that were moved, and the error that ended it, 0 if none did.
pub fn move_pages(userfaultfd: i32, to: u64, from: u64, bytes: u64) -> (u64, Errno) {
    let mut words = [to, from, bytes, UFFDIO_MOVE_MODE_DONTWAKE, 0];
    let arguments = [userfaultfd as usize, UFFDIO_MOVE, address_mut(&mut words), 0, 0, 0];
    let errno = call(number::IOCTL, arguments).err().unwrap_or(0);
    // The kernel writes a negative error there when nothing was moved.
    (i64::max(words[4] as i64, 0) as u64, errno)
}

pub fn exit() -> ! {
    loop {
        let _ = call(number::EXIT_GROUP, [0; 6]);
    }
}

/// Unmaps what this function runs on, and exits without it.
#[cfg(target_arch = "x86_64")]
pub fn unmap_and_exit(start: usize, bytes: usize) -> ! {
    // SAFETY: nothing is used after the first call but registers and code, which stays.
    unsafe {
        asm!("syscall", "mov eax, {exit}", "xor edi, edi", "syscall", "ud2",
            exit = const number::EXIT_GROUP, in("rax") number::MUNMAP, in("rdi") start,
            in("rsi") bytes, options(noreturn));
    }
}

/// Unmaps what this function runs on, and exits without it.
#[cfg(target_arch = "aarch64")]
pub fn unmap_and_exit(start: usize, bytes: usize) -> ! {
    // SAFETY: nothing is used after the first call but registers and code, which stays.
    unsafe {
        asm!("svc #0", "mov x8, #{exit}", "mov x0, #0", "svc #0", "brk #1",
            exit = const number::EXIT_GROUP, in("x8") number::MUNMAP, in("x0") start,
            in("x1") bytes, options(noreturn));
    }
}
