//! Small file systems, loop devices and RAM disks.

use super::storage::{Loop, Mount, Zram, or_skip, text};
use super::*;
use crate::SwapDevice;
use crate::header::SwapHeader;
use crate::testing::{Pages, is_filled, read, write};
use overspill_base::{PAGE_SIZE, Slot};
use std::fs;
use std::os::unix::fs::MetadataExt;

const EIGHT_MIB: u32 = 2048;

#[test]
fn a_full_file_system_is_an_error_and_what_was_there_stays_usable() {
    let mount = or_skip!(Mount::new(&["-t", "tmpfs", "-o", "size=8m", "none"]));
    let device = open(&sized(mount.0.path(), 10 * EIGHT_MIB)).unwrap();
    assert_eq!(device.grow(1000), Ok(1000), "a whole step has no room");
    let error = device.grow(2 * EIGHT_MIB).unwrap_err();
    assert_eq!(
        error,
        DeviceError::DiskFull {
            name: device.info().name.clone(),
            size: Bytes::of_pages(u64::from(10 * EIGHT_MIB)),
        }
    );
    assert_eq!(device.grow(1000), Ok(1000));
    let mut queue = device.open_queue(1).unwrap();
    let pages = Pages::new(1);
    assert!(write(&mut *queue, Slot(999), pages.filled(0..1, 5)).failures.is_empty());
    let back = read(&mut *queue, Slot(999), pages.filled(0..1, 0));
    assert!(is_filled(&back.request.pages[0], 5));
}

#[test]
fn a_write_that_finds_the_file_system_full_says_so() {
    let mount = or_skip!(Mount::new(&["-t", "tmpfs", "-o", "size=64k", "none"]));
    let unreserved = Features { fallocate: false, ..Features::ALL };
    let device = open_with(&file(mount.0.path()), unreserved);
    assert_eq!(device.grow(SLOTS), Ok(SLOTS), "nobody can know");
    let mut queue = device.open_queue(1).unwrap();
    let pages = Pages::new(32);
    let done = write(&mut *queue, Slot(0), pages.filled(0..32, 5));
    assert_eq!(done.failures.len(), 32);
    let error = &done.failures[31].error;
    assert!(matches!(error, DeviceError::DiskFull { .. }), "{error}");
    assert!(write(&mut *queue, Slot(0), pages.filled(0..4, 5)).failures.is_empty());
}

#[test]
fn no_room_at_all_is_found_at_open() {
    let mount = or_skip!(Mount::new(&["-t", "tmpfs", "-o", "size=16k", "none"]));
    let error = open(&file(mount.0.path())).unwrap_err();
    assert!(matches!(error, DeviceError::DiskFull { .. }), "{error}");
}

fn is_direct(device: &FileDevice) -> bool {
    device.info().notes.iter().any(|note| note.starts_with("direct"))
}

#[test]
fn a_swap_area_on_a_block_device_is_used_and_not_shared() {
    let disk = or_skip!(Loop::new(300, &["mkswap", "-q"]));
    let device = open(&disk.kind()).unwrap();
    assert_eq!((device.info().slots_max, &device.info().reserved[..]), (300, &[Slot(0)][..]));
    assert!(is_direct(&device), "not through the page cache: {:?}", device.info());
    assert_eq!(device.grow(1), Ok(300), "a block device is there from the start");
    let mut queue = device.open_queue(4).unwrap();
    let pages = Pages::new(100);
    assert!(write(&mut *queue, Slot(200), pages.filled(0..100, 5)).failures.is_empty());
    let back = read(&mut *queue, Slot(299), pages.filled(0..1, 0));
    assert!(is_filled(&back.request.pages[0], 5));

    let error = open(&disk.kind()).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    let error = open(&SwapKind::File { path: disk.node.clone(), size: None }).unwrap_err();
    assert!(error.to_string().contains("name it as block:PATH"), "{error}");
}

#[test]
fn a_block_device_with_a_file_system_is_refused_even_if_insisted_on_while_mounted() {
    let disk = or_skip!(Loop::new(1024, &["mkfs.ext4", "-q", "-F"]));
    let error = open(&disk.kind()).unwrap_err();
    let found = "an ext2, ext3 or ext4 file system";
    assert_eq!(error, DeviceError::NotASwapArea { name: disk.node.display().to_string(), found });
    let mount = or_skip!(Mount::new(&[text(&disk.node)]));
    let error = insist(&disk.kind()).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    drop(mount);
    let device = insist(&disk.kind()).unwrap();
    assert_eq!((device.info().slots_max, &device.info().reserved[..]), (1024, &[Slot(0)][..]));
}

#[test]
fn a_loop_device_passes_discards_on_to_its_file() {
    let disk = or_skip!(Loop::new(300, &["mkswap", "-q"]));
    let spec = format!("{},discard=both", text(&disk.node));
    let stored = || fs::metadata(disk.file()).unwrap().blocks() * 512 / PAGE_SIZE as u64;
    assert_eq!(stored(), 300);
    let device = open_spec(&spec).unwrap();
    if !device.info().discards {
        return println!("skipped: {:?}", device.info().notes);
    }
    assert!(device.info().page_discard && !device.info().synchronous);
    assert!(stored() < 10, "all but the header, when it was opened");
    let mut queue = device.open_queue(1).unwrap();
    let pages = Pages::new(100);
    assert!(write(&mut *queue, Slot(100), pages.filled(0..100, 5)).failures.is_empty());
    rustix::fs::fsync(&device).unwrap();
    let before = stored();
    device.discard(Slot(100), 50).unwrap();
    assert_eq!(before - stored(), 50);
    let mut byte_in = |slot| read(&mut *queue, slot, pages.filled(0..1, 9)).request.pages[0][0];
    assert_eq!([149, 150].map(|slot| byte_in(Slot(slot))), [0, 5]);
    drop(device);
    let header = fs::read(disk.file()).unwrap()[..PAGE_SIZE].try_into().unwrap();
    assert_eq!(SwapHeader::parse(&header).unwrap().last_page, 299);
}

#[test]
fn a_file_system_that_cannot_discard_is_found_out_and_told() {
    let mount = or_skip!(Mount::new(&["-t", "ramfs", "none"]));
    let device = open_spec(&format!("file:{}:8M,discard=both", mount.0.path().display())).unwrap();
    assert!(!device.info().discards && !device.info().page_discard);
    let notes = device.info().notes.join("\n");
    assert!(notes.contains("cannot discard: discard= has no effect"), "{notes}");
    let error = device.discard(Slot(1), 1).unwrap_err();
    assert!(matches!(error, DeviceError::Discard { first: Slot(1), .. }), "{error}");
}

#[test]
fn a_punched_hole_finds_the_file_system_full_as_a_write_error() {
    let mount = or_skip!(Mount::new(&["-t", "tmpfs", "-o", "size=256k", "none"]));
    let device = open(&sized(mount.0.path(), 64)).unwrap();
    assert_eq!(device.grow(64), Ok(64));
    device.discard(Slot(32), 32).unwrap();
    fs::write(mount.0.path().join("other"), vec![1; 32 * PAGE_SIZE]).unwrap();
    let mut queue = device.open_queue(1).unwrap();
    let pages = Pages::new(1);
    let done = write(&mut *queue, Slot(40), pages.filled(0..1, 5));
    assert!(matches!(done.failures[0].error, DeviceError::DiskFull { .. }));
    assert!(write(&mut *queue, Slot(31), pages.filled(0..1, 5)).failures.is_empty());
}

#[test]
fn zram_is_synchronous_and_forgets() {
    let disk = or_skip!(Zram::new());
    let device = open_spec(&disk.node()).unwrap();
    let info = device.info();
    assert!(info.synchronous && info.discards && !info.rotational, "{info:?}");
    assert!(is_direct(&device), "not through the page cache: {info:?}");
    let pages_stored = || {
        let stat = fs::read_to_string(format!("/sys/block/zram{}/mm_stat", disk.0)).unwrap();
        stat.split_whitespace().next().unwrap().parse::<usize>().unwrap() / PAGE_SIZE
    };
    let mut queue = device.open_queue(1).unwrap();
    let pages = Pages::new(64);
    let mut buffers = pages.filled(0..64, 0);
    buffers.iter_mut().enumerate().for_each(|(n, page)| page[n] = 1);
    assert!(write(&mut *queue, Slot(1), buffers).failures.is_empty());
    let before = pages_stored();
    device.discard(Slot(0), 65).unwrap();
    assert_eq!(before - pages_stored(), 64, "all but the header");
}
