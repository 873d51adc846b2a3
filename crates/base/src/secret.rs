//! Memory that only the process that made it has.
//!
//! Owns: pages that a forked child finds full of zeros. [`Secret`] is one with random bytes;
//! [`Maker`] is one by which a process knows whether it is the one that made something.
//! Invariants: a secret is in one place, from which it is only borrowed. The kernel draws it there;
//! it is locked, as far as `ulimit -l` permits, no part of a core dump, and cleared in the end.
//! Rejected: `memfd_secret`, whose pages even the kernel does not map. As long as such a file is
//! open the machine cannot hibernate, and who may lock no memory (`ulimit -l 0`) cannot map it.
//! For [`Maker`], a process's number: asking for it is a system call each time.

use crate::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mlock, mmap_anonymous, mprotect, munmap,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::c_void;
use std::fmt;

/// A page that a forked child has as zeros. Nobody writes to it but who made it, before it is here.
struct OwnPage(*mut c_void);

// SAFETY: the page is only read, or shared as `&[u8]` as any other memory.
unsafe impl Send for OwnPage {}
// SAFETY: as above.
unsafe impl Sync for OwnPage {}

impl OwnPage {
    fn new(fill: impl FnOnce(&mut [u8]) -> Result<(), Errno>) -> Result<Self, Errno> {
        let (null, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping.
        let page = Self(unsafe { mmap_anonymous(null, PAGE_SIZE, access, MapFlags::PRIVATE) }?);
        // SAFETY: our own mapping; no content changes. A kernel that wipes nothing refuses, and so
        // do we; of the others it depends only what may be dumped, or written to swap.
        unsafe {
            madvise(page.0, PAGE_SIZE, Advice::LinuxWipeOnFork)?;
            let _ = madvise(page.0, PAGE_SIZE, Advice::LinuxDontDump);
            let _ = mlock(page.0, PAGE_SIZE);
        }
        // SAFETY: a page that is here alone.
        fill(unsafe { std::slice::from_raw_parts_mut(page.0.cast(), PAGE_SIZE) })?;
        // SAFETY: nobody writes to it any more, until it is dropped.
        unsafe { mprotect(page.0, PAGE_SIZE, MprotectFlags::READ) }?;
        Ok(page)
    }

    fn bytes(&self) -> &[u8; PAGE_SIZE] {
        // SAFETY: a page of ours, which is not written to while it is borrowed.
        unsafe { &*self.0.cast() }
    }
}

impl Drop for OwnPage {
    fn drop(&mut self) {
        // SAFETY: nobody borrows the page any more, which is ours, in a forked child too. The
        // kernel clears what it gives to others; until then it would stay as it is.
        unsafe {
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            if mprotect(self.0, PAGE_SIZE, access).is_ok() {
                self.0.cast::<[u8; PAGE_SIZE]>().write_volatile([0; PAGE_SIZE]);
            }
            let _ = munmap(self.0, PAGE_SIZE);
        }
    }
}

/// Random bytes that nobody else has.
pub struct Secret(OwnPage);

impl fmt::Debug for Secret {
    /// Nothing of what it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Size in bytes, of which all are drawn at once.
    pub const BYTES: usize = 256;

    /// Draws one. Blocks until the kernel has gathered enough randomness, early after its start.
    ///
    /// # Errors
    /// Of mmap(2), madvise(2) and getrandom(2).
    pub fn draw() -> Result<Self, Errno> {
        // Requests of up to 256 bytes are never short.
        let draw = |page: &mut [u8]| {
            getrandom(&mut page[..Self::BYTES], GetRandomFlags::empty()).map(drop)
        };
        OwnPage::new(draw).map(Self)
    }

    /// The bytes, where they are; zeros in a forked child.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        self.0.bytes().first_chunk().expect("a page has as many")
    }
}

/// Which process made something that a forked child must not use.
pub struct Maker(OwnPage);

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Maker").field(&self.is_here()).finish()
    }
}

impl Maker {
    /// This process.
    ///
    /// # Errors
    /// Of mmap(2) and madvise(2).
    pub fn new() -> Result<Self, Errno> {
        let mark = |page: &mut [u8]| {
            page[0] = 1;
            Ok(())
        };
        OwnPage::new(mark).map(Self)
    }

    /// True in the process that made it, false in those that it forked since.
    pub fn is_here(&self) -> bool {
        self.0.bytes()[0] != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a forked child says of `check`.
    fn in_child(check: impl Fn() -> bool) -> bool {
        // SAFETY: the child only looks, and ends.
        match unsafe { libc::fork() } {
            // SAFETY: it ends without anything that this process would do at its end.
            0 => unsafe { libc::_exit(i32::from(!check())) },
            child => {
                let mut status = -1;
                // SAFETY: `status` is written.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                status == 0
            }
        }
    }

    #[test]
    fn a_child_has_neither() {
        let (secret, maker) = (Secret::draw().unwrap(), Maker::new().unwrap());
        let other = Secret::draw().unwrap();
        assert!(secret.bytes() != other.bytes() && maker.is_here());
        assert!(in_child(|| secret.bytes() == &[0; Secret::BYTES] && !maker.is_here()));
        assert!(maker.is_here() && secret.bytes() != &[0; Secret::BYTES]);
    }

    /// Shown by what the kernel keeps of the mapping.
    #[test]
    fn it_is_in_no_dump_and_no_swap() {
        let secret = Secret::draw().unwrap();
        let address = secret.bytes().as_ptr().addr();
        let has_it = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let [start, end] = [start, end].map(|end| usize::from_str_radix(end, 16).ok());
            Some((start?..end?).contains(&address))
        };
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| has_it(line) != Some(true));
        let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
        for flag in ["dd", "wf", "lo"] {
            assert!(flags.split(' ').any(|found| found == flag), "{flag} is not in {flags}");
        }
        assert!(!format!("{secret:?}").contains(char::is_numeric));
    }
}
