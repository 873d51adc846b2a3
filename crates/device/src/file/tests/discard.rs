//! Discarded content is freed by the storage, and the rest stays.

use super::*;
use crate::header::SwapHeader;
use crate::testing::{Pages, is_filled, read, write};
use crate::{Completion, SwapDevice};
use overspill_base::{PAGE_SIZE, Slot};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

/// Memory or disk space used by a device, in pages.
fn stored_pages(device: &FileDevice) -> i64 {
    fstat(device).unwrap().st_blocks * 512 / PAGE_SIZE as i64
}

fn fill(device: &FileDevice, slot: u32, pages: usize, byte: u8) -> Completion {
    let arena = Pages::new(pages);
    write(&mut *device.open_queue(1).unwrap(), Slot(slot), arena.filled(0..pages, byte))
}

/// The byte that fills a slot.
fn byte_in(device: &FileDevice, slot: u32) -> u8 {
    let arena = Pages::new(1);
    let back = read(&mut *device.open_queue(1).unwrap(), Slot(slot), arena.filled(0..1, 0xee));
    let page = &back.request.pages[0];
    assert!(back.failures.is_empty() && is_filled(page, page[0]));
    page[0]
}

/// A swap area of 100 slots in `dir`, all slots filled with 7.
fn area(dir: &Path) -> PathBuf {
    let path = dir.join("area");
    let mut content = vec![7; 100 * PAGE_SIZE];
    let header =
        SwapHeader { last_page: 99, bad_pages: vec![], uuid: [1; 16], label: "kept".into() };
    header.write_to((&mut content[..PAGE_SIZE]).try_into().unwrap());
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn discarded_slots_take_no_space_and_can_be_written_again() {
    for (way, device) in every_way() {
        if !device.info().discards {
            println!("skipped: {way}: its file system cannot punch holes");
            continue;
        }
        device.grow(256).unwrap();
        assert!(fill(&device, 0, 256, 5).failures.is_empty(), "{way}");
        let before = stored_pages(&device);
        device.discard(Slot(64), 128).unwrap();
        let freed = before - stored_pages(&device);
        // A file system may need one or two blocks of its own to describe the hole.
        assert!((120..=128).contains(&freed), "{way}: {freed} pages freed of {before}");
        let bytes = [63, 64, 191, 192].map(|slot| byte_in(&device, slot));
        assert_eq!(bytes, [5, 0, 0, 5], "{way}");
        assert!(fill(&device, 100, 2, 6).failures.is_empty(), "{way}");
        assert_eq!(byte_in(&device, 101), 6, "{way}");
    }
}

#[test]
fn another_process_that_attached_discards_too() {
    let device = open_spec("ram:1M,discard=pages").unwrap();
    fill(&device, 0, 8, 5);
    let path = format!("/proc/self/fd/{}", device.as_fd().as_raw_fd());
    let fd = openat(CWD, path, OFlags::RDWR, Mode::empty()).unwrap();
    let same = FileDevice::attach(fd, device.attachment().clone()).unwrap();
    assert!(same.info().page_discard && same.info().synchronous);
    same.discard(Slot(0), 8).unwrap();
    assert_eq!(stored_pages(&device), 0);
}

#[test]
fn a_header_outlives_every_discard() {
    let dir = tempfile::tempdir().unwrap();
    let path = area(dir.path());
    let text = format!("file:{}", path.display());
    let header = || {
        SwapHeader::parse(fs::read(&path).unwrap()[..PAGE_SIZE].try_into().unwrap())
            .map(|header| header.label)
    };

    let device = open_spec(&text).unwrap();
    if !device.info().discards {
        return println!("skipped: the temporary directory cannot punch holes");
    }
    assert!(!device.info().page_discard, "nobody asked");
    assert_eq!(byte_in(&device, 99), 7);
    device.discard(Slot(0), 50).unwrap();
    assert_eq!([1, 49, 50].map(|slot| byte_in(&device, slot)), [0, 0, 7]);
    assert_eq!(header(), Ok("kept".into()));
    drop(device);

    let device = open_spec(&format!("{text},discard=once")).unwrap();
    assert!(!device.info().page_discard);
    assert_eq!([1, 99].map(|slot| byte_in(&device, slot)), [0, 0]);
    assert_eq!(header(), Ok("kept".into()));
    assert_eq!(device.grow(100), Ok(100), "the space is reserved again");
    assert!(stored_pages(&device) >= 100);
}

#[test]
fn pages_are_discarded_only_if_asked_for() {
    for (options, pages) in [("", false), (",discard=once", false), (",discard=both", true)] {
        let device = open_spec(&format!("ram:1M{options}")).unwrap();
        let info = device.info();
        assert_eq!((info.discards, info.page_discard), (true, pages), "{options}");
    }
}

#[test]
fn the_user_knows_better_whether_a_seek_costs() {
    for (options, rotational) in [(",ssd=on", false), (",ssd=off", true)] {
        let device = open_spec(&format!("ram:1M{options}")).unwrap();
        assert_eq!(device.info().rotational, rotational);
        assert_eq!(device.attachment().rotational, rotational);
    }
}

#[test]
#[should_panic(expected = "7 slots from 250 of ram with 256")]
fn what_lies_past_the_area_is_never_discarded() {
    let _ = open_spec("ram:1M").unwrap().discard(Slot(250), 7);
}
