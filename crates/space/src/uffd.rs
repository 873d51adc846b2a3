//! Userfaultfd: opening it and its ioctls, with their results translated in one place
//! ([`crate::kernel`]).
//!
//! Owns: the file descriptor, and which features this kernel has. Features are probed: POISON
//! exists since 6.6, write protection since 5.7. MOVE, of 6.8, is used [from 6.12 on](MOVES_SINCE).
//! Every ioctl but the first of a descriptor is made by [`Uffd::call`], where tests can intercept
//! it. Rejected: the `userfaultfd` crate, which decides features at build time and has no MOVE.

use crate::kernel::{Between, Call, Meaning, Request, meaning};
use crate::words::{FaultMessage, Progress, Reach};
use linux_raw_sys::general as raw;
use overspill_base::PAGE_SIZE;
use overspill_base::kernel::{self, MOVES_SINCE};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;
use rustix::thread::Pid;
use std::path::Path;
use std::sync::OnceLock;

const GROUP: u8 = raw::UFFDIO as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_UNREGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(GROUP, raw::_UFFDIO_COPY as u8);
const ZEROPAGE: Opcode =
    opcode::read_write::<raw::uffdio_zeropage>(GROUP, raw::_UFFDIO_ZEROPAGE as u8);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(GROUP, raw::_UFFDIO_MOVE as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(GROUP, raw::_UFFDIO_WRITEPROTECT as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(GROUP, raw::_UFFDIO_POISON as u8);
/// `USERFAULTFD_IOC_NEW`: opens a userfaultfd through `/dev/userfaultfd`.
const DEVICE_NEW: libc::Ioctl = 0xaa00;

/// `UFFDIO_WRITEPROTECT_MODE_WP`, which the bindings leave out.
const WRITEPROTECT_MODE_WP: u64 = 1;

/// Tries of a call that fails with EAGAIN and has done nothing, before it counts as busy.
const AGAIN_MAX: u32 = 100;

/// What this kernel's userfaultfd can do besides missing-page faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// UFFDIO_MOVE: eviction that is safe while devices write into the page.
    pub move_pages: bool,
    /// UFFDIO_POISON: SIGBUS for a lost page.
    pub poison: bool,
    /// Write-protect faults on anonymous memory.
    pub write_protect: bool,
}

/// How touches of missing pages are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// The faulting thread sleeps, and a message says where.
    Messages,
    /// The faulting thread gets SIGBUS, or EFAULT inside a system call.
    Signals,
}

/// Why there is no usable userfaultfd, and what to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UffdError {
    /// Neither the system call nor the device may be used.
    #[error(
        "userfaultfd with kernel-mode faults is not permitted ({0}): \
         run `sysctl vm.unprivileged_userfaultfd=1`, or give access to /dev/userfaultfd \
         (in a container: `--device /dev/userfaultfd`), or add CAP_SYS_PTRACE"
    )]
    NotPermitted(Errno),
    /// The kernel was built without it, or seccomp hides it.
    #[error(
        "userfaultfd is not available ({0}): the kernel needs CONFIG_USERFAULTFD, \
         and a seccomp profile must allow the system call userfaultfd"
    )]
    NotAvailable(Errno),
    /// The kernel cannot deliver faults as signals.
    #[error("this kernel's userfaultfd cannot raise signals: use faults by message")]
    NoSignals,
    /// Any other error.
    #[error("userfaultfd cannot be set up ({0})")]
    Other(Errno),
}

/// An open userfaultfd of this process.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: Features,
    delivery: Delivery,
    reach: Reach,
    between: OnceLock<Box<dyn Between>>,
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Uffd {
    /// Opens a userfaultfd.
    ///
    /// # Errors
    /// [`UffdError`], worded for the user.
    pub fn open(delivery: Delivery, reach: Reach) -> Result<Self, UffdError> {
        // The handshake fixes the features, so one descriptor is used to ask, and another one
        // after.
        let supported = handshake(&open_fd(reach)?, 0)?;
        let has = |bit: u32| supported & u64::from(bit) != 0;
        let features = Features {
            move_pages: has(raw::UFFD_FEATURE_MOVE) && kernel::is_at_least(MOVES_SINCE),
            poison: has(raw::UFFD_FEATURE_POISON),
            write_protect: has(raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP),
        };
        let mut wanted = raw::UFFD_FEATURE_MOVE
            | raw::UFFD_FEATURE_POISON
            | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP
            | raw::UFFD_FEATURE_THREAD_ID;
        if delivery == Delivery::Signals {
            if !has(raw::UFFD_FEATURE_SIGBUS) {
                return Err(UffdError::NoSignals);
            }
            wanted |= raw::UFFD_FEATURE_SIGBUS;
        }
        let fd = open_fd(reach)?;
        handshake(&fd, supported & u64::from(wanted))?;
        Ok(Self { fd, features, delivery, reach, between: OnceLock::new() })
    }

    /// Makes `between` answer every call from now on, for tests. Call once.
    pub fn put_between(&self, between: Box<dyn Between>) {
        let _ = self.between.set(between);
    }

    /// Which touches it serves.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// What the kernel can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Reports touches of missing pages in a range from now on.
    ///
    /// # Safety
    /// The range is anonymous memory that the caller owns, and faults in it will be answered. If
    /// not, a thread that touches it sleeps for ever.
    pub unsafe fn register_missing(&self, start: usize, len: usize) -> Result<(), Errno> {
        let protect = if self.features.write_protect { raw::UFFDIO_REGISTER_MODE_WP } else { 0 };
        // SAFETY: passed on to the caller.
        unsafe { self.register(start, len, u64::from(raw::UFFDIO_REGISTER_MODE_MISSING | protect)) }
    }

    /// Unregisters a range in which no thread waits.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.call::<UNREGISTER, _>(Call::Unregister, &mut range(start, len))
    }

    /// Makes a range a possible target of [`move_pages`](Self::move_pages) without reporting
    /// missing pages in it.
    ///
    /// # Safety
    /// As [`register_missing`](Self::register_missing), but no thread can be made to sleep.
    pub unsafe fn register_target(&self, start: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.register(start, len, u64::from(raw::UFFDIO_REGISTER_MODE_WP)) }
    }

    unsafe fn register(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let mut arg = raw::uffdio_register { range: range(start, len), mode, ioctls: 0 };
        self.call::<REGISTER, _>(Call::Register, &mut arg)
    }

    /// Fills missing pages at `start` with `content` and wakes the threads that wait for them.
    /// Pages that are present stay as they are.
    pub fn copy(&self, start: usize, content: &[u8]) -> Progress {
        over_pages(start, content.len(), |at, done, len| {
            let src = content[done..].as_ptr().addr() as u64;
            let mut arg = raw::uffdio_copy { dst: at, src, len, mode: 0, copy: 0 };
            let result = self.call::<COPY, _>(Call::Copy, &mut arg);
            self.skip_present(at, step(Call::Copy, result, arg.copy))
        })
    }

    /// Fills missing pages with zeros and wakes the threads that wait for them.
    pub fn zero(&self, start: usize, len: usize) -> Progress {
        over_pages(start, len, |at, _, len| {
            let range = raw::uffdio_range { start: at, len };
            let mut arg = raw::uffdio_zeropage { range, mode: 0, zeropage: 0 };
            let result = self.call::<ZEROPAGE, _>(Call::Zero, &mut arg);
            self.skip_present(at, step(Call::Zero, result, arg.zeropage))
        })
    }

    /// Moves present pages to an empty, registered target. The error it stopped with does not tell
    /// where the next page is: it may have moved.
    ///
    /// # Safety
    /// Both ranges are the caller's; there are no references into the source pages.
    pub unsafe fn move_pages(&self, target: usize, source: usize, len: usize) -> Progress {
        over_pages(source, len, |at, done, len| {
            let dst = (target + done) as u64;
            let mut arg = raw::uffdio_move { dst, src: at, len, mode: 0, move_: 0 };
            let result = self.call::<MOVE, _>(Call::Move, &mut arg);
            match step(Call::Move, result, arg.move_) {
                Step::Present => Step::Stop(Errno::EXIST),
                step => step,
            }
        })
    }

    /// Wakes the threads that wait in a range; they touch it again. With signals none waits in the
    /// kernel.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        if self.delivery == Delivery::Signals {
            return Ok(());
        }
        self.call::<WAKE, _>(Call::Wake, &mut range(start, len))
    }

    /// Makes writes to a range fault, or stops doing so.
    pub fn write_protect(&self, start: usize, len: usize, protect: bool) -> Result<(), Errno> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        let mut arg = raw::uffdio_writeprotect { range: range(start, len), mode };
        let mut tries = 0;
        loop {
            let result = self.call::<WRITEPROTECT, _>(Call::WriteProtect, &mut arg);
            let Err(errno) = result else { return Ok(()) };
            let again =
                matches!(meaning(Call::WriteProtect, errno), Meaning::Again | Meaning::NoMemory);
            if !again || tries == AGAIN_MAX {
                return Err(errno);
            }
            tries += 1;
            std::thread::yield_now();
        }
    }

    /// Makes every touch of a missing page of a range raise SIGBUS.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        let progress = over_pages(start, len, |at, _, len| {
            let range = raw::uffdio_range { start: at, len };
            let mut arg = raw::uffdio_poison { range, mode: 0, updated: 0 };
            let result = self.call::<POISON, _>(Call::Poison, &mut arg);
            step(Call::Poison, result, arg.updated)
        });
        progress.stopped.map_or(Ok(()), Err)
    }

    /// Reads waiting fault messages into `out`; returns their number. Never blocks.
    pub fn read(&self, out: &mut [FaultMessage; 32]) -> Result<usize, Errno> {
        let mut bytes = [0u8; 32 * size_of::<raw::uffd_msg>()];
        let len = match rustix::io::read(&self.fd, &mut bytes) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        let mut count = 0;
        for message in bytes[..len].chunks_exact(size_of::<raw::uffd_msg>()) {
            // The only event asked for; layout of the message: event, 7 bytes, flags, address,
            // thread.
            if u32::from(message[0]) == raw::UFFD_EVENT_PAGEFAULT {
                let address = u64::from_ne_bytes(message[16..24].try_into().expect("8 bytes"));
                let thread = i32::from_ne_bytes(message[24..28].try_into().expect("4 bytes"));
                out[count] = FaultMessage { address: address as usize, thread };
                count += 1;
            }
        }
        Ok(count)
    }

    /// A page that is already present needs no filling, but its waiters may need waking.
    fn skip_present(&self, at: u64, step: Step) -> Step {
        if matches!(step, Step::Present) {
            // Cannot fail: the kernel has just accepted this range.
            let _ = self.wake(at as usize, PAGE_SIZE);
        }
        step
    }

    fn call<const OPCODE: Opcode, T: Argument>(
        &self,
        call: Call,
        arg: &mut T,
    ) -> Result<(), Errno> {
        let mut kernel = |arg: &mut T| {
            // SAFETY: OPCODE was made from T's own layout, so the kernel reads and writes a T. The
            // effects on memory are the callers' contracts.
            unsafe { ioctl(&self.fd, Updater::<OPCODE, T>::new(arg)) }
        };
        match self.between.get() {
            None => kernel(arg),
            Some(between) => between.answer(call, &mut Through { arg, kernel: &mut kernel }),
        }
    }
}

/// What an ioctl passes to the kernel and gets back.
trait Argument {
    fn bytes(&mut self) -> &mut u64;

    fn done(&mut self) -> Option<&mut i64> {
        None
    }
}

macro_rules! arguments {
    ($($name:ident: $($len:ident).+ $(, $done:ident)?;)*) => {$(
        impl Argument for raw::$name {
            fn bytes(&mut self) -> &mut u64 {
                &mut self.$($len).+
            }

            $(fn done(&mut self) -> Option<&mut i64> {
                Some(&mut self.$done)
            })?
        }
    )*};
}

arguments! {
    uffdio_range: len;
    uffdio_register: range.len;
    uffdio_copy: len, copy;
    uffdio_zeropage: range.len, zeropage;
    uffdio_move: len, move_;
    uffdio_writeprotect: range.len;
    uffdio_poison: range.len, updated;
}

/// A call that tests can intercept.
struct Through<'a, T> {
    arg: &'a mut T,
    kernel: &'a mut dyn FnMut(&mut T) -> Result<(), Errno>,
}

impl<T: Argument> Request for Through<'_, T> {
    fn bytes(&mut self) -> u64 {
        *self.arg.bytes()
    }

    fn perform(&mut self, bytes: u64) -> Result<(), Errno> {
        let all = std::mem::replace(self.arg.bytes(), bytes);
        let result = (self.kernel)(self.arg);
        *self.arg.bytes() = all;
        result
    }

    fn done(&mut self) -> Option<&mut i64> {
        self.arg.done()
    }
}

fn range(start: usize, len: usize) -> raw::uffdio_range {
    raw::uffdio_range { start: start as u64, len: len as u64 }
}

/// What one call over the rest of a range did.
enum Step {
    Done(usize),
    /// Nothing: the page is present.
    Present,
    Again(Errno),
    Stop(Errno),
}

/// Translates the kernel's two results: the return value, and the field with the bytes done or a
/// negated errno.
fn step(call: Call, result: Result<(), Errno>, done: i64) -> Step {
    match result {
        Ok(()) => Step::Done(done as usize),
        Err(_) if done > 0 => Step::Done(done as usize),
        Err(errno) => match meaning(call, errno) {
            Meaning::Again | Meaning::NoMemory => Step::Again(errno),
            Meaning::Present => Step::Present,
            _ => Step::Stop(errno),
        },
    }
}

/// Repeats a call until a range is done. The kernel refuses a range that spans two of its mappings
/// (split where the program changed the protection) with ENOENT, as if nothing were there: then it
/// is done page by page up to the border.
fn over_pages(start: usize, len: usize, mut call: impl FnMut(u64, usize, u64) -> Step) -> Progress {
    let (mut progress, mut tries, mut single) = (Progress::default(), 0, false);
    while progress.bytes < len {
        let done = progress.bytes;
        let bytes = if single { PAGE_SIZE } else { len - done };
        match call((start + done) as u64, done, bytes as u64) {
            Step::Done(bytes) => {
                progress.bytes += bytes;
                (tries, single) = (0, false);
            }
            Step::Present => {
                progress.bytes += PAGE_SIZE;
                progress.present += PAGE_SIZE;
                (tries, single) = (0, false);
            }
            Step::Again(_) if tries < AGAIN_MAX => {
                tries += 1;
                std::thread::yield_now();
            }
            Step::Stop(Errno::NOENT) if bytes > PAGE_SIZE => single = true,
            Step::Again(errno) | Step::Stop(errno) => {
                progress.stopped = Some(errno);
                break;
            }
        }
    }
    progress
}

/// Flags that every userfaultfd here has.
const FLAGS: UserfaultfdFlags = UserfaultfdFlags::CLOEXEC.union(UserfaultfdFlags::NONBLOCK);

fn open_fd(reach: Reach) -> Result<OwnedFd, UffdError> {
    if reach == Reach::Program {
        let flags = FLAGS | UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
        // SAFETY: as below.
        return unsafe { rustix::mm::userfaultfd(flags) }.map_err(UffdError::NotAvailable);
    }
    // SAFETY: nothing is registered yet; see `register_missing` for what can go wrong.
    match unsafe { rustix::mm::userfaultfd(FLAGS) } {
        Ok(fd) => Ok(fd),
        Err(Errno::PERM) => open_by_device(),
        Err(errno @ Errno::NOSYS) => open_by_device().map_err(|_| UffdError::NotAvailable(errno)),
        Err(errno) => Err(UffdError::Other(errno)),
    }
}

fn open_by_device() -> Result<OwnedFd, UffdError> {
    use rustix::fs::{Mode, OFlags, open};
    let path = Path::new("/dev/userfaultfd");
    let device = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(UffdError::NotPermitted)?;
    new_by(device.as_fd()).map_err(UffdError::NotPermitted)
}

fn new_by(device: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags by value and returns a new descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_NEW, FLAGS.bits()) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made this descriptor for us; nothing else uses it.
    Ok(unsafe { rustix::fd::FromRawFd::from_raw_fd(fd) })
}

fn handshake(fd: &OwnedFd, features: u64) -> Result<u64, UffdError> {
    let mut arg = raw::uffdio_api { api: u64::from(raw::UFFD_API), features, ioctls: 0 };
    // SAFETY: API was made from uffdio_api.
    unsafe { ioctl(fd, Updater::<API, _>::new(&mut arg)) }.map_err(UffdError::Other)?;
    Ok(arg.features)
}

/// Whether `thread`, named by a message, belongs to `process`: a debugger that reads our memory
/// faults here too, and its thread id may be another thread's in this process.
pub(crate) fn is_thread_of(process: Pid, thread: Pid) -> bool {
    let thread = thread.as_raw_nonzero();
    // SAFETY: signal 0 is not delivered; the kernel only looks the thread up.
    unsafe { libc::syscall(libc::SYS_tgkill, process.as_raw_nonzero(), thread, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_answers_are_translated_by_this_table() {
        let translate = |result, done| match step(Call::Copy, result, done) {
            Step::Done(n) => format!("done {n}"),
            Step::Present => "present".into(),
            Step::Again(_) => "again".into(),
            Step::Stop(errno) => format!("stop {}", errno.raw_os_error()),
        };
        assert_eq!(translate(Ok(()), 8192), "done 8192");
        assert_eq!(translate(Err(Errno::AGAIN), 4096), "done 4096");
        assert_eq!(translate(Err(Errno::AGAIN), -11), "again");
        assert_eq!(translate(Err(Errno::NOMEM), -12), "again");
        assert_eq!(translate(Err(Errno::EXIST), -17), "present");
        assert_eq!(translate(Err(Errno::BUSY), -16), "stop 16");
        assert_eq!(translate(Err(Errno::BUSY), 4096), "done 4096");
        assert_eq!(translate(Err(Errno::NOENT), 0), "stop 2");
    }
}
