//! The files by which this process looks at its own memory.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

/// `/proc/self/mem`: this process's memory, whatever the protection.
#[derive(Debug)]
pub(crate) struct OwnMemory(OwnedFd);

impl OwnMemory {
    pub(crate) fn open() -> Result<Self, Errno> {
        open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }

    /// All of `into`, or an error: of a page that is not there, too.
    pub(crate) fn read(&self, address: usize, into: &mut [u8]) -> Result<(), Errno> {
        all(into.len(), |done| pread(&self.0, &mut into[done..], (address + done) as u64))
    }

    /// All of `content`, or an error.
    pub(crate) fn write(&self, address: usize, content: &[u8]) -> Result<(), Errno> {
        all(content.len(), |done| pwrite(&self.0, &content[done..], (address + done) as u64))
    }
}

/// `/proc/self/pagemap`: what is where.
pub(crate) fn pagemap() -> Result<OwnedFd, Errno> {
    open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Calls, with how much is done, until all is.
fn all(len: usize, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match retry_on_intr(|| call(done))? {
            0 => return Err(Errno::IO),
            more => done += more,
        }
    }
    Ok(())
}
