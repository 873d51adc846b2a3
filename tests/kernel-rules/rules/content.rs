//! What others see of memory that is out: core dumps.
//!
//! Owns: that a dump has holes where pages are absent, and nothing else missing.

use overspill_kernel_rules::alone::{alone, skip};
use overspill_kernel_rules::memory::{PAGE, Range};
use overspill_kernel_rules::process::fork;
use overspill_kernel_rules::uffd::{Uffd, flag};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::PathBuf;

/// mm/gup.c, get_dump_page; fs/coredump.c, dump_user_range: an absent page is skipped, without a
/// message, and is zeros in the file, at the place where its content belongs.
#[test]
fn a_core_dump_has_holes_where_pages_are_absent() {
    alone(|| {
        Uffd::needed(flag::EVENTS);
        let folder = folder_for_core();
        let range = Range::anonymous(16);
        let child = fork(|| {
            std::env::set_current_dir(&folder).unwrap();
            setrlimit(Resource::Core, Rlimit { current: None, maximum: None }).unwrap();
            let uffd = Uffd::new(flag::EVENTS);
            range.part(0, 4).fill(7);
            range.part(8, 16).fill(7);
            uffd.watch(range);
            std::process::abort();
        });
        assert!(child.end().signaled());
        let core = core_in(&folder);
        let start = place_in(&core, range.start() as u64).expect("the range is in the file");
        let firsts: Vec<u8> = (0..16).map(|page| core[start + page * PAGE]).collect();
        let expected: Vec<u8> =
            (0..16).map(|page| if (4..8).contains(&page) { 0 } else { 7 }).collect();
        assert_eq!(firsts, expected);
        std::fs::remove_dir_all(folder).unwrap();
    });
}

/// A new folder for it, if cores go to files where a program works.
fn folder_for_core() -> PathBuf {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let goes_elsewhere = pattern.starts_with(['|', '/', '@']) || pattern.trim().is_empty();
    if goes_elsewhere {
        skip(&format!("core dumps go elsewhere: {}", pattern.trim()));
    }
    let folder = std::env::temp_dir().join(format!("overspill-core-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn core_in(folder: &PathBuf) -> Vec<u8> {
    let file = std::fs::read_dir(folder).unwrap().next().expect("a core file").unwrap().path();
    std::fs::read(file).unwrap()
}

/// Where an address is in a core file, by its program headers (ELF, 64 bits, this byte order).
fn place_in(core: &[u8], address: u64) -> Option<usize> {
    let word = |at: usize| u64::from_ne_bytes(core[at..at + 8].try_into().unwrap());
    let half = |at: usize| usize::from(u16::from_ne_bytes(core[at..at + 2].try_into().unwrap()));
    let (table, size, count) = (word(32) as usize, half(54), half(56));
    (0..count).map(|index| table + index * size).find_map(|header| {
        let (offset, start, length) = (word(header + 8), word(header + 16), word(header + 32));
        let inside = (start..start + length).contains(&address);
        inside.then(|| (offset + address - start) as usize)
    })
}
