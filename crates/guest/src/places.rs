//! Places in an address space: where a call can be made, and where an agent can lie.
//!
//! Owns: the search for both in a process's list of mappings.
//! Invariants: a place for the agent is free when it is chosen, never at the stack's end, where it
//! would be in the way, and at the end of its gap, which the kernel fills last.
//! Not here: the map of what is paged, which changes.

use crate::arch::{GATE, GATE_ALIGNMENT, HIGHEST};
use rustix::fd::AsFd;
use rustix::fs::{fstat, major, minor};
use rustix::io::Errno;
use std::ops::Range;

/// A mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mapping<'t> {
    range: Range<u64>,
    is_code: bool,
    file: Option<FileId>,
    name: &'t str,
}

/// Which file something is, whatever it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// Of an open file.
    ///
    /// # Errors
    /// Of fstat.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        let found = fstat(file)?;
        Ok(Self { device: (major(found.st_dev), minor(found.st_dev)), inode: found.st_ino })
    }

    /// As a list of mappings has it: `fd:01` and `4711`.
    fn parse(device: &str, inode: &str) -> Option<Self> {
        let (major, minor) = device.split_once(':')?;
        let number = |word| u32::from_str_radix(word, 16).ok();
        Some(Self { device: (number(major)?, number(minor)?), inode: inode.parse().ok()? })
    }
}

/// Below this nothing is mapped, so that null pointers stay such.
const LOWEST: u64 = 1 << 20;
/// Bytes of a piece of code that are searched at a time.
const SEARCH_BYTES: u64 = 1 << 16;

fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |word| u64::from_str_radix(word, 16).ok();
        let is_code = words.next()?.contains('x');
        let (device, inode) = (words.nth(1)?, words.next()?);
        let name = words.next().unwrap_or_default().trim_start();
        let file = FileId::parse(device, inode);
        Some(Mapping { range: number(start)?..number(end)?, is_code, file, name })
    })
}

/// What the file of a gate's letters is called.
pub const LETTERS: &str = "overspill-letters";

/// Returns where a process has the letters of a gate, by which its calls go, as far as names tell.
pub(crate) fn letters(maps: &str) -> Option<u64> {
    letter_mappings(maps).next().map(|mapping| mapping.range.start)
}

/// The files of letters that a process has mapped, as far as names tell: these are the process's
/// to choose.
pub fn letter_files(maps: &str) -> impl Iterator<Item = FileId> {
    letter_mappings(maps).filter_map(|mapping| mapping.file)
}

fn letter_mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    mappings(maps).filter(|mapping| {
        let name = mapping.name.strip_prefix("/memfd:");
        name.is_some_and(|name| name.starts_with(LETTERS))
    })
}

/// Returns where the program's code makes system calls, or could: in the kernel's own code first,
/// which every program has. `read` reads memory.
pub(crate) fn gate(maps: &str, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<u64> {
    let mut code: Vec<_> = mappings(maps).filter(is_searched).collect();
    code.sort_by_key(|mapping| mapping.name != "[vdso]");
    code.into_iter().find_map(|mapping| gate_in(mapping.range, &read))
}

fn is_searched(mapping: &Mapping<'_>) -> bool {
    mapping.is_code && mapping.name != "[vsyscall]"
}

fn gate_in(range: Range<u64>, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<u64> {
    let starts = range.clone().step_by(SEARCH_BYTES as usize);
    starts.into_iter().find_map(|start| {
        let mut bytes = vec![0; u64::min(SEARCH_BYTES, range.end - start) as usize];
        if !read(start, &mut bytes) {
            return None;
        }
        let is_gate = |at: &usize| bytes[*at..].starts_with(GATE);
        let at = (0..bytes.len()).step_by(GATE_ALIGNMENT).find(is_gate)?;
        Some(start + at as u64)
    })
}

/// Returns where `bytes` are free, right below another mapping and as high as they can be.
pub(crate) fn free(maps: &str, bytes: u64) -> Option<u64> {
    let all: Vec<_> = mappings(maps).filter(|mapping| mapping.range.start < HIGHEST).collect();
    let starts = std::iter::once(LOWEST).chain(all.iter().map(|mapping| mapping.range.end));
    let gaps = starts.zip(&all).filter(|(_, above)| above.name != "[stack]");
    let fitting = gaps.filter(|(start, above)| above.range.start >= start.saturating_add(bytes));
    fitting.map(|(_, above)| above.range.start - bytes).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        00400000-00500000 r-xp 00000000 08:01 12    /usr/bin/a program\n\
        00600000-00700000 rw-p 00000000 00:00 0     [heap]\n\
        7f0000000000-7f0000010000 r-xp 00000000 00:00 0 \n\
        7f0000012000-7f0000014000 r-xp 00000000 00:00 0 [vdso]\n\
        7ffff0000000-7ffff0010000 rw-p 00000000 00:00 0 [stack]\n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    #[test]
    fn a_place_is_free_and_high_but_not_below_the_stack() {
        assert_eq!(free(MAPS, 0x1000), Some(0x7f00_0001_1000));
        assert_eq!(free(MAPS, 0x5000), Some(0x7eff_ffff_b000));
        assert_eq!(free("00100000-7ffff0000000 rw-p 0 0 0\n", 0x5000), None);
    }

    #[test]
    fn a_mapped_file_is_known_whatever_it_is_called() {
        let name = format!("{LETTERS} of mine");
        let file = rustix::fs::memfd_create(&name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: it is new, and nobody uses it.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, &file, 0) }
            .unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(letter_files(&maps).any(|found| found == FileId::of(&file).unwrap()), "{maps}");
        assert_eq!(letter_files(MAPS).count(), 0);
    }

    /// Nothing of such a one lies below half of the addresses of AArch64.
    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_place_is_free_where_a_program_of_aarch64_lies() {
        let maps = "aaaac0000000-aaaac0010000 r-xp 0 0 0 /usr/bin/sort\n\
            ffff80000000-ffff80020000 r-xp 0 0 0 /lib/libc.so.6\n\
            ffffd0000000-ffffd0020000 rw-p 0 0 0 [stack]\n";
        assert_eq!(free(maps, 0x4000), Some(0xffff_7fff_c000));
    }

    #[test]
    fn the_gate_is_in_the_kernels_own_code_or_in_any() {
        let at = |place: u64| {
            move |start: u64, bytes: &mut [u8]| {
                let inside = place.checked_sub(start).map(|at| at as usize);
                if let Some(at) = inside.filter(|at| at + GATE.len() <= bytes.len()) {
                    bytes[at..at + GATE.len()].copy_from_slice(GATE);
                }
                true
            }
        };
        assert_eq!(gate(MAPS, at(0x7f00_0001_2440)), Some(0x7f00_0001_2440));
        assert_eq!(gate(MAPS, at(0x4f_0000)), Some(0x4f_0000));
        assert_eq!(gate(MAPS, at(0x60_0000)), None);
        assert_eq!(gate(MAPS, |_, _| false), None);
    }
}
