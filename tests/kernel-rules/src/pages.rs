//! What the kernel says of pages and mappings.
//!
//! Owns: bits of /proc/PID/pagemap, PAGEMAP_SCAN, lines of /proc/PID/maps and flags of smaps.
//! Not here: frame numbers without CAP_SYS_ADMIN, which are zero.

use crate::memory::{PAGE, Range, last_error};
use linux_raw_sys::general::{page_region, pm_scan_arg, procmap_query};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A word of pagemap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u64);

impl Entry {
    /// A page of this process.
    pub fn of(page: Range) -> Self {
        Self::in_process("self", page)
    }

    /// A page of a process, or of `self`.
    ///
    /// # Panics
    /// Its pagemap cannot be read.
    pub fn in_process(pid: &str, page: Range) -> Self {
        let file = File::open(format!("/proc/{pid}/pagemap")).expect("pagemap");
        let mut word = [0; 8];
        file.read_exact_at(&mut word, (page.start() / PAGE * 8) as u64).expect("a word of pagemap");
        Self(u64::from_ne_bytes(word))
    }

    /// It has a frame.
    pub fn is_present(self) -> bool {
        self.0 >> 63 != 0
    }

    /// Nothing is there: neither frame nor swap entry nor marker.
    pub fn is_empty(self) -> bool {
        self.0 >> 62 == 0 && !self.is_marked()
    }

    /// Write-protected by a userfaultfd, or marked so without content.
    pub fn is_marked(self) -> bool {
        self.0 >> 57 & 1 != 0
    }

    /// The number of its frame, zero without CAP_SYS_ADMIN.
    pub fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

/// How many pages of a range are present.
pub fn present_pages(range: Range) -> usize {
    (0..range.pages()).filter(|page| Entry::of(range.page(*page)).is_present()).count()
}

/// `PAGE_IS_PRESENT` (<linux/fs.h>).
pub const PAGE_IS_PRESENT: u64 = 1 << 3;

/// PAGEMAP_SCAN: the runs of pages of a category, as first page and end within the range.
pub fn scan(range: Range, category: u64) -> Result<Vec<(usize, usize)>, Errno> {
    let mut regions = [page_region { start: 0, end: 0, categories: 0 }; 16];
    let mut request = pm_scan_arg {
        size: size_of::<pm_scan_arg>() as u64,
        flags: 0,
        start: range.start() as u64,
        end: range.end() as u64,
        walk_end: 0,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages: 0,
        category_inverted: 0,
        category_mask: category,
        category_anyof_mask: 0,
        return_mask: category,
    };
    let file = File::open("/proc/self/pagemap").expect("pagemap");
    const SCAN: rustix::ioctl::Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);
    // SAFETY: the argument is of the type that the opcode names, and `vec` is as long as it says.
    // rustix returns no number here, so the array's end is found by its zeros.
    unsafe { ioctl(&file, Updater::<SCAN, _>::new(&mut request)) }?;
    let page = |address: u64| (address as usize - range.start()) / PAGE;
    let found = regions.iter().filter(|region| region.end != 0);
    Ok(found.map(|region| (page(region.start), page(region.end))).collect())
}

/// PROCMAP_QUERY: the bounds of the mapping at a range's start.
pub fn mapping_at(range: Range) -> Result<(usize, usize), Errno> {
    // SAFETY: all zeros is a request without wishes.
    let mut request: procmap_query = unsafe { std::mem::zeroed() };
    request.size = size_of::<procmap_query>() as u64;
    request.query_addr = range.start() as u64;
    let maps = File::open("/proc/self/maps").expect("maps");
    const QUERY: rustix::ioctl::Opcode = opcode::read_write::<procmap_query>(b'f', 17);
    // SAFETY: the argument is of the type that the opcode names, and asks for no names.
    unsafe { ioctl(&maps, Updater::<QUERY, _>::new(&mut request)) }?;
    Ok((request.vma_start as usize, request.vma_end as usize))
}

/// How many mappings lie in a range, wholly or in part.
///
/// # Panics
/// /proc/self/maps is not what it should be.
pub fn mappings(range: Range) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let bounds = maps.lines().map(|line| bounds_of(line).expect("two addresses"));
    bounds.filter(|(start, end)| *start < range.end() && *end > range.start()).count()
}

/// Returns true if smaps shows a flag (two letters) for the mapping where a range starts.
///
/// # Panics
/// /proc/self/smaps has no such mapping.
pub fn has_flag(range: Range, flag: &str) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let holds = |line: &&str| {
        bounds_of(line).is_some_and(|(start, end)| (start..end).contains(&range.start()))
    };
    let mut lines = smaps.lines().skip_while(|line| !holds(line));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("the mapping's flags");
    flags.split_whitespace().any(|word| word == flag)
}

fn bounds_of(line: &str) -> Option<(usize, usize)> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    Some((address(start)?, address(end)?))
}

/// Reads the byte at a range's start from /proc/PID/mem.
pub fn read_by_mem(pid: &str, at: Range) -> Result<u8, Errno> {
    let file = File::open(format!("/proc/{pid}/mem")).expect("mem");
    let mut byte = [0];
    let read = file.read_at(&mut byte, at.start() as u64);
    read.map(|_| byte[0]).map_err(|error| Errno::from_io_error(&error).expect("an error number"))
}

/// Reads the byte at a range's start by process_vm_readv, which pins the page for a moment.
pub fn read_by_pin(at: Range) -> Result<u8, Errno> {
    let mut byte = 0_u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: at.pointer(), iov_len: 1 };
    // SAFETY: both vectors are of one byte; `to` is this function's own.
    match unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) }
    {
        1 => Ok(byte),
        _ => Err(last_error()),
    }
}
