//! Who is at the other end of a socket.
//!
//! Invariants: a process of another PID namespace has no number here. rustix's `socket_peercred`
//! takes it for granted that it has one, so the call is made here.

use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// A process as the kernel noted it when it began to listen, or connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// None if this process does not see that one.
    pub(super) process: Option<i32>,
    pub(super) user: u32,
}

impl Peer {
    /// Whoever listened at the address to which `socket` was connected, or who connected it.
    pub(super) fn of(socket: &impl AsRawFd) -> Result<Self, Errno> {
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
        let libc::ucred { pid, uid, .. } = credentials;
        Ok(Self { process: (pid != 0).then_some(pid), user: uid })
    }

    /// True if this is who was there `before`, as far as a process can tell that has moved to
    /// another PID namespace since.
    pub(super) fn is_still(self, before: Self) -> bool {
        match self.process {
            Some(_) => self.process == before.process,
            None => self.user == before.user,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_one_out_of_sight_by_its_user() {
        let joined = Peer { process: Some(42), user: 1000 };
        assert!(joined.is_still(joined));
        assert!(!Peer { process: Some(43), user: 1000 }.is_still(joined));
        assert!(Peer { process: None, user: 1000 }.is_still(joined));
        assert!(!Peer { process: None, user: 1 }.is_still(joined));
    }
}
