//! Whose process is at the other end of a socket.
//!
//! Invariants: the kernel goes on to say the number of a process that has ended, and may give it to
//! another one: it is that process's only while [`Peer::goes_on`]. A process of another PID
//! namespace has no number here. rustix's `socket_peercred` takes it for granted that it has one,
//! and knows nothing of SO_PEERPIDFD (Linux 6.5), so the calls are made here.

use crate::pidfd;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::os::unix::fs::MetadataExt;

/// Of Linux 6.5, everywhere but on SPARC and HP-PA; older libraries do not have it.
const SO_PEERPIDFD: libc::c_int = 77;

/// A process as the kernel noted it when it began to listen, or connected.
#[derive(Debug)]
pub struct Peer {
    /// Its effective user.
    pub user: u32,
    /// Its number then, unless it is in another PID namespace.
    pub process: Option<Pid>,
    handle: Handle,
}

#[derive(Debug)]
enum Handle {
    Open(OwnedFd),
    Ended,
    /// Before Linux 6.5.
    Unknown,
}

impl Peer {
    /// Whoever listened at the address to which `socket` was connected, or who connected it.
    ///
    /// # Errors
    /// Of getsockopt(2): it is no socket.
    pub fn of(socket: &impl AsRawFd) -> Result<Self, Errno> {
        let none = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let libc::ucred { pid, uid, .. } = option_of(socket, libc::SO_PEERCRED, none)?;
        Ok(Self { user: uid, process: Pid::from_raw(pid), handle: Handle::of(socket)? })
    }

    /// True if the process goes on, and its number is still its own. Where the kernel gives no
    /// descriptor: if a process with that number is its user's.
    pub fn goes_on(&self) -> bool {
        match (&self.handle, self.process) {
            (Handle::Open(process), _) => !pidfd::has_ended(process),
            (Handle::Ended, _) => false,
            (Handle::Unknown, Some(pid)) => {
                let found = std::fs::metadata(format!("/proc/{}", pid.as_raw_pid()));
                found.is_ok_and(|found| found.uid() == self.user)
            }
            (Handle::Unknown, None) => true,
        }
    }
}

impl Handle {
    fn of(socket: &impl AsRawFd) -> Result<Self, Errno> {
        match option_of(socket, SO_PEERPIDFD, -1) {
            // SAFETY: the kernel has just opened it for this process.
            Ok(process) => Ok(Self::Open(unsafe { OwnedFd::from_raw_fd(process) })),
            // It was reaped, as different kernels say, or there was none.
            Err(Errno::SRCH | Errno::NODATA | Errno::INVAL) => Ok(Self::Ended),
            Err(Errno::NOPROTOOPT) => Ok(Self::Unknown),
            Err(errno) => Err(errno),
        }
    }
}

fn option_of<T>(socket: &impl AsRawFd, option: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `to` has room for the `len` bytes that the kernel may write, which are a number or
    // numbers.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, to, &raw mut len) };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    #[test]
    fn who_connected_goes_on() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&socket).unwrap();
        assert_eq!(peer.process, Some(getpid()));
        assert!(peer.goes_on());
    }

    const CONNECT: &str = "OVERSPILL_TEST_CONNECT";

    /// As who wants the number that a process is about to have.
    #[test]
    fn a_number_that_was_left_behind_is_nobodys() {
        if let Some(path) = std::env::var_os(CONNECT) {
            let _socket = UnixStream::connect(path).unwrap();
            _ = std::io::stdin().read(&mut [0]);
            return;
        }
        let name = format!("overspill-peer-{}", getpid().as_raw_pid());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "peer::tests::a_number_that_was_left_behind_is_nobodys"]);
        child.env(CONNECT, &path).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        std::fs::remove_file(path).unwrap();
        let peer = Peer::of(&socket).unwrap();
        assert_eq!(peer.process, Some(Pid::from_child(&child)));
        assert!(peer.goes_on());
        drop(child.stdin.take());
        child.wait().unwrap();
        let later = Peer::of(&socket).unwrap();
        assert!(!peer.goes_on() && !later.goes_on(), "{later:?}");
    }
}
