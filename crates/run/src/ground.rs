//! What a machine must let us do so that programs can be paged from outside.
//!
//! Owns: trying each of these rights, by using it.
//! Not here: what else a run may lack, as memory or files.

use crate::forks::Forks;
use crate::same::have_same_memory;
use overspill_agent::{Barrier, PAGE_BYTES};
use overspill_guest::Way;
use overspill_guest::userfault::{Abilities, GuestUserfault};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities};
use std::path::PathBuf;

/// Yama's setting, and with which values nobody may trace, or only who has the capability.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
const YAMA_NOBODY: &str = "3";
const YAMA_CAPABLE: &str = "2";

/// Of `prctl`: off is 0, and can always be asked for.
const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
const MADV_GUARD_INSTALL: libc::c_int = 102;
/// Connections that may wait: one agent is made at a time.
const BACKLOG: i32 = 16;

/// What userfaultfds cannot do here, and what they would need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("userfaultfd has no {0} here: {1} is needed")]
pub struct Lack(&'static str, &'static str);

/// Why nothing can be paged from outside.
#[derive(Debug, thiserror::Error)]
pub enum GroundError {
    /// No right to userfaultfd.
    #[error(
        "/dev/userfaultfd cannot be used: {0}; be root, or in the group `overspill` that the package \
         makes, and in a container give --device /dev/userfaultfd"
    )]
    Device(Errno),
    /// What the kernel, or our rights, are not enough for.
    #[error(transparent)]
    Lacks(#[from] Lack),
    /// Whether processes share their memory cannot be found out.
    #[error(
        "kcmp cannot be used: the kernel needs CONFIG_KCMP, and a seccomp profile must allow it"
    )]
    Compare,
    /// Not even for its own touches.
    #[error("userfaultfd cannot be used, not even for a program's own touches: {0}")]
    Call(Errno),
    /// System calls cannot be caught.
    #[error("system calls cannot be caught: that takes x86-64 and Linux 5.11")]
    Dispatch,
    /// `proc_mem.force_override=never`, or no `/proc`.
    #[error(
        "/proc/self/mem cannot be used to write what nobody may touch: is /proc mounted, and \
         proc_mem.force_override not `never`?"
    )]
    MemoryFile,
    /// No socket.
    #[error("agents cannot be waited for: {0}")]
    Listener(Errno),
    /// Not even a page to share.
    #[error("no memory can be shared with a program: {0}")]
    Memory(Errno),
    /// Nobody may be traced.
    #[error("processes cannot be traced: {0}")]
    Trace(&'static str),
    /// None of the ways can be had.
    #[error("{faults}; without that, {touches}")]
    NoWay {
        /// What the best lacks.
        faults: Box<GroundError>,
        /// What the one lacks that needs least.
        touches: Box<GroundError>,
    },
}

/// A machine on which programs can be paged from outside: a [`Way`], and what it takes.
#[derive(Debug)]
pub enum Ground {
    /// Userfaultfds of this device.
    Faults(OwnedFd, Forks),
    /// The bell of all gates.
    Calls(OwnedFd),
    /// Signals.
    Signals {
        /// Of all gates.
        bell: OwnedFd,
        /// Where agents connect, if nobody may take a descriptor of another process.
        listener: Option<OwnedFd>,
        /// What raises them.
        barrier: Barrier,
    },
}

impl Ground {
    /// Tries all that is needed for a way. `forks` is where `overspill-forks` is, or would be. On a
    /// kernel without guards nobody may touch what is out.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find(way: Way, forks: PathBuf) -> Result<Self, GroundError> {
        match way {
            Way::Faults => Self::find_faults(Forks::new(forks)),
            Way::Calls => Self::find_calls(),
            Way::Signals(barrier) => Self::find_signals(barrier),
        }
    }

    /// Tries the best way, and without what that takes the next one.
    ///
    /// # Errors
    /// [`GroundError::NoWay`].
    pub fn find_any(forks: PathBuf) -> Result<Self, GroundError> {
        Self::find_faults(Forks::new(forks)).or_else(|faults| {
            let others = Self::find_calls().or_else(|_| Self::find_signals(Barrier::Guard));
            others.map_err(|touches| GroundError::NoWay {
                faults: faults.into(),
                touches: touches.into(),
            })
        })
    }

    fn find_faults(forks: Forks) -> Result<Self, GroundError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/userfaultfd", flags, Mode::empty()).map_err(GroundError::Device)?;
        let ask = |fd: BorrowedFd<'_>, features| forks.ask(fd, features);
        let abilities =
            GuestUserfault::abilities_by(device.as_fd(), ask).map_err(GroundError::Device)?;
        check(abilities, true)?;
        if have_same_memory(getpid(), getpid()) != Some(true) {
            return Err(GroundError::Compare);
        }
        may_trace()?;
        Ok(Self::Faults(device, forks))
    }

    fn find_calls() -> Result<Self, GroundError> {
        let abilities = GuestUserfault::abilities_of_own().map_err(GroundError::Call)?;
        check(abilities, false)?;
        Ok(Self::Calls(gated()?))
    }

    fn find_signals(wanted: Barrier) -> Result<Self, GroundError> {
        let barrier = if may_guard()? { wanted } else { Barrier::NoAccess };
        let bell = gated()?;
        let listener = if may_take_descriptors() { None } else { Some(listener()?) };
        Ok(Self::Signals { bell, listener, barrier })
    }
}

/// Without the messages of forks a child would read zeros for what is out, unless its gate sees to
/// that.
pub(crate) fn check(abilities: Abilities, needs_forks: bool) -> Result<(), Lack> {
    match abilities {
        Abilities { moves: false, .. } => Err(Lack("moves that can be relied on", "Linux 6.12")),
        Abilities { marks: false, .. } => {
            Err(Lack("marks of pages that are out", "a kernel with CONFIG_PTE_MARKER_UFFD_WP"))
        }
        Abilities { forks: false, .. } if needs_forks => {
            Err(Lack("messages of forks", "CAP_SYS_PTRACE, or overspill-forks with it,"))
        }
        _ => Ok(()),
    }
}

/// Whether the kernel has guards. Touches need to write what nobody may touch.
fn may_guard() -> Result<bool, GroundError> {
    let bytes = 2 * PAGE_BYTES;
    let protection = rustix::mm::ProtFlags::empty();
    let flags = rustix::mm::MapFlags::PRIVATE;
    // SAFETY: it is new, and nobody else's.
    let place =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
    let place = place.map_err(GroundError::Memory)?;
    // SAFETY: it was just made, and nothing refers to it.
    let guarded = unsafe { libc::madvise(place, PAGE_BYTES, MADV_GUARD_INSTALL) };
    let memory = open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let written = memory.and_then(|memory| {
        let at = place.addr() + PAGE_BYTES;
        rustix::io::pwrite(memory, &[1], at as u64)
    });
    // SAFETY: as above.
    let _ = unsafe { rustix::mm::munmap(place, bytes) };
    match written {
        Ok(1) => Ok(guarded == 0),
        _ => Err(GroundError::MemoryFile),
    }
}

/// Not in a container, unless it has CAP_SYS_PTRACE.
fn may_take_descriptors() -> bool {
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    own.and_then(|own| pidfd_getfd(&own, own.as_raw_fd(), PidfdGetfdFlags::empty())).is_ok()
}

/// A socket with an address that the kernel chooses: there is no file, and nobody's rights count
/// but those of who connects.
fn listener() -> Result<OwnedFd, GroundError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = made.and_then(|socket| {
        bind(&socket, &SocketAddrUnix::new_unnamed())?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    });
    listener.map_err(GroundError::Listener)
}

/// Memory that processes can share, whose size nobody can change: who has it mapped would end.
pub(crate) fn shared_file(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Tries what a gate needs. Returns the bell.
fn gated() -> Result<OwnedFd, GroundError> {
    may_dispatch()?;
    may_trace()?;
    shared_file("overspill-bell", PAGE_BYTES).map_err(GroundError::Memory)
}

/// Whether the kernel can hand system calls to a program.
fn may_dispatch() -> Result<(), GroundError> {
    // SAFETY: it is off already; only numbers are passed.
    let asked = unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) };
    match asked {
        0 => Ok(()),
        _ => Err(GroundError::Dispatch),
    }
}

fn may_trace() -> Result<(), GroundError> {
    let yama = std::fs::read_to_string(YAMA).unwrap_or_default();
    match yama.trim_end() {
        YAMA_NOBODY => {
            return Err(GroundError::Trace(
                "kernel.yama.ptrace_scope is 3, and stays so until the next boot",
            ));
        }
        YAMA_CAPABLE if !may_trace_others() => {
            return Err(GroundError::Trace(
                "kernel.yama.ptrace_scope is 2: be root, or set it to 1",
            ));
        }
        _ => {}
    }
    // SAFETY: there is no such process; only numbers are passed.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, libc::pid_t::MAX, 0, 0) };
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::SRCH) if traced < 0 => Ok(()),
        _ => Err(GroundError::Trace("a seccomp profile does not allow ptrace; use one that does")),
    }
}

fn may_trace_others() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_shared_file_cannot_change_its_size() {
        let file = shared_file("test", PAGE_BYTES).unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 2 * PAGE_BYTES as u64), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn what_a_userfaultfd_lacks_is_said_with_what_is_needed() {
        let all = Abilities { marks: true, poison: false, moves: true, forks: false };
        assert!(check(all, false).is_ok());
        let lacks = |abilities, needs_forks| check(abilities, needs_forks).unwrap_err().to_string();
        assert!(lacks(Abilities { moves: false, ..all }, false).contains("Linux 6.12"));
        assert!(lacks(Abilities { marks: false, ..all }, false).contains("PTE_MARKER_UFFD_WP"));
        assert!(lacks(all, true).contains("overspill-forks"));
    }

    /// The other way round too: a machine with less is refused in words.
    #[test]
    fn what_root_may_here_is_enough_or_said_to_be_not() {
        match Ground::find(Way::Faults, "/nowhere/overspill-forks".into()) {
            Ok(ground) => assert!(matches!(ground, Ground::Faults(..))),
            Err(lack) => println!("skipped: {lack}"),
        }
    }
}
