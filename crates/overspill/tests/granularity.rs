//! Regions with pages of 4 KiB to 2 MiB, against the real kernel.
//!
//! Skips, printing the reason, if userfaultfd is not permitted.

#[path = "common/reach.rs"]
mod reach;

use io_uring::{IoUring, opcode, types::Fd};
use overspill::{Advice, Bytes, Error, Faults, Overspill, Region};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// The kernel's page size; each such part has its own content.
const PART: usize = 4096;
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 2 << 20];
const WAYS: [Faults; 2] = [Faults::Message, Faults::Signal];

/// The smallest limit for pages of this size.
fn limit(page: usize) -> usize {
    (16 * page).max(8 << 20)
}

fn overspill(page: usize, swap: &str) -> Option<Overspill> {
    let builder = Overspill::builder().memory(Bytes(limit(page) as u64));
    reach::build(builder.page_size(Bytes(page as u64)).swap(swap.parse().unwrap()))
}

/// A region of `times` times the limit.
fn region(overspill: &Overspill, faults: Faults, times: usize) -> Region {
    let size = times * limit(overspill.page_size());
    overspill.region_options().faults(faults).build(Bytes(size as u64)).unwrap()
}

fn word(part: usize, version: u64) -> [u8; 8] {
    ((part as u64) << 32 ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_ne_bytes()
}

fn content(part: usize, version: u64) -> Vec<u8> {
    word(part, version).repeat(PART / 8)
}

fn write(memory: &mut [u8], part: usize, version: u64) {
    memory[part * PART..][..PART].copy_from_slice(&content(part, version));
}

fn is(memory: &[u8], part: usize, version: u64) -> bool {
    memory[part * PART..][..PART] == content(part, version)
}

fn fill(memory: &mut [u8]) {
    (0..memory.len() / PART).for_each(|part| write(memory, part, 0));
}

fn next(random: &mut u64) -> usize {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

/// Accesses in order, at random with changes, in order, and backward, checking every part.
fn exercise(memory: &mut [u8], seed: u64, steps: usize) {
    fill(memory);
    let mut versions = vec![0u64; memory.len() / PART];
    let mut random = seed;
    for _ in 0..steps {
        let part = next(&mut random) % versions.len();
        assert!(is(memory, part, versions[part]), "part {part}");
        if next(&mut random).is_multiple_of(2) {
            versions[part] += 1;
            write(memory, part, versions[part]);
        }
    }
    let all = || versions.iter().enumerate();
    for (part, &version) in all().chain(all().rev()) {
        assert!(is(memory, part, version), "part {part} in the end");
    }
}

/// Number of parts of the region that are in memory.
fn resident(memory: &[u8]) -> usize {
    let mut there = vec![0u8; memory.len() / PART];
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: asks about the region, with a byte for each part of it.
    assert_eq!(unsafe { libc::mincore(start, memory.len(), there.as_mut_ptr()) }, 0);
    there.iter().filter(|&&byte| byte & 1 == 1).count()
}

fn keeps_every_byte(swap: &str) {
    for page in SIZES {
        for faults in WAYS {
            let Some(overspill) = overspill(page, swap) else { return };
            let mut region = region(&overspill, faults, 3);
            // A fault of the largest takes a while in a debug build.
            exercise(&mut region, page as u64, 1_000.min((64 << 20) / page));
            let (resident, most) = (resident(&region), limit(page) / PART);
            assert!(resident <= most, "{resident} of {most} parts, pages of {page}");
            let summary = overspill.summary();
            let pages = (region.len() / page) as u64;
            assert!(summary.pages_out >= pages / 2 && summary.pages_in >= pages / 2, "{page}");
            assert_eq!(overspill.last_error(), None);
        }
    }
}

#[test]
fn every_byte_is_kept_in_memory() {
    keeps_every_byte("ram:256M");
}

#[test]
fn every_byte_is_kept_in_compressed_memory() {
    keeps_every_byte("compressed:256M");
}

#[test]
fn every_byte_is_kept_on_a_file() {
    let directory = tempfile::tempdir().unwrap();
    keeps_every_byte(&format!("file:{}:256M", directory.path().display()));
}

#[test]
fn threads_share_pages() {
    for (page, faults) in SIZES.into_iter().flat_map(|page| WAYS.map(|faults| (page, faults))) {
        let Some(overspill) = overspill(page, "ram:256M") else { return };
        let mut region = region(&overspill, faults, 2);
        // Threads share pages: the borders of their shares are not page borders.
        let share = region.len() / 4 / PART * PART - PART;
        std::thread::scope(|scope| {
            for (n, share) in region.chunks_exact_mut(share).take(4).enumerate() {
                scope.spawn(move || exercise(share, n as u64, 300.min((32 << 20) / page)));
            }
        });
        assert_eq!(overspill.last_error(), None);
    }
}

#[test]
fn more_threads_than_workers_touch_large_pages_by_signal() {
    let Some(overspill) = overspill(2 << 20, "ram:256M") else { return };
    let mut region = region(&overspill, Faults::Signal, 2);
    fill(&mut region);
    std::thread::scope(|scope| {
        for seed in 0..24 {
            let region = &region;
            scope.spawn(move || {
                let mut random = seed;
                for _ in 0..10 {
                    let part = next(&mut random) % (region.len() / PART);
                    assert!(is(region, part, 0), "part {part}");
                }
            });
        }
    });
}

/// A 4 KiB page that a device may write to at any time keeps the whole page in memory, and what the
/// device writes there is not lost.
#[test]
fn a_pinned_part_keeps_its_page_whole() {
    for (page, faults) in [16 << 10, 64 << 10, 2 << 20].into_iter().zip([WAYS[0], WAYS[1], WAYS[0]])
    {
        let Some(overspill) = overspill(page, "ram:256M") else { return };
        let mut region = region(&overspill, faults, 3);
        fill(&mut region);
        let ring = IoUring::new(4).unwrap();
        // In the middle of the second page.
        let part = page / PART + page / PART / 2;
        register(&ring, &mut region, part);
        let before = overspill.summary().counters["evict_pinned"];
        for round in 0..3 {
            let others = (0..region.len() / PART).filter(|&other| other != part);
            others.for_each(|other| assert!(is(&region, other, 0), "{other} in round {round}"));
            // The lists decide when it would be evicted otherwise.
            region.advise(page..2 * page, Advice::PageOut);
        }
        assert!(overspill.summary().counters["evict_pinned"] > before, "pages of {page}");
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[9; PART]).unwrap();
        read_fixed(ring, &file, region[part * PART..].as_mut_ptr());
        assert!(region[part * PART..][..PART].iter().all(|&byte| byte == 9), "pages of {page}");
        (0..region.len() / PART).filter(|&o| o != part).for_each(|o| assert!(is(&region, o, 0)));
    }
}

/// Pins a part for a device, as long as `ring` lives.
fn register(ring: &IoUring, region: &mut Region, part: usize) {
    let bytes = part * PART..(part + 1) * PART;
    let mut pinned = region.pin_mut(bytes).unwrap();
    let buffer = libc::iovec { iov_base: pinned.as_mut_ptr().cast(), iov_len: PART };
    // SAFETY: the region outlives the ring.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.unwrap();
}

/// Reads a part into the buffer registered with `ring`.
fn read_fixed(mut ring: IoUring, file: &std::fs::File, into: *mut u8) {
    let read = opcode::ReadFixed::new(Fd(file.as_raw_fd()), into, PART as u32, 0).build();
    // SAFETY: the buffer is registered and not accessed before the read is over.
    unsafe { ring.submission().push(&read) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), PART as i32);
}

/// Reads a part by a system call; none if it is lost.
fn peek(memory: &[u8], part: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PART];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: PART };
    let start = memory[part * PART..].as_ptr();
    let remote = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: PART };
    // SAFETY: reads a part of the region into `bytes`.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    (read == PART as isize).then_some(bytes)
}

/// Corrupts the last 4 KiB of every slot of the memory devices of this size.
fn spoil(page: usize, device_bytes: usize) {
    for link in std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok) {
        let is_memory = std::fs::read_link(link.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"));
        let file = is_memory.then(|| std::fs::OpenOptions::new().write(true).open(link.path()));
        let Some(Ok(file)) = file else { continue };
        if file.metadata().unwrap().len() != device_bytes as u64 {
            continue;
        }
        for slot in 1..device_bytes / page {
            file.write_all_at(&[0xbb; PART], ((slot + 1) * page - PART) as u64).unwrap();
        }
    }
}

#[test]
fn what_a_device_loses_is_lost_by_the_page() {
    const DEVICE: usize = 208 << 20;
    for page in [16 << 10, 64 << 10, 2 << 20] {
        let Some(overspill) = overspill(page, &format!("ram:{DEVICE}")) else { return };
        let mut region = region(&overspill, Faults::Message, 2);
        fill(&mut region);
        spoil(page, DEVICE);
        let mut lost = 0;
        for first in (0..region.len() / PART).step_by(page / PART) {
            let parts = first..first + page / PART;
            let found: Vec<_> = parts.clone().map(|part| peek(&region, part)).collect();
            if found[0].is_none() {
                assert!(found.iter().all(Option::is_none), "a part of page {first} can be read");
                lost += 1;
            } else {
                let whole = parts.zip(&found).all(|(part, bytes)| {
                    bytes.as_ref().is_some_and(|bytes| bytes[..8] == word(part, 0))
                });
                assert!(whole, "page {first}, of {page}, is there in part");
            }
        }
        assert!(lost > 0 && overspill.summary().counters["pages_poisoned"] == lost, "{lost}");
    }
}

/// The kernel's calls stop at the borders of mappings, which can then be inside a page.
#[test]
fn a_part_that_the_program_protects_comes_and_goes_with_its_page() {
    for (page, faults) in [64 << 10, 2 << 20].into_iter().zip(WAYS) {
        let Some(overspill) = overspill(page, "ram:256M") else { return };
        let mut region = region(&overspill, faults, 3);
        fill(&mut region);
        let at = region[page + page / 2..].as_mut_ptr().cast();
        // SAFETY: a part of the region, which is not written meanwhile.
        assert_eq!(unsafe { libc::mprotect(at, PART, libc::PROT_READ) }, 0);
        for _ in 0..3 {
            (0..region.len() / PART).for_each(|part| assert!(is(&region, part, 0), "{part}"));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(at, PART, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        exercise(&mut region, 3, 100);
        assert_eq!(overspill.last_error(), None);
    }
}

/// What the program drops by raw calls reads as zeros, and the rest of its page is unchanged.
#[test]
fn a_part_that_the_program_drops_is_zeros_and_the_rest_of_its_page_stays() {
    for (page, faults) in [64 << 10, 2 << 20].into_iter().zip(WAYS) {
        let Some(overspill) = overspill(page, "ram:256M") else { return };
        let mut region = region(&overspill, faults, 3);
        fill(&mut region);
        let pages = [1, 2];
        for n in pages {
            let part = n * page / PART + 2;
            // In memory, so that there is something to drop.
            assert!(is(&region, part, 0));
            let at = region[part * PART..].as_mut_ptr().cast();
            // SAFETY: a part of the region.
            assert_eq!(unsafe { libc::madvise(at, PART, libc::MADV_DONTNEED) }, 0);
        }
        // One is touched at once, the other is evicted with its hole.
        let is_hole = |region: &Region, n: usize| {
            let first = n * page / PART;
            assert!(is(region, first + 1, 0) && is(region, first + 3, 0), "page {n}");
            region[(first + 2) * PART..][..PART].iter().all(|&byte| byte == 0)
        };
        assert!(is_hole(&region, pages[0]));
        let rest = 3 * page / PART..region.len() / PART;
        rest.for_each(|part| assert!(is(&region, part, 0), "{part}"));
        assert!(pages.iter().all(|&n| is_hole(&region, n)), "pages of {page}");
    }
}

#[test]
fn sizes_and_ranges_go_by_whole_pages() {
    let page = 64 << 10;
    for faults in WAYS {
        let Some(overspill) = overspill(page, "ram:64M") else { return };
        assert_eq!(overspill.page_size(), page);
        let mut region =
            overspill.region_options().faults(faults).build(Bytes(16 * page as u64 - 1)).unwrap();
        assert_eq!(region.len(), 16 * page);
        fill(&mut region);
        // The end of a region that has no whole page, touched to the last byte.
        assert!(is(&region, region.len() / PART - 1, 0));
        region.discard(page + 1..4 * page - 1);
        assert!(region[2 * page..3 * page].iter().all(|&byte| byte == 0));
        assert!(is(&region, 2 * page / PART - 1, 0) && is(&region, 3 * page / PART, 0));
        page_out(&mut region);
        assert!(overspill.summary().pages_out >= 15);
        let before = overspill.summary().pages_in;
        region.advise(0..page, Advice::Random);
        assert!(is(&region, 3, 0));
        assert_eq!((resident(&region), overspill.summary().pages_in), (page / PART, before + 1));
        pin_and_read(&mut region);
        assert!(is(&region, 4 * page / PART, 0));
    }
}

/// Evicts all of a region. A handler that read a fault's message before another thread served it
/// may bring the page in once more afterwards.
fn page_out(region: &mut Region) {
    for _ in 0..10 {
        region.advise(0..region.len(), Advice::PageOut);
        if resident(region) == 0 {
            return;
        }
    }
    panic!("{} parts stay in memory", resident(region));
}

/// Makes a system call fill a range that begins and ends inside pages.
fn pin_and_read(region: &mut Region) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all_at(&[7; 80_000], 0).unwrap();
    file.read_exact(&mut region.pin_mut(100..80_100).unwrap()).unwrap();
    assert!(region[100..80_100].iter().all(|&byte| byte == 7));
    assert_eq!(region[96..100], word(0, 0)[..4]);
}

#[test]
fn an_area_comes_and_another_goes_under_large_pages() {
    let Some(overspill) = overspill(64 << 10, "ram:64M") else { return };
    let mut region = region(&overspill, Faults::Message, 3);
    fill(&mut region);
    let swaps = overspill.swaps();
    assert_eq!(swaps[0].size, Bytes(64 << 20));
    assert!(swaps[0].used >= Bytes(15 << 20), "{}", swaps[0].used);
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}:64M", directory.path().display());
    overspill.swapon(&file.parse().unwrap()).unwrap();
    overspill.swapoff(&swaps[0].name).unwrap();
    exercise(&mut region, 5, 500);
    assert_eq!(overspill.last_error(), None);
}

#[test]
fn a_page_that_did_not_change_is_not_written_again() {
    let Some(overspill) = overspill(64 << 10, "ram:64M") else { return };
    let mut region = region(&overspill, Faults::Message, 2);
    fill(&mut region);
    // All of it: passes over the region may leave a page in memory that was never written.
    page_out(&mut region);
    let written = overspill.summary().pages_out;
    assert!((0..region.len() / PART).all(|part| is(&region, part, 0)));
    let summary = overspill.summary();
    assert!(summary.counters["swpout_clean"] > 0);
    assert_eq!(summary.pages_out, written);
}

#[test]
fn what_cannot_work_is_refused_in_words() {
    let build = |page: u64, memory: u64| {
        let builder = Overspill::builder().memory(Bytes(memory)).page_size(Bytes(page));
        builder.swap("ram:16M".parse().unwrap()).build().map(drop)
    };
    for page in [0, 2048, 5000, 4 << 20] {
        let error = build(page, 64 << 20).unwrap_err();
        assert!(matches!(error, Error::PageSizeChosen(..)), "{page}");
        assert!(error.to_string().contains("from 4 KiB to 2 MiB"), "{error}");
    }
    let error = build(2 << 20, 16 << 20).unwrap_err();
    assert!(error.to_string().contains("at least 32 MiB"), "{error}");
}

/// But for what system calls see of memory that is out, and what a ring refers to without a pin of
/// ours.
#[test]
fn most_of_this_in_each_reach() {
    let of_calls =
        ["what_a_device_loses_is_lost_by_the_page", "a_pinned_part_keeps_its_page_whole"];
    reach::run_in_each_other(&of_calls);
}
