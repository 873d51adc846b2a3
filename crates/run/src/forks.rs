//! The right to messages of forks.
//!
//! Owns: asking the kernel for them: by ourselves, or by `overspill-forks`, which a package
//! installs with a capability of its own for users who have none.
//! Invariant: whatever becomes of that program, the userfaultfd reports forks or it is refused.
//! Not here: which features are asked for (`guest`).

use overspill_guest::userfault::ask;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Who asks for messages of forks.
#[derive(Debug)]
pub struct Forks {
    /// The program that has the right, if it is installed.
    program: PathBuf,
}

impl Forks {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Makes UFFDIO_API of `fd`, if need be by the program.
    ///
    /// # Errors
    /// Of the kernel. EPERM: nobody here has the right.
    pub(crate) fn ask(&self, fd: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
        match ask(fd, features) {
            Err(Errno::PERM) => self.have_asked(fd, features),
            done => done,
        }
    }

    fn have_asked(&self, fd: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 3)?;
        let mut command = Command::new(&self.program);
        command.arg(format!("{features:x}")).env_clear();
        command.stdin(fd).stdout(Stdio::null()).stderr(Stdio::null());
        // One that cannot be executed, as by who is not of its group, is none.
        let status = command.status().map_err(|_| Errno::PERM)?;
        match status.code() {
            Some(0) => Ok(()),
            Some(errno) => Err(Errno::from_raw_os_error(errno)),
            None => Err(Errno::IO),
        }
    }
}
