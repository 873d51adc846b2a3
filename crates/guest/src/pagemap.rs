//! What a guest's page table says of its pages.
//!
//! Owns: `/proc/PID/pagemap`, opened by whoever attached: the right is checked then, and the file
//! stays that address space's.

use crate::Vpn;
use linux_raw_sys::general as raw;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;
use std::ops::Range;

/// Bits of an entry: in memory; swapped out by the kernel; marked as out by a keeper; a guard
/// region of the guest's (6.15), which looks like something swapped out; nobody else's.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const GUARD: u64 = 1 << 58;
const MARKED: u64 = 1 << 57;
const EXCLUSIVE: u64 = 1 << 56;
/// Entries read at a time.
const BATCH: usize = 512;

/// Regions that one scan returns.
const REGIONS: usize = 64;

/// PAGEMAP_SCAN, which returns the number of regions.
struct Scan<'a>(&'a mut raw::pm_scan_arg);

// SAFETY: the opcode is made from the argument's own layout, and the result is a count.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<raw::pm_scan_arg>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<usize, Errno> {
        Ok(out as usize)
    }
}

/// What is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A page, in memory or with the kernel.
    Present,
    /// A keeper has its content.
    Marked,
    /// A guard of the guest's: a touch raises SIGSEGV.
    Guarded,
    /// Nothing.
    Nothing,
}

impl Entry {
    fn of(bits: u64) -> Self {
        match bits {
            bits if bits & GUARD != 0 => Self::Guarded,
            bits if bits & PRESENT != 0 => Self::Present,
            // A marker is an entry of swap with nothing but the mark.
            bits if bits & MARKED != 0 => Self::Marked,
            bits if bits & SWAPPED != 0 => Self::Present,
            _ => Self::Nothing,
        }
    }
}

/// The file.
#[derive(Debug)]
pub struct Pagemap(OwnedFd);

impl Pagemap {
    /// Takes an open `/proc/PID/pagemap`.
    pub fn new(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Returns what is at an address.
    ///
    /// # Errors
    /// Of the kernel; ESRCH if the address space has ended.
    pub fn at(&self, at: Vpn) -> Result<Entry, Errno> {
        Ok(Entry::of(self.bits(at)?))
    }

    /// True if there is a page in memory that another process has, too.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub fn is_shared(&self, at: Vpn) -> Result<bool, Errno> {
        Ok(self.bits(at)? & (PRESENT | EXCLUSIVE) == PRESENT)
    }

    fn bits(&self, at: Vpn) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Calls `each` for each run of addresses in `place` that have the same.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub fn runs(
        &self,
        place: &Range<Vpn>,
        mut each: impl FnMut(Range<Vpn>, Entry),
    ) -> Result<(), Errno> {
        let mut bytes = [0; BATCH * 8];
        let mut run = place.start..place.start;
        let mut had = Entry::Nothing;
        while run.end < place.end {
            let pages = (place.end.0 - run.end.0).min(BATCH as u64) as usize;
            self.read(run.end, &mut bytes[..pages * 8])?;
            for bits in bytes[..pages * 8].chunks_exact(8) {
                let entry = Entry::of(u64::from_ne_bytes(bits.try_into().expect("8 bytes")));
                if entry != had && !run.is_empty() {
                    each(run.clone(), had);
                    run.start = run.end;
                }
                (had, run.end) = (entry, run.end.plus(1));
            }
        }
        if !run.is_empty() {
            each(run, had);
        }
        Ok(())
    }

    /// Calls `each` for each run of pages in `place` that are in memory or with the kernel. Skips
    /// what was never touched, since Linux 6.7 without looking at it.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub fn present(
        &self,
        place: &Range<Vpn>,
        mut each: impl FnMut(Range<Vpn>),
    ) -> Result<(), Errno> {
        let mut start = place.start;
        while start < place.end {
            match self.scan(&(start..place.end), &mut each) {
                Ok(end) => start = end,
                Err(Errno::NOTTY) => {
                    return self.runs(&(start..place.end), |run, entry| {
                        if entry == Entry::Present {
                            each(run);
                        }
                    });
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// PAGEMAP_SCAN; returns how far it came.
    fn scan(&self, place: &Range<Vpn>, each: &mut impl FnMut(Range<Vpn>)) -> Result<Vpn, Errno> {
        let mut regions = [raw::page_region { start: 0, end: 0, categories: 0 }; REGIONS];
        let there = u64::from(raw::PAGE_IS_PRESENT);
        let mut arg = raw::pm_scan_arg {
            size: size_of::<raw::pm_scan_arg>() as u64,
            flags: 0,
            start: place.start.address(),
            end: place.end.address(),
            walk_end: 0,
            vec: regions.as_mut_ptr().addr() as u64,
            vec_len: REGIONS as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: there,
            category_anyof_mask: 0,
            return_mask: there,
        };
        // SAFETY: SCAN was made from pm_scan_arg, and `regions` has room for as many as it says.
        let found = unsafe { ioctl(&self.0, Scan(&mut arg)) }?;
        for region in regions.iter().take(found) {
            each(Vpn::range(&(region.start..region.end)));
        }
        let end = Vpn::of(arg.walk_end);
        if end > place.start { Ok(end.min(place.end)) } else { Err(Errno::IO) }
    }

    fn read(&self, at: Vpn, bytes: &mut [u8]) -> Result<(), Errno> {
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut *bytes, at.0 * 8))?;
        // An address space that has ended has no entries.
        if read == bytes.len() { Ok(()) } else { Err(Errno::SRCH) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_mean_what_this_table_says() {
        assert_eq!(Entry::of(0), Entry::Nothing);
        assert_eq!(Entry::of(PRESENT), Entry::Present);
        assert_eq!(Entry::of(PRESENT | MARKED), Entry::Present);
        assert_eq!(Entry::of(SWAPPED), Entry::Present);
        assert_eq!(Entry::of(SWAPPED | MARKED), Entry::Marked);
        assert_eq!(Entry::of(SWAPPED | GUARD), Entry::Guarded);
    }

    #[test]
    fn runs_of_this_process_are_what_it_wrote() {
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut memory = vec![0u8; 2000 * 4096];
        let first = Vpn::of(memory.as_ptr().addr() as u64 + 4095).plus(512);
        let start = (first.address() - memory.as_ptr().addr() as u64) as usize;
        memory[start + 7 * 4096] = 1;
        memory[start + 8 * 4096] = 1;
        let mut present = Vec::new();
        let see = |run, entry| {
            if entry == Entry::Present {
                present.push(run);
            }
        };
        Pagemap::new(file.into()).runs(&first.run(1000), see).unwrap();
        let touched = first.plus(7).run(2);
        assert!(present.iter().any(|run| run.start <= touched.start && touched.end <= run.end));
        assert!(memory.len() > 1);
    }
}
