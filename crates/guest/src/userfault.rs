//! A guest's userfaultfd, used from outside.
//!
//! Owns: its calls, each made once, and what their errnos mean; its messages, read one at a time.
//! The trait has a second implementation in tests, which answers as a kernel might.
//! Invariant: an errno that is in no row of [`Refusal::of`] is [`Refusal::Unexpected`], and never
//! taken for another one.
//! Not here: repeating a call, which takes reading messages first (`keeper`).
//! Rejected: sharing `space`'s wrapper, which repeats calls inside: a pager of its own memory has
//! no messages to read before.

mod abilities;

pub use abilities::Abilities;

use crate::Vpn;
use crate::map::{Event, Look};
use linux_raw_sys::general as raw;
use overspill_base::PAGE_SIZE;
use overspill_base::sync::AtomicU64;
use overspill_base::sync::Ordering::Relaxed;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::ops::Range;

const GROUP: u8 = raw::UFFDIO as u8;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(GROUP, raw::_UFFDIO_COPY as u8);
const ZEROPAGE: Opcode =
    opcode::read_write::<raw::uffdio_zeropage>(GROUP, raw::_UFFDIO_ZEROPAGE as u8);
const CONTINUE: Opcode =
    opcode::read_write::<raw::uffdio_continue>(GROUP, raw::_UFFDIO_CONTINUE as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(GROUP, raw::_UFFDIO_WRITEPROTECT as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(GROUP, raw::_UFFDIO_POISON as u8);

/// `USERFAULTFD_IOC_NEW`: makes a userfaultfd through `/dev/userfaultfd`.
const NEW: libc::Ioctl = 0xaa00;

/// `UFFDIO_WRITEPROTECT_MODE_WP`, which the bindings leave out.
const WRITEPROTECT_MODE_WP: u64 = 1;

/// To ask whether an address space is there at all. Of the first pages the kernel says nothing.
const ANY_PAGE: Range<Vpn> = Vpn(1 << 20)..Vpn((1 << 20) + 1);

/// The events that say what becomes of the address space, without forks.
const EVENTS: u32 =
    raw::UFFD_FEATURE_EVENT_REMAP | raw::UFFD_FEATURE_EVENT_REMOVE | raw::UFFD_FEATURE_EVENT_UNMAP;

/// A thread that waits for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where.
    pub at: Vpn,
    /// Its id in its own PID namespace.
    pub thread: u32,
}

/// A message.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for a page. It may have been served already.
    Fault(Fault),
    /// The address space changes.
    Event(Event),
    /// The guest forks; this is the child's userfaultfd.
    Fork(OwnedFd),
}

/// Why the kernel did not do a call, or not to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A message is outstanding; after that was read, a repetition may succeed.
    #[error("a message is outstanding")]
    Changing,
    /// A page is there already.
    #[error("a page is there")]
    Present,
    /// No registered mapping is there, or more than one.
    #[error("no registered mapping is there")]
    NoMapping,
    /// The kernel has no memory.
    #[error("the kernel has no memory for it")]
    NoMemory,
    /// The address space has ended.
    #[error("the address space has ended")]
    Gone,
    /// Another errno.
    #[error("an unexpected answer of the kernel: {0}")]
    Unexpected(Errno),
}

impl Refusal {
    /// The table, from `fs/userfaultfd.c` and `mm/userfaultfd.c` of Linux 6.18; older kernels
    /// return the same errnos or fewer.
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN | Errno::INTR => Self::Changing,
            Errno::EXIST => Self::Present,
            Errno::NOENT => Self::NoMapping,
            Errno::NOMEM => Self::NoMemory,
            Errno::SRCH => Self::Gone,
            other => Self::Unexpected(other),
        }
    }
}

/// How far a call that fills pages came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Pages filled, from the front.
    pub pages: usize,
    /// Why the next one was not; `None` if all were.
    pub stopped: Option<Refusal>,
}

/// The calls of a guest's userfaultfd.
pub trait Userfault: Send + Sync + std::fmt::Debug {
    /// Reads the next message; `None` if there is none now.
    ///
    /// # Errors
    /// Of the kernel. EMFILE: a fork's descriptor could not be made, and the message is still
    /// there.
    fn read(&self) -> Result<Option<Message>, Errno>;

    /// Reports touches of missing pages in `place` from now on, of whatever is mapped there.
    ///
    /// # Errors
    /// Of the kernel: EINVAL, EBUSY.
    fn register(&self, place: &Range<Vpn>) -> Result<(), Errno>;

    /// Fills missing pages with `content`, whole pages, and wakes who waits for them.
    fn copy(&self, at: Vpn, content: &[u8]) -> Filled;

    /// Fills missing pages with zeros, and wakes who waits for them.
    fn zero(&self, place: &Range<Vpn>) -> Filled;

    /// Marks missing pages as out.
    ///
    /// # Errors
    /// Why not.
    fn mark(&self, place: &Range<Vpn>) -> Result<(), Refusal>;

    /// Takes marks off: what is missing is new.
    ///
    /// # Errors
    /// Why not.
    fn unmark(&self, place: &Range<Vpn>) -> Result<(), Refusal>;

    /// Makes every touch of a missing page raise SIGBUS.
    ///
    /// # Errors
    /// Why not. Before Linux 6.6 always.
    fn poison(&self, at: Vpn) -> Result<(), Refusal>;

    /// Looks whether one registered mapping covers `place`, and nothing is outstanding. An errno
    /// that says neither is returned.
    ///
    /// # Errors
    /// [`Refusal::Gone`], [`Refusal::Unexpected`].
    fn look(&self, place: &Range<Vpn>) -> Result<Look, Refusal>;

    /// Wakes the threads that wait in `place`; they touch it again.
    fn wake(&self, place: &Range<Vpn>);
}

/// Where memory of a program may begin, as the kernel is set up, and what it may not have below the
/// end of its addresses.
const LOWEST: [u64; 2] = [1 << 16, 1 << 20];
const HIGHEST_GAP: u64 = 1 << 16;

/// A userfaultfd of another process.
#[derive(Debug)]
pub struct GuestUserfault {
    fd: OwnedFd,
    abilities: Abilities,
    /// A page that stays registered, of the agent's staging; 0 if there is none.
    anchor: AtomicU64,
}

impl AsFd for GuestUserfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl GuestUserfault {
    /// Agrees with the kernel on what `fd`, just made by an agent, is to do. The descriptor must
    /// not block. `anchor` is a page of the agent's staging, which will be registered with it.
    /// `ask` makes UFFDIO_API with the features it is given: [`ask`], or a program with more
    /// rights.
    ///
    /// # Errors
    /// Of UFFDIO_API. The descriptor is of no use then.
    pub fn agree(
        fd: OwnedFd,
        anchor: Vpn,
        ask: impl Fn(BorrowedFd<'_>, u64) -> Result<(), Errno>,
    ) -> Result<Self, Errno> {
        let mut abilities = Abilities::supported()?;
        let wanted = abilities.features();
        match ask(fd.as_fd(), wanted | u64::from(raw::UFFD_FEATURE_EVENT_FORK)) {
            Err(Errno::PERM) => ask(fd.as_fd(), wanted)?,
            other => {
                other?;
                abilities.forks = true;
            }
        }
        Ok(Self::agreed(fd, abilities, Some(anchor)))
    }

    /// The same, without messages of forks.
    ///
    /// # Errors
    /// Of UFFDIO_API.
    pub fn agree_alone(fd: OwnedFd, anchor: Vpn) -> Result<Self, Errno> {
        let abilities = Abilities::supported()?;
        Ok(Self::agreed(Self::agree_as(fd, abilities)?, abilities, Some(anchor)))
    }

    /// Agrees on a userfaultfd what was agreed on another one, without messages of forks.
    ///
    /// # Errors
    /// Of UFFDIO_API.
    pub fn agree_as(fd: OwnedFd, abilities: Abilities) -> Result<OwnedFd, Errno> {
        ask(fd.as_fd(), abilities.features())?;
        Ok(fd)
    }

    /// What a userfaultfd that is made through `device` can do, if it is asked for by `ask`.
    ///
    /// # Errors
    /// Of making one, and of UFFDIO_API.
    pub fn abilities_by(
        device: BorrowedFd<'_>,
        ask: impl Fn(BorrowedFd<'_>, u64) -> Result<(), Errno>,
    ) -> Result<Abilities, Errno> {
        Ok(Self::agree(new_by(device)?, Vpn(0), ask)?.abilities)
    }

    /// What a userfaultfd can do that this process may make as everybody may.
    ///
    /// # Errors
    /// Of making one, and of UFFDIO_API.
    pub fn abilities_of_own() -> Result<Abilities, Errno> {
        Ok(Self::agree_alone(new_own()?, Vpn(0))?.abilities)
    }

    /// Takes over a userfaultfd that was agreed on before: by another process, or for the parent of
    /// a forked child. See [`agree`](Self::agree) for `anchor`.
    pub fn agreed(fd: OwnedFd, abilities: Abilities, anchor: Option<Vpn>) -> Self {
        let anchor = AtomicU64::new(anchor.map_or(0, |page| page.0));
        Self { fd, abilities, anchor }
    }

    /// Makes `page` the one that stays registered. Without one nobody can tell whether a message
    /// is outstanding where no mapping is.
    pub fn set_anchor(&self, page: Vpn) {
        // Relaxed, as its reading: any page that is registered will do.
        self.anchor.store(page.0, Relaxed);
    }

    /// Returns that page.
    pub fn anchor(&self) -> Vpn {
        Vpn(self.anchor.load(Relaxed))
    }

    /// False if the address space has ended.
    pub fn has_address_space(&self) -> bool {
        self.probe(&ANY_PAGE) != Err(Refusal::Gone)
    }

    /// False if no registered mapping covers `place`, whatever is outstanding.
    pub fn may_cover(&self, place: &Range<Vpn>) -> bool {
        self.probe(place) != Ok(Look::NotRegistered)
    }

    /// Wakes all threads that wait for a page; they touch it again, and so ask again.
    pub fn wake_all(&self) {
        // The kernel refuses addresses that this address space cannot have: those below
        // /proc/sys/vm/mmap_min_addr, and those above what its processor, or its kind, allows.
        let ends = (32..=56).rev().map(|bits| (1 << bits) - HIGHEST_GAP);
        let places = ends.flat_map(|end| LOWEST.map(|start| Vpn::range(&(start..end))));
        let mut woken = places.map(|place| self.call::<WAKE, _>(&mut range(&place)));
        // If none is allowed, the address space has ended.
        let _ = woken.any(|woken| woken.is_ok());
    }

    /// What it can do.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// UFFDIO_CONTINUE does nothing to anonymous memory, but looks for it first: EINVAL is the
    /// answer for one registered mapping that covers the range (`mm/userfaultfd.c`:
    /// `mfill_atomic`).
    fn probe(&self, place: &Range<Vpn>) -> Result<Look, Refusal> {
        let mut arg = raw::uffdio_continue { range: range(place), mode: 0, mapped: 0 };
        match self.call::<CONTINUE, _>(&mut arg) {
            Err(Errno::INVAL) => Ok(Look::Registered),
            Err(Errno::NOENT) => Ok(Look::NotRegistered),
            Err(Errno::AGAIN) => Ok(Look::Changing),
            Err(errno) => Err(Refusal::of(errno)),
            Ok(()) => Err(Refusal::Unexpected(Errno::OPNOTSUPP)),
        }
    }

    fn look_at_anchor(&self, anchor: Vpn) -> Result<Look, Refusal> {
        Ok(match self.probe(&anchor.run(1))? {
            Look::Registered => Look::NotRegistered,
            Look::NotRegistered | Look::Changing => Look::Changing,
        })
    }

    fn call<const OPCODE: Opcode, T>(&self, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: OPCODE was made from T's own layout, so the kernel reads and writes a T. Its
        // effects are on the memory of the guest, none of which is ours.
        unsafe { ioctl(&self.fd, Updater::<OPCODE, T>::new(arg)) }
    }
}

fn new_own() -> Result<OwnedFd, Errno> {
    let flags = rustix::mm::UserfaultfdFlags::CLOEXEC
        | rustix::mm::UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
    // SAFETY: nothing is registered with it.
    unsafe { rustix::mm::userfaultfd(flags) }
}

/// Makes UFFDIO_API of `fd` with `features`.
///
/// # Errors
/// Of the kernel. EPERM: this process has no right to the messages of forks; `fd` is as before.
pub fn ask(fd: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
    handshake(fd, features).map(drop)
}

fn new_by(device: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
    // SAFETY: the call takes the flags by value, and returns a new descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW, flags) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: it was just made, and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn handshake(fd: BorrowedFd<'_>, features: u64) -> Result<u64, Errno> {
    let mut arg = raw::uffdio_api { api: u64::from(raw::UFFD_API), features, ioctls: 0 };
    // SAFETY: API was made from uffdio_api.
    unsafe { ioctl(fd, Updater::<API, _>::new(&mut arg)) }?;
    Ok(arg.features)
}

fn range(place: &Range<Vpn>) -> raw::uffdio_range {
    let (start, end) = (place.start.address(), place.end.address());
    raw::uffdio_range { start, len: end - start }
}

/// The result of a call that fills `done` bytes, which is negative if it did nothing.
fn filled(result: Result<(), Errno>, done: i64) -> Filled {
    let pages = done.max(0) as usize / PAGE_SIZE;
    Filled { pages, stopped: result.err().map(Refusal::of) }
}

impl Userfault for GuestUserfault {
    fn read(&self) -> Result<Option<Message>, Errno> {
        let mut bytes = [0; size_of::<raw::uffd_msg>()];
        match rustix::io::read(&self.fd, &mut bytes) {
            Ok(len) if len == bytes.len() => decode(&bytes).map(Some),
            Ok(_) => Err(Errno::IO),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn register(&self, place: &Range<Vpn>) -> Result<(), Errno> {
        let mode = raw::UFFDIO_REGISTER_MODE_MISSING | raw::UFFDIO_REGISTER_MODE_WP;
        let mode = u64::from(mode);
        self.call::<REGISTER, _>(&mut raw::uffdio_register { range: range(place), mode, ioctls: 0 })
    }

    fn copy(&self, at: Vpn, content: &[u8]) -> Filled {
        let src = content.as_ptr().addr() as u64;
        let len = content.len() as u64;
        let mut arg = raw::uffdio_copy { dst: at.address(), src, len, mode: 0, copy: 0 };
        let result = self.call::<COPY, _>(&mut arg);
        filled(result, arg.copy)
    }

    fn zero(&self, place: &Range<Vpn>) -> Filled {
        let mut arg = raw::uffdio_zeropage { range: range(place), mode: 0, zeropage: 0 };
        let result = self.call::<ZEROPAGE, _>(&mut arg);
        filled(result, arg.zeropage)
    }

    fn mark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        let mut arg = raw::uffdio_writeprotect { range: range(place), mode: WRITEPROTECT_MODE_WP };
        self.call::<WRITEPROTECT, _>(&mut arg).map_err(Refusal::of)
    }

    fn unmark(&self, place: &Range<Vpn>) -> Result<(), Refusal> {
        let mut arg = raw::uffdio_writeprotect { range: range(place), mode: 0 };
        self.call::<WRITEPROTECT, _>(&mut arg).map_err(Refusal::of)
    }

    /// The kernel refuses to poison what has a mark, so that is taken away first; who waits for the
    /// page touches it again, and finds it missing or poisoned.
    fn poison(&self, at: Vpn) -> Result<(), Refusal> {
        self.unmark(&at.run(1))?;
        let mut arg = raw::uffdio_poison { range: range(&at.run(1)), mode: 0, updated: 0 };
        self.call::<POISON, _>(&mut arg).map_err(Refusal::of)
    }

    /// The kernel looks for the mapping first, and whether a message is outstanding afterwards:
    /// that none is there says nothing of messages. So the anchor is asked too, before any is read.
    fn look(&self, place: &Range<Vpn>) -> Result<Look, Refusal> {
        match self.probe(place)? {
            Look::NotRegistered => match self.anchor() {
                Vpn(0) => Ok(Look::Changing),
                anchor => self.look_at_anchor(anchor),
            },
            look => Ok(look),
        }
    }

    fn wake(&self, place: &Range<Vpn>) {
        // Where nothing is registered any more, nobody waits.
        let _ = self.call::<WAKE, _>(&mut range(place));
    }
}

/// Decodes a message: the event, 7 bytes, then three words.
fn decode(bytes: &[u8; size_of::<raw::uffd_msg>()]) -> Result<Message, Errno> {
    let word = |n: usize| u64::from_ne_bytes(bytes[8 * n..8 * n + 8].try_into().expect("8 bytes"));
    let (a, b, c) = (word(1), word(2), word(3));
    let place = |start, end| Some(Vpn::range(&(start..end))).filter(|place| !place.is_empty());
    let event = match u32::from(bytes[0]) {
        raw::UFFD_EVENT_PAGEFAULT => {
            return Ok(Message::Fault(Fault { at: Vpn::of(b), thread: c as u32 }));
        }
        raw::UFFD_EVENT_FORK => {
            // SAFETY: the kernel has just made this descriptor for the reader of the message.
            return Ok(Message::Fork(unsafe { OwnedFd::from_raw_fd(a as u32 as i32) }));
        }
        raw::UFFD_EVENT_REMAP => {
            let pages = c / PAGE_SIZE as u64;
            (pages > 0).then(|| Event::Remapped { from: Vpn::of(a), to: Vpn::of(b), pages })
        }
        raw::UFFD_EVENT_REMOVE => place(a, b).map(Event::Removed),
        raw::UFFD_EVENT_UNMAP => place(a, b).map(Event::Unmapped),
        _ => None,
    };
    event.map(Message::Event).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_mean_what_this_table_says() {
        let meant = |errno| format!("{:?}", Refusal::of(errno));
        assert_eq!(meant(Errno::AGAIN), "Changing");
        assert_eq!(meant(Errno::EXIST), "Present");
        assert_eq!(meant(Errno::NOENT), "NoMapping");
        assert_eq!(meant(Errno::NOMEM), "NoMemory");
        assert_eq!(meant(Errno::SRCH), "Gone");
        // Of these userfaultfd returns the first two to a caller that is wrong.
        for errno in [Errno::INVAL, Errno::FAULT, Errno::PERM, Errno::NOSPC] {
            assert_eq!(Refusal::of(errno), Refusal::Unexpected(errno));
        }
    }

    #[test]
    fn a_call_that_stopped_midway_says_how_far_it_came() {
        let all = filled(Ok(()), 8192);
        assert_eq!(all, Filled { pages: 2, stopped: None });
        let some = filled(Err(Errno::AGAIN), 4096);
        assert_eq!(some, Filled { pages: 1, stopped: Some(Refusal::Changing) });
        let none = filled(Err(Errno::EXIST), -17);
        assert_eq!(none, Filled { pages: 0, stopped: Some(Refusal::Present) });
    }

    #[test]
    fn messages_are_decoded_and_nonsense_is_an_error() {
        let message = |event: u32, words: [u64; 3]| {
            let mut bytes = [0; size_of::<raw::uffd_msg>()];
            bytes[0] = event as u8;
            for (n, word) in words.into_iter().enumerate() {
                bytes[8 * n + 8..8 * n + 16].copy_from_slice(&word.to_ne_bytes());
            }
            decode(&bytes).map(|message| format!("{message:?}"))
        };
        let fault = message(raw::UFFD_EVENT_PAGEFAULT, [1, 0x7123, 42]).unwrap();
        assert_eq!(fault, "Fault(Fault { at: 0x7000, thread: 42 })");
        let moved = message(raw::UFFD_EVENT_REMAP, [0x1000, 0x9000, 0x2000]).unwrap();
        assert_eq!(moved, "Event(Remapped { from: 0x1000, to: 0x9000, pages: 2 })");
        let unmapped = message(raw::UFFD_EVENT_UNMAP, [0x1000, 0x3000, 0]).unwrap();
        assert_eq!(unmapped, "Event(Unmapped(0x1000..0x3000))");
        for nonsense in [(0xff, [0; 3]), (raw::UFFD_EVENT_UNMAP, [0x3000, 0x1000, 0])] {
            assert_eq!(message(nonsense.0, nonsense.1), Err(Errno::IO));
        }
    }
}
