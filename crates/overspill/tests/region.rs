//! Regions against the real kernel: userfaultfd, io_uring, files.
//!
//! Skips, printing the reason, if userfaultfd is not permitted.

#[path = "common/reach.rs"]
mod reach;

use overspill::{Advice, Bytes, Error, MEMORY_MIN, Overspill, Reach, Region};
use std::sync::Arc;

const PAGE: usize = 4096;
const LIMIT: Bytes = Bytes(8 << 20);
const SIZE: Bytes = Bytes(40 << 20);

/// An `Overspill` over `swap`; none, printing the reason, if that is not possible here.
fn overspill(swap: &str) -> Option<Overspill> {
    reach::build(Overspill::builder().memory(LIMIT).swap(swap.parse().unwrap()))
}

#[test]
fn all_of_this_in_each_reach() {
    reach::run_in_each_other(&[]);
}

fn file_in(directory: &tempfile::TempDir) -> String {
    format!("file:{}", directory.path().display())
}

/// The value of word `n` of page `page` after it was written `version` times.
fn word(page: usize, n: usize, version: u64) -> u64 {
    (page as u64) << 32 ^ (n as u64) << 8 ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn write(region: &mut [u8], page: usize, version: u64) {
    let page_bytes = &mut region[page * PAGE..][..PAGE];
    for (n, bytes) in page_bytes.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(page, n, version).to_ne_bytes());
    }
}

fn verify(region: &[u8], page: usize, version: u64) {
    for (n, bytes) in region[page * PAGE..][..PAGE].chunks_exact(8).enumerate() {
        let found = u64::from_ne_bytes(bytes.try_into().unwrap());
        assert_eq!(found, word(page, n, version), "page {page}, word {n}");
    }
}

fn next(random: &mut u64) -> usize {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

/// Writes and reads pages at random, checking what each should hold.
fn exercise(region: &mut [u8], seed: u64, steps: usize) {
    let pages = region.len() / PAGE;
    let mut versions = vec![0u64; pages];
    let mut random = seed;
    for page in 0..pages {
        write(region, page, 0);
    }
    for _ in 0..steps {
        let page = next(&mut random) % pages;
        verify(region, page, versions[page]);
        if next(&mut random).is_multiple_of(2) {
            versions[page] += 1;
            write(region, page, versions[page]);
        }
    }
    (0..pages).for_each(|page| verify(region, page, versions[page]));
}

#[test]
fn a_region_five_times_the_limit_keeps_every_byte_on_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let Some(overspill) = overspill(&file_in(&directory)) else { return };
    let mut region = overspill.region(SIZE).unwrap();
    exercise(&mut region, 1, 20_000);
    let summary = overspill.summary();
    assert!(summary.pages_out > 0 && summary.pages_in > 0);
    assert_eq!(overspill.last_error(), None);
}

#[test]
fn threads_work_on_parts_of_one_region() {
    let Some(overspill) = overspill("ram:64M") else { return };
    let mut region = overspill.region(SIZE).unwrap();
    let part = region.len() / 4;
    std::thread::scope(|scope| {
        for (n, part) in region.chunks_exact_mut(part).enumerate() {
            scope.spawn(move || exercise(part, n as u64, 4_000));
        }
    });
}

#[test]
fn system_calls_take_buffers_that_are_swapped_out() {
    use std::io::{Read, Seek, Write};
    let Some(overspill) = overspill("ram:96M") else { return };
    assert_eq!(overspill.needs_pins(), reach::reach() != Reach::All);
    let mut region = overspill.region(SIZE).unwrap();
    (0..region.len() / PAGE).for_each(|page| write(&mut region, page, 3));
    let mut file = tempfile::tempfile().unwrap();
    if overspill.needs_pins() {
        let refused = file.write_all(&region).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
        (0..16).for_each(|part| {
            let bytes = part * region.len() / 16..(part + 1) * region.len() / 16;
            file.write_all(&region.pin(bytes).unwrap()).unwrap();
        });
        return assert_eq!(file.metadata().unwrap().len(), SIZE.0);
    }
    file.write_all(&region).unwrap();
    let mut copy = overspill.region(SIZE).unwrap();
    file.rewind().unwrap();
    file.read_exact(&mut copy).unwrap();
    (0..copy.len() / PAGE).for_each(|page| verify(&copy, page, 3));
}

#[test]
fn discarded_pages_read_as_zeros_and_their_neighbours_stay() {
    let Some(overspill) = overspill("ram:64M") else { return };
    let mut region: Region = overspill.region(SIZE).unwrap();
    let pages = region.len() / PAGE;
    (0..pages).for_each(|page| write(&mut region, page, 1));
    // Only whole pages inside the range: page 10 is cut into, 11 to 5000 are discarded.
    region.discard(10 * PAGE + 1..5001 * PAGE);
    assert!(region[11 * PAGE..5001 * PAGE].iter().all(|&byte| byte == 0));
    [10, 5001, pages - 1].into_iter().for_each(|page| verify(&region, page, 1));
}

#[test]
fn a_region_that_is_dropped_gives_its_slots_back() {
    let Some(overspill) = overspill("ram:48M") else { return };
    // Eight times what the device holds, one region after the other.
    for round in 0..8 {
        let mut region = overspill.region(SIZE).unwrap();
        (0..region.len() / PAGE).for_each(|page| write(&mut region, page, round));
        (0..region.len() / PAGE).for_each(|page| verify(&region, page, round));
    }
    assert_eq!(overspill.last_error(), None);
}

/// Number of this process's open files in `directory`, also unnamed ones.
fn open_files_in(directory: &tempfile::TempDir) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.starts_with(directory.path())).count()
}

#[test]
fn swap_areas_come_and_go_under_a_region_in_use() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(overspill) = overspill(&file_in(&directory)) else { return };
    let mut region = overspill.region(SIZE).unwrap();
    let first = overspill.swaps()[0].name.clone();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| exercise(&mut region, 7, 30_000));
        while overspill.swaps()[0].used < Bytes(16 << 20) {
            std::thread::yield_now();
        }
        let spec = format!("{}:96M,pri=5", file_in(&other));
        overspill.swapon(&spec.parse().unwrap()).unwrap();
        overspill.swapoff(&first).unwrap();
        worker.join().unwrap();
    });
    let swaps = overspill.swaps();
    assert_eq!(swaps.len(), 1);
    assert_eq!((swaps[0].kind, swaps[0].size, swaps[0].priority), ("file", Bytes(96 << 20), 5));
    assert!(swaps[0].used >= Bytes(16 << 20) && swaps[0].name != first);
    assert_eq!(overspill.last_error(), None);
}

/// What is written on a fast device first moves down to a slow one, so that there is always room.
#[test]
fn a_fast_area_keeps_room_for_the_next_burst() {
    let directory = tempfile::tempdir().unwrap();
    let below = format!("{},pri=1", file_in(&directory));
    let Some(overspill) = overspill(&below) else { return };
    overspill.swapon(&"ram:24M,pri=5".parse().unwrap()).unwrap();
    let mut region = overspill.region(SIZE).unwrap();
    for seed in 0..3 {
        exercise(&mut region, seed, 10_000);
        let begun = std::time::Instant::now();
        // A sixteenth is always free at rest, an eighth after pages have moved.
        while overspill.swaps()[1].used > Bytes((24 << 20) / 16 * 15) {
            assert!(begun.elapsed().as_secs() < 20, "{:?}", overspill.swaps());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    assert!(overspill.swaps()[1].used > Bytes(16 << 20), "{:?}", overspill.swaps());
    assert_eq!(overspill.last_error(), None);
}

#[test]
fn the_last_area_goes_when_all_fits_and_its_file_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(overspill) = overspill(&file_in(&directory)) else { return };
    let name = format!("swap file in {}", directory.path().display());
    let mut region = overspill.region(SIZE).unwrap();
    (0..region.len() / PAGE).for_each(|page| write(&mut region, page, 1));
    let refused = overspill.swapoff(&name).unwrap_err();
    assert!(refused.to_string().contains("add an area first"), "{refused}");
    let unknown = overspill.swapoff("/dev/nowhere").unwrap_err();
    assert!(unknown.to_string().contains(&format!("in use are: {name}")), "{unknown}");
    region.discard(4 << 20..SIZE.0 as usize);
    assert!(open_files_in(&directory) > 0);
    overspill.swapoff(&name).unwrap();
    assert!(overspill.swaps().is_empty());
    assert_eq!(open_files_in(&directory), 0, "the device is still open");
    (0..1024).for_each(|page| verify(&region, page, 1));
    overspill.swapon(&"ram:64M".parse().unwrap()).unwrap();
    exercise(&mut region, 3, 4_000);
}

#[test]
fn limits_that_cannot_work_are_refused_in_words() {
    let build = |memory| Overspill::builder().memory(memory).build().map(drop);
    let error = build(Bytes(1 << 20)).unwrap_err();
    assert!(matches!(error, Error::LimitTooSmall(_, MEMORY_MIN)), "{error}");
    assert!(error.to_string().contains("at least 4 MiB"), "{error}");
    assert!(matches!(build(Bytes(1 << 60)), Err(Error::LimitTooLarge(..))));
}

/// A quarter of the limit, advised to be paged out, is out when the call returns; the advised order
/// of touches shows in what is read.
#[test]
fn advice_is_taken_and_costs_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let Some(overspill) = overspill(&file_in(&directory)) else { return };
    let mut region = overspill.region(Bytes(2 << 20)).unwrap();
    let pages = region.len() / PAGE;
    (0..pages).for_each(|page| write(&mut region, page, 1));
    region.advise(0..region.len(), Advice::PageOut);
    assert_eq!(overspill.summary().pages_out, pages as u64);
    region.advise(0..region.len(), Advice::Random);
    (0..100).for_each(|page| verify(&region, page, 1));
    assert_eq!(overspill.summary().pages_in, 100);
    region.advise(0..region.len(), Advice::Sequential);
    verify(&region, 100, 1);
    assert!(overspill.summary().pages_in >= 164);
    for advice in [Advice::Normal, Advice::Cold, Advice::WillNeed] {
        region.advise(10..region.len() - 10, advice);
        (0..pages).for_each(|page| verify(&region, page, 1));
    }
}

#[test]
fn what_is_held_outlives_the_name_of_its_region() {
    let Some(overspill) = overspill("ram:96M") else { return };
    let mut region = overspill.region(Bytes(32 << 20)).unwrap();
    (0..region.len() / PAGE).for_each(|page| write(&mut region, page, 1));
    let region = Arc::new(region);
    let held = region.hold(0..16 * PAGE).unwrap();
    assert!(region.hold(0..region.len()).is_err(), "more than half of the limit");
    let before = overspill.summary().faults;
    (0..16).for_each(|page| verify(&region, page, 1));
    assert_eq!(overspill.summary().faults, before, "held pages are in memory");
    drop(region);
    drop(held);
    assert_eq!(overspill.last_error(), None);
}
