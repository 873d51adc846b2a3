//! An io_uring, for the buffers that it pins.
//!
//! Owns: making one and registering a buffer, which is pinned until the ring is closed.
//! Not here: requests.

use crate::alone::skip;
use crate::memory::{Range, last_error};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// A ring of four entries.
#[derive(Debug)]
pub struct Ring(OwnedFd);

impl Ring {
    /// A new one. Ends the rule where there is none.
    #[expect(clippy::new_without_default, reason = "it may end the rule")]
    pub fn new() -> Self {
        let mut parameters = [0_u32; 30];
        // SAFETY: the parameters of a ring are 120 bytes, which the kernel fills.
        match unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) } {
            // SAFETY: it is a new descriptor.
            fd if fd >= 0 => Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
            _ => skip(&format!("no io_uring: {}", last_error())),
        }
    }

    /// Registers a buffer (`IORING_REGISTER_BUFFERS`, 0).
    pub fn register(&self, buffer: Range) -> Result<(), Errno> {
        let vector = libc::iovec { iov_base: buffer.pointer(), iov_len: buffer.bytes() };
        let (fd, buffers) = (self.0.as_raw_fd(), &raw const vector);
        // SAFETY: one buffer, of memory for experiments.
        match unsafe { libc::syscall(libc::SYS_io_uring_register, fd, 0, buffers, 1) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }
}
