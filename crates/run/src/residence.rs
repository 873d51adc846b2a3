//! Where the memory of a process is, for who looks at it from outside.
//!
//! Invariants: it is the kernel's page table that is read, not what a run says of itself; who may
//! not read that sees nothing. What was never touched is skipped.
//! Not here: which processes a run has, and whom to believe that.

use overspill_guest::pagemap::Pagemap;
use overspill_guest::{Vpn, mappings};
use std::fs::File;
use std::io;
use std::ops::Range;

/// Calls `each` for each run of pages, by their numbers in the address space, that a process has
/// filled of memory that can be paged, in order, and says whether they are in memory.
///
/// # Errors
/// Of the kernel: there is no such process, or this one may not look at it.
pub fn residence(process: i32, mut each: impl FnMut(Range<u64>, bool)) -> io::Result<()> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let pagemap = Pagemap::new(File::open(format!("/proc/{process}/pagemap"))?.into());
    let mut each = |run: Range<Vpn>, in_memory| each(run.start.0..run.end.0, in_memory);
    for mapping in mappings::parse_list(&maps).into_iter().filter(|mapping| mapping.is_pageable) {
        pagemap.filled(&mapping.place, &mut each)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_has_written_is_in_memory() {
        const PAGES: usize = 64;
        let memory = vec![1u8; PAGES << 12];
        let first = (memory.as_ptr().addr() as u64).div_ceil(1 << 12);
        let mut found = 0;
        residence(std::process::id() as i32, |run, in_memory| {
            let (start, end) = (run.start.max(first), run.end.min(first + PAGES as u64 - 1));
            found += if in_memory { end.saturating_sub(start) } else { 0 };
        })
        .unwrap();
        assert_eq!(found, PAGES as u64 - 1);
        assert!(residence(i32::MAX, |_, _| ()).is_err());
    }
}
