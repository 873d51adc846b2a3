//! The file of a run's encryption keys.
//!
//! Owns: where the keys are kept: in memory that the kernel itself does not map, swap or dump, if
//! it has `memfd_secret` (Linux 5.14, on by default since 6.5) and `ulimit -l` leaves a page for
//! it; otherwise in a memory file whose page is locked.
//! Not here: drawing and using them (`device::seal`).

use crate::error::Error;
use overspill_device::seal::Keys;
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;

/// A file with new keys, and the keys.
///
/// # Errors
/// [`Error::System`].
pub(crate) fn new_keys() -> Result<(OwnedFd, Keys), Error> {
    let made = drawn(secret_file()).or_else(|_| drawn(memory_file()));
    made.map_err(|errno| Error::system("make encryption keys")(errno.into()))
}

fn drawn(file: Result<OwnedFd, Errno>) -> Result<(OwnedFd, Keys), Errno> {
    let file = file?;
    ftruncate(&file, Keys::FILE_BYTES as u64)?;
    let keys = Keys::draw(&file)?;
    Ok((file, keys))
}

/// rustix has no such call.
fn secret_file() -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes flags and no address.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS));
    }
    // SAFETY: a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn memory_file() -> Result<OwnedFd, Errno> {
    memfd_create("overspill-keys", MemfdFlags::CLOEXEC)
}
