//! Userfaultfd as the kernel has it: one method a call, results as they are.
//!
//! Owns: descriptors that do not block, messages read one at a time.
//! Invariants: nothing is retried and nothing is hidden: EAGAIN is what many rules are about.
//! Rejected: the wrapper of `overspill-space`, which decides what results mean.

use crate::alone::skip;
use crate::memory::Range;
use crate::until;
use linux_raw_sys::general as raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::File;

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
const CONTINUE: Opcode =
    opcode::read_write::<raw::uffdio_continue>(GROUP, raw::_UFFDIO_CONTINUE as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(GROUP, raw::_UFFDIO_POISON as u8);
/// `USERFAULTFD_IOC_NEW` of /dev/userfaultfd.
const DEVICE_NEW: Opcode = opcode::none(0xaa, 0);
/// `UFFDIO_RWPROTECT`, which has the same argument as WRITEPROTECT, and the same first mode.
const RWPROTECT: Opcode = opcode::read_write::<raw::uffdio_writeprotect>(GROUP, 9);

/// Features and modes of registration (<linux/userfaultfd.h>), also those that bindings lack.
pub mod flag {
    use crate::kernel::Version;
    use linux_raw_sys::general as raw;

    /// EVENT_REMAP, EVENT_REMOVE and EVENT_UNMAP.
    pub const EVENTS: u64 = raw::UFFD_FEATURE_EVENT_REMAP as u64
        | raw::UFFD_FEATURE_EVENT_REMOVE as u64
        | raw::UFFD_FEATURE_EVENT_UNMAP as u64;
    /// Takes CAP_SYS_PTRACE.
    pub const EVENT_FORK: u64 = raw::UFFD_FEATURE_EVENT_FORK as u64;
    /// Markers in absent pages.
    pub const WP_UNPOPULATED: u64 = raw::UFFD_FEATURE_WP_UNPOPULATED as u64;
    /// Absent pages whose touch is SIGBUS.
    pub const POISON: u64 = raw::UFFD_FEATURE_POISON as u64;
    /// Write protection that the kernel lifts itself.
    pub const WP_ASYNC: u64 = raw::UFFD_FEATURE_WP_ASYNC as u64;
    /// UFFDIO_MOVE.
    pub const MOVE: u64 = raw::UFFD_FEATURE_MOVE as u64;
    /// Read-write protection.
    pub const RWP: u64 = 1 << 17;

    /// Features that not every kernel has: name, bit, first version.
    pub const NEWER: [(&str, u64, Version); 5] = [
        ("WP_UNPOPULATED", WP_UNPOPULATED, (6, 4)),
        ("POISON", POISON, (6, 6)),
        ("WP_ASYNC", WP_ASYNC, (6, 7)),
        ("MOVE", MOVE, (6, 8)),
        ("RWP", RWP, (7, 3)),
    ];

    /// Messages for absent pages.
    pub const MISSING: u64 = raw::UFFDIO_REGISTER_MODE_MISSING as u64;
    /// Messages for writes to protected pages.
    pub const WP: u64 = raw::UFFDIO_REGISTER_MODE_WP as u64;
    /// Messages for touches of protected pages.
    pub const REGISTER_RWP: u64 = 1 << 3;
}

/// What a userfaultfd says.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault(usize),
    /// The address space was copied; this is the copy's.
    Fork(Uffd),
    /// Memory has moved: from, to, bytes.
    Remap(usize, usize, usize),
    /// Content is about to go: start, end.
    Remove(usize, usize),
    /// Memory has gone: start, end.
    Unmap(usize, usize),
}

impl Message {
    /// What an UNMAP of a range says.
    pub fn is_unmap_of(&self, range: Range) -> bool {
        matches!(self, Self::Unmap(start, end) if (*start, *end) == (range.start(), range.end()))
    }

    /// What a REMOVE of a range says.
    pub fn is_remove_of(&self, range: Range) -> bool {
        matches!(self, Self::Remove(start, end) if (*start, *end) == (range.start(), range.end()))
    }

    /// What a REMAP between two places says, whatever its length.
    pub fn is_remap(&self, from: Range, to: Range) -> bool {
        matches!(self, Self::Remap(a, b, _) if (*a, *b) == (from.start(), to.start()))
    }

    /// What a fault in a page says.
    pub fn is_fault_in(&self, page: Range) -> bool {
        matches!(self, Self::Fault(at) if (page.start()..page.end()).contains(at))
    }
}

/// A userfaultfd of this address space, or of a copy of it.
#[derive(Debug)]
pub struct Uffd(OwnedFd);

impl Uffd {
    /// A new one with these features. Ends the rule where there is none.
    pub fn new(features: u64) -> Self {
        Self::try_new(features).unwrap_or_else(|error| match error {
            Errno::PERM => skip("a userfaultfd, or EVENT_FORK of it, is not permitted"),
            Errno::INVAL => skip(&format!("this kernel has no {}", lacking(features))),
            other => panic!("userfaultfd with features {features:#x}: {other}"),
        })
    }

    /// Ends the rule where there is none with these features: for rules whose children open one.
    pub fn needed(features: u64) {
        drop(Self::new(features));
    }

    /// A new one with these features.
    pub fn try_new(features: u64) -> Result<Self, Errno> {
        let uffd = Self(open()?);
        uffd.api(features).map(|_| uffd)
    }

    /// All features that this kernel has.
    ///
    /// # Panics
    /// UFFDIO_API fails without any.
    pub fn features() -> u64 {
        let fd = open().unwrap_or_else(|_| skip("a userfaultfd is not permitted"));
        Self(fd).api(0).expect("UFFDIO_API without features")
    }

    /// A copy of another process's descriptor (pidfd_getfd).
    ///
    /// # Panics
    /// It cannot be had.
    pub fn of_process(pid: Pid, number: RawFd) -> Self {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a process");
        let copy = pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty());
        Self(copy.unwrap_or_else(|error| skip(&format!("pidfd_getfd is not permitted: {error}"))))
    }

    /// UFFDIO_API, once a descriptor: the features that there are.
    fn api(&self, features: u64) -> Result<u64, Errno> {
        let mut request = raw::uffdio_api { api: raw::UFFD_API.into(), features, ioctls: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<API, _>::new(&mut request)) }?;
        Ok(request.features)
    }

    /// UFFDIO_REGISTER.
    pub fn register(&self, range: Range, mode: u64) -> Result<(), Errno> {
        let mut request = raw::uffdio_register { range: raw_range(range), mode, ioctls: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<REGISTER, _>::new(&mut request)) }
    }

    /// UFFDIO_REGISTER for missing pages, which must succeed.
    ///
    /// # Panics
    /// It does not.
    pub fn watch(&self, range: Range) {
        self.register(range, flag::MISSING).expect("registration for missing pages");
    }

    /// UFFDIO_UNREGISTER.
    pub fn unregister(&self, range: Range) -> Result<(), Errno> {
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<UNREGISTER, _>::new(&mut raw_range(range))) }
    }

    /// UFFDIO_WAKE.
    pub fn wake(&self, range: Range) -> Result<(), Errno> {
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<WAKE, _>::new(&mut raw_range(range))) }
    }

    /// UFFDIO_COPY.
    pub fn copy(&self, to: Range, from: Range) -> Result<(), Errno> {
        let (dst, src, len) = (to.start() as u64, from.start() as u64, to.bytes() as u64);
        let mut request = raw::uffdio_copy { dst, src, len, mode: 0, copy: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<COPY, _>::new(&mut request)) }
    }

    /// UFFDIO_ZEROPAGE.
    pub fn zero(&self, range: Range) -> Result<(), Errno> {
        let mut request = raw::uffdio_zeropage { range: raw_range(range), mode: 0, zeropage: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<ZEROPAGE, _>::new(&mut request)) }
    }

    /// UFFDIO_MOVE.
    pub fn move_pages(&self, to: Range, from: Range) -> Result<(), Errno> {
        let (dst, src, len) = (to.start() as u64, from.start() as u64, to.bytes() as u64);
        let mut request = raw::uffdio_move { dst, src, len, mode: 0, move_: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<MOVE, _>::new(&mut request)) }
    }

    /// UFFDIO_WRITEPROTECT with its mode: protects, and marks absent pages with WP_UNPOPULATED.
    pub fn protect(&self, range: Range) -> Result<(), Errno> {
        let mut request = raw::uffdio_writeprotect { range: raw_range(range), mode: 1 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<WRITEPROTECT, _>::new(&mut request)) }
    }

    /// UFFDIO_WRITEPROTECT without its mode: lifts the protection, and takes marks away.
    pub fn unprotect(&self, range: Range) -> Result<(), Errno> {
        let mut request = raw::uffdio_writeprotect { range: raw_range(range), mode: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<WRITEPROTECT, _>::new(&mut request)) }
    }

    /// UFFDIO_RWPROTECT with its mode: protects present pages from every touch.
    pub fn protect_from_touches(&self, range: Range) -> Result<(), Errno> {
        let mut request = raw::uffdio_writeprotect { range: raw_range(range), mode: 1 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<RWPROTECT, _>::new(&mut request)) }
    }

    /// UFFDIO_CONTINUE, which never succeeds for anonymous memory: its error says what is there.
    pub fn probe(&self, range: Range) -> Errno {
        let mut request = raw::uffdio_continue { range: raw_range(range), mode: 0, mapped: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        let result = unsafe { ioctl(&self.0, Updater::<CONTINUE, _>::new(&mut request)) };
        result.expect_err("CONTINUE in anonymous memory")
    }

    /// UFFDIO_POISON.
    pub fn poison(&self, range: Range) -> Result<(), Errno> {
        let mut request = raw::uffdio_poison { range: raw_range(range), mode: 0, updated: 0 };
        // SAFETY: the argument is of the type that the opcode names.
        unsafe { ioctl(&self.0, Updater::<POISON, _>::new(&mut request)) }
    }

    /// Reads one message, if there is one.
    ///
    /// # Panics
    /// It is none that is known.
    pub fn message(&self) -> Option<Message> {
        let mut bytes = [0; size_of::<raw::uffd_msg>()];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(length) => assert_eq!(length, bytes.len(), "a whole message"),
            Err(Errno::AGAIN) => return None,
            Err(error) => panic!("read of a userfaultfd: {error}"),
        }
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(parsed(u32::from(bytes[0]), [word(8), word(16), word(24)]))
    }

    /// Waits until there is a message, and leaves it. Allocates nothing: while a thread waits in
    /// fork, libc holds the allocator's locks.
    ///
    /// # Panics
    /// None comes.
    pub fn until_ready(&self) {
        until("a message", || {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
        });
    }

    /// Reads one message, waiting for it.
    ///
    /// # Panics
    /// None comes.
    pub fn next(&self) -> Message {
        let mut message = None;
        until("a message", || {
            message = self.message();
            message.is_some()
        });
        message.expect("it was waited for")
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Which of the features that rules need this kernel does not have.
fn lacking(wanted: u64) -> String {
    let missing = wanted & !Uffd::features();
    let named = flag::NEWER.iter().filter(|(_, bit, _)| missing & bit != 0);
    named.map(|(name, _, _)| *name).collect::<Vec<_>>().join(", ")
}

fn raw_range(range: Range) -> raw::uffdio_range {
    raw::uffdio_range { start: range.start() as u64, len: range.bytes() as u64 }
}

fn parsed(event: u32, [first, second, third]: [u64; 3]) -> Message {
    let (a, b, c) = (first as usize, second as usize, third as usize);
    match event {
        // The first word of a fault is its flags.
        raw::UFFD_EVENT_PAGEFAULT => Message::Fault(b),
        // SAFETY: reading the message has made the descriptor, which is nobody else's.
        raw::UFFD_EVENT_FORK => Message::Fork(Uffd(unsafe { OwnedFd::from_raw_fd(first as i32) })),
        raw::UFFD_EVENT_REMAP => Message::Remap(a, b, c),
        raw::UFFD_EVENT_REMOVE => Message::Remove(a, b),
        raw::UFFD_EVENT_UNMAP => Message::Unmap(a, b),
        other => panic!("an unknown message: {other:#x}"),
    }
}

/// Through the call, or where that is not permitted through the device.
fn open() -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: nothing is registered yet.
    unsafe { rustix::mm::userfaultfd(flags) }.or_else(|refused| {
        let device = File::open("/dev/userfaultfd").map_err(|_| refused)?;
        // SAFETY: the argument is the new descriptor's flags; the result is a new descriptor.
        unsafe { ioctl(&device, NewDescriptor(flags.bits())) }
    })
}

/// `USERFAULTFD_IOC_NEW`, whose argument is a number and whose result a descriptor.
struct NewDescriptor(u32);

// SAFETY: the kernel reads and writes no memory, and returns a descriptor.
unsafe impl rustix::ioctl::Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        DEVICE_NEW
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0 as usize as *mut std::ffi::c_void
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        // SAFETY: it succeeded, so this is a new descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}
