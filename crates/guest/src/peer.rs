//! Whose process is at the other end of a socket.
//!
//! Invariants: a process of another PID namespace has no number here. rustix's `socket_peercred`
//! takes it for granted that it has one, so the call is made here.

use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::process::Pid;

/// A process as the kernel noted it when it began to listen, or connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub user: u32,
    /// Its number, unless it is in another PID namespace.
    pub process: Option<Pid>,
}

impl Peer {
    /// Whoever listened at the address to which `socket` was connected, or who connected it.
    ///
    /// # Errors
    /// Of getsockopt(2): it is no socket.
    pub fn of(socket: &impl AsRawFd) -> Result<Self, Errno> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let to = (&raw mut credentials).cast();
        // SAFETY: `to` has room for the `len` bytes that the kernel may write.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut len) };
        if result < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        Ok(Self { user: credentials.uid, process: Pid::from_raw(credentials.pid) })
    }
}
