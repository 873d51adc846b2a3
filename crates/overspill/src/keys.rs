//! The file of a run's encryption keys.
//!
//! Owns: the file: memory, which whoever draws the keys locks.
//! Not here: drawing and using them (`device::seal`).
//! Rejected: `memfd_secret`, whose pages even the kernel does not map. As long as such a file is
//! open the machine cannot hibernate, and a process that may lock no memory (`ulimit -l 0`) cannot
//! map it and would run without its limit.

use crate::error::Error;
use overspill_device::seal::Keys;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;

/// A file with new keys, and the keys, which stay in memory as long as this process has them.
///
/// # Errors
/// [`Error::System`].
pub(crate) fn new_keys() -> Result<(OwnedFd, Keys), Error> {
    drawn().map_err(|errno| Error::system("make encryption keys")(errno.into()))
}

fn drawn() -> Result<(OwnedFd, Keys), Errno> {
    let file = memfd_create("overspill-keys", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, Keys::FILE_BYTES as u64)?;
    let keys = Keys::draw(&file)?;
    Ok((file, keys))
}
