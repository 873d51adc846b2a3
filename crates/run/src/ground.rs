//! What a machine must let us do so that programs can be paged from outside.
//!
//! Owns: trying each of these rights, by using it.
//! Not here: what else a run may lack, as memory or files.

use crate::attaching::{AttachingError, check};
use crate::forks::Forks;
use crate::same::have_same_memory;
use overspill_agent::PAGE_BYTES;
use overspill_guest::userfault::GuestUserfault;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
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
    Attaching(AttachingError),
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

/// How a touch of what is out is noticed.
#[derive(Debug)]
pub(crate) enum Eye {
    /// By the kernel, whoever touches it: with userfaultfds of this device.
    Faults(OwnedFd, Forks),
    /// By the kernel where the program's own code touches it. What its calls touch is brought in
    /// before they are made: each process has a gate, and all have this bell.
    Calls(OwnedFd),
    /// By the program's own code, as a signal, of which its gate tells.
    Touches {
        /// Of all gates.
        bell: OwnedFd,
        /// Where agents connect, if nobody may take a descriptor of another process.
        listener: Option<OwnedFd>,
        /// Whether what is out has guards; else nobody may touch it.
        has_guards: bool,
    },
}

/// A machine on which programs can be paged from outside.
#[derive(Debug)]
pub struct Ground {
    pub(crate) eye: Eye,
}

impl Ground {
    /// Tries all that is needed. `forks` is where `overspill-forks` is, or would be.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find(forks: PathBuf) -> Result<Self, GroundError> {
        let forks = Forks::new(forks);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/userfaultfd", flags, Mode::empty()).map_err(GroundError::Device)?;
        let ask = |fd: BorrowedFd<'_>, features| forks.ask(fd, features);
        let abilities =
            GuestUserfault::abilities_by(device.as_fd(), ask).map_err(GroundError::Device)?;
        check(abilities, true).map_err(GroundError::Attaching)?;
        if have_same_memory(getpid(), getpid()) != Some(true) {
            return Err(GroundError::Compare);
        }
        may_trace()?;
        Ok(Self { eye: Eye::Faults(device, forks) })
    }

    /// Tries that, and without it what is needed where only a program's own touches are seen, and
    /// without that what is needed where not even those are.
    ///
    /// # Errors
    /// [`GroundError::NoWay`].
    pub fn find_any(forks: PathBuf) -> Result<Self, GroundError> {
        Self::find(forks).or_else(|faults| {
            let others = Self::find_calls().or_else(|_| Self::find_touches());
            others.map_err(|touches| GroundError::NoWay {
                faults: faults.into(),
                touches: touches.into(),
            })
        })
    }

    /// Tries what is needed without any userfaultfd, with guards (Linux 6.13) if there are any.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find_touches() -> Result<Self, GroundError> {
        Self::find_touches_by(may_guard()?)
    }

    /// The same without guards, as on a kernel that has none.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find_shut() -> Result<Self, GroundError> {
        may_guard()?;
        Self::find_touches_by(false)
    }

    fn find_touches_by(has_guards: bool) -> Result<Self, GroundError> {
        let bell = gated()?;
        let listener = if may_take_descriptors() { None } else { Some(listener()?) };
        Ok(Self { eye: Eye::Touches { bell, listener, has_guards } })
    }

    /// Tries what is needed without the right to see the kernel's touches.
    ///
    /// # Errors
    /// [`GroundError`]: what is lacking first.
    pub fn find_calls() -> Result<Self, GroundError> {
        let abilities = GuestUserfault::abilities_of_own().map_err(GroundError::Call)?;
        check(abilities, false).map_err(GroundError::Attaching)?;
        Ok(Self { eye: Eye::Calls(gated()?) })
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

/// Memory that processes can share.
pub(crate) fn shared_file(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes as u64)?;
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

    /// The other way round too: a machine with less is refused in words.
    #[test]
    fn what_root_may_here_is_enough_or_said_to_be_not() {
        match Ground::find("/nowhere/overspill-forks".into()) {
            Ok(ground) => assert!(matches!(ground.eye, Eye::Faults(..))),
            Err(lack) => println!("skipped: {lack}"),
        }
    }
}
