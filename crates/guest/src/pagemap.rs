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
        let rest = self.scan_all(place, raw::PAGE_IS_PRESENT, |run, _| each(run))?;
        self.runs(&rest, |run, entry| {
            if entry == Entry::Present {
                each(run);
            }
        })
    }

    /// Calls `each` for each run of pages in `place` that are there, and says whether they are in
    /// memory: the others are out. Skips what was never touched, as [`present`](Self::present).
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub fn filled(
        &self,
        place: &Range<Vpn>,
        mut each: impl FnMut(Range<Vpn>, bool),
    ) -> Result<(), Errno> {
        let there = raw::PAGE_IS_PRESENT | raw::PAGE_IS_SWAPPED;
        let rest = self.scan_all(place, there, &mut each)?;
        self.runs(&rest, |run, entry| {
            if entry != Entry::Nothing {
                each(run, entry == Entry::Present);
            }
        })
    }

    /// Calls `each` for each run of pages in `place` of one of these categories, and says whether
    /// they are in memory; returns what the kernel did not scan: before Linux 6.7 all.
    fn scan_all(
        &self,
        place: &Range<Vpn>,
        categories: u32,
        mut each: impl FnMut(Range<Vpn>, bool),
    ) -> Result<Range<Vpn>, Errno> {
        let mut rest = place.clone();
        while !rest.is_empty() {
            match self.scan(&rest, categories, &mut each) {
                Ok(end) => rest.start = end,
                Err(Errno::NOTTY) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(rest)
    }

    /// PAGEMAP_SCAN; returns how far it came.
    fn scan(
        &self,
        place: &Range<Vpn>,
        categories: u32,
        each: &mut impl FnMut(Range<Vpn>, bool),
    ) -> Result<Vpn, Errno> {
        let mut regions = [raw::page_region { start: 0, end: 0, categories: 0 }; REGIONS];
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
            category_mask: 0,
            category_anyof_mask: categories.into(),
            return_mask: categories.into(),
        };
        // SAFETY: SCAN was made from pm_scan_arg, and `regions` has room for as many as it says.
        let found = unsafe { ioctl(&self.0, Scan(&mut arg)) }?;
        for region in regions.iter().take(found) {
            let in_memory = region.categories & u64::from(raw::PAGE_IS_PRESENT) != 0;
            each(Vpn::range(&(region.start..region.end)), in_memory);
        }
        let end = Vpn::of(arg.walk_end);
        if end > place.start { Ok(end.min(place.end)) } else { Err(Errno::IO) }
    }

    /// Behind the last address that the process can have there is nothing.
    fn read(&self, at: Vpn, bytes: &mut [u8]) -> Result<(), Errno> {
        let read = self.read_some(at, bytes)?;
        // An address space that has ended has no entries, not even the first of these.
        if read < bytes.len() && self.read_some(at, &mut [0; 8])? < 8 {
            return Err(Errno::SRCH);
        }
        bytes[read..].fill(0);
        Ok(())
    }

    fn read_some(&self, at: Vpn, bytes: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut *bytes, at.0 * 8))
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

    /// A stack may lie there: where addresses are not random, each does.
    #[test]
    fn behind_the_last_address_there_is_nothing() {
        let of_this = || Pagemap::new(std::fs::File::open("/proc/self/pagemap").unwrap().into());
        // Of x86-64 with four levels, which ends a page before.
        let block = Vpn::of(0x7fff_ffe0_0000).run(512);
        let mut looked = 0;
        of_this().runs(&block, |run, _| looked += run.end.0 - run.start.0).unwrap();
        assert_eq!(looked, 512);
    }

    #[test]
    fn an_address_space_that_has_ended_has_no_entries() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let file = std::fs::File::open(format!("/proc/{}/pagemap", child.id())).unwrap();
        let pagemap = Pagemap::new(file.into());
        assert!(pagemap.at(Vpn(16)).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = pagemap.runs(&Vpn(16).run(100), |_, _| {});
        assert_eq!((ended, pagemap.at(Vpn(16)).map(drop)), (Err(Errno::SRCH), Err(Errno::SRCH)));
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
        let pagemap = Pagemap::new(file.into());
        pagemap.runs(&first.run(1000), see).unwrap();
        let touched = first.plus(7).run(2);
        let is_in = |run: &Range<Vpn>| run.start <= touched.start && touched.end <= run.end;
        assert!(present.iter().any(is_in));
        let (mut scanned, mut filled) = (Vec::new(), Vec::new());
        pagemap.present(&first.run(1000), |run| scanned.push(run)).unwrap();
        pagemap.filled(&first.run(1000), |run, in_memory| filled.push((run, in_memory))).unwrap();
        assert!(scanned.iter().any(is_in));
        assert!(filled.iter().any(|(run, in_memory)| *in_memory && is_in(run)), "{filled:?}");
        assert!(memory.len() > 1);
    }
}
