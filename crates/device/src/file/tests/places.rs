//! What is created, what is accepted, and what is refused.

use super::*;
use crate::SwapDevice;
use crate::header::{HeaderError, SwapHeader};
use overspill_base::{PAGE_SIZE, Slot};
use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;
use std::fs;
use std::path::PathBuf;

/// A file of `pages` pages with a header for `last_page`.
fn area(dir: &Path, pages: usize, last_page: u32, bad_pages: Vec<Slot>) -> PathBuf {
    let header = SwapHeader { last_page, bad_pages, uuid: [1; 16], label: "test".into() };
    let mut content = vec![0; pages * PAGE_SIZE];
    header.write_to((&mut content[..PAGE_SIZE]).try_into().unwrap());
    let path = dir.join("area");
    fs::write(&path, content).unwrap();
    path
}

fn names_in(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn files_we_create_have_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let by_name = Features { tmpfile: false, ..Features::ALL };
    let devices = [
        open(&file(dir.path())).unwrap(),
        open_with(&file(dir.path()), by_name),
        open(&file(dir.path().join("swap"))).unwrap(),
    ];
    assert!(names_in(dir.path()).is_empty());
    for device in &devices {
        assert_eq!(device.info().slots_max, SLOTS);
        assert!(device.info().reserved.is_empty());
        let stat = rustix::fs::fstat(device).unwrap();
        assert_eq!((stat.st_mode & 0o777, stat.st_nlink), (0o600, 0));
    }
}

/// A process that is killed amid it would leave the name behind.
#[test]
fn files_we_create_never_have_a_name() {
    let dir = tempfile::tempdir().unwrap();
    if !has_unnamed_files(dir.path()) {
        return println!("skipped: this file system has no unnamed files");
    }
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, dir.path(), inotify::WatchFlags::CREATE).unwrap();
    open(&file(dir.path())).unwrap();
    open(&file(dir.path().join("swap"))).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    assert_eq!(events.next().map(|_| "a name").unwrap_err(), Errno::AGAIN);
    fs::write(dir.path().join("noticed"), "").unwrap();
    assert!(events.next().is_ok());
}

fn has_unnamed_files(dir: &Path) -> bool {
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).is_ok()
}

#[test]
fn files_grow_in_steps_up_to_their_limit() {
    let dir = tempfile::tempdir().unwrap();
    let device = open(&sized(dir.path(), 40_000)).unwrap();
    if !device.attachment().grows {
        return println!("skipped: {:?}", device.attachment().notes);
    }
    assert_eq!(device.grow(1), Ok(16384));
    assert_eq!(device.grow(16384), Ok(16384));
    assert_eq!(device.grow(33_000), Ok(40_000));
    assert_eq!(device.grow(2), Ok(40_000), "a device never shrinks");
    let size = Bytes::of_pages(40_000);
    assert_eq!(
        device.grow(40_001),
        Err(DeviceError::Full { name: device.info().name.clone(), size })
    );
    let stat = rustix::fs::fstat(&device).unwrap();
    assert_eq!(stat.st_size as u64, size.0);
    assert!(stat.st_blocks as u64 * 512 >= size.0, "the space is reserved, not only promised");
}

#[test]
fn the_default_is_a_file_limited_by_the_options_or_by_what_is_free() {
    let limited = OpenOptions { swap_size: Some(Bytes(1 << 20)), force: false };
    let device = FileDevice::open(&SwapKind::Default.into(), &limited).unwrap();
    assert_eq!(device.info().capacity(), Bytes(1 << 20));
    assert!(device.info().name.starts_with("swap file in /"));

    let dir = tempfile::tempdir().unwrap();
    let kind = SwapKind::File { path: dir.path().to_owned(), size: None };
    let fs = rustix::fs::statvfs(dir.path()).unwrap();
    let free = Bytes(fs.f_bavail * fs.f_frsize);
    let capacity = open(&kind).unwrap().info().capacity();
    assert!(Bytes(0) < capacity && capacity < free, "{capacity} of {free}");
}

#[test]
fn more_than_the_file_system_has_is_promised_with_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let notes = |size| {
        let kind = SwapKind::File { path: dir.path().to_owned(), size: Some(size) };
        open(&kind).unwrap().attachment().notes.join("; ")
    };
    let fs = rustix::fs::statvfs(dir.path()).unwrap();
    let more = Bytes(fs.f_blocks * fs.f_frsize);
    assert!(notes(more).contains(&format!("of {more} now")), "{}", notes(more));
    assert!(!notes(Bytes(1 << 20)).contains("has room for"));
}

#[test]
fn an_area_made_by_mkswap_is_used_as_its_header_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = area(dir.path(), 100, 79, Vec::new());
    let device = open(&sized(&path, 1000)).unwrap();
    assert_eq!((device.info().slots_max, &device.info().reserved[..]), (80, &[Slot(0)][..]));
    assert_eq!(device.grow(80), Ok(80));
    drop(device);
    assert_eq!(open(&sized(&path, 50)).unwrap().info().slots_max, 50, "a size may limit it");
    let header = fs::read(&path).unwrap()[..PAGE_SIZE].try_into().unwrap();
    assert_eq!(SwapHeader::parse(&header).unwrap().last_page, 79, "the header is untouched");
}

#[test]
fn headers_that_cannot_be_honoured_are_refused_unless_insisted_on() {
    let dir = tempfile::tempdir().unwrap();
    let past_end = HeaderError::PastEnd { last_page: 100, pages: 100 };
    for (last_page, reason) in [(100, past_end), (0, HeaderError::Empty)] {
        let path = area(dir.path(), 100, last_page, Vec::new());
        let name = path.display().to_string();
        let kind = SwapKind::File { path, size: None };
        assert_eq!(open(&kind).unwrap_err(), DeviceError::BadHeader { name, reason });
        let device = insist(&kind).unwrap();
        assert_eq!((device.info().slots_max, &device.info().reserved[..]), (100, &[Slot(0)][..]));
    }
    let path = area(dir.path(), 100, 99, vec![Slot(5)]);
    let name = path.display().to_string();
    let reason = HeaderError::BadPagesInFile;
    assert_eq!(open(&file(path)).unwrap_err(), DeviceError::BadHeader { name, reason });
}

#[test]
fn a_file_with_content_is_refused_unless_insisted_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letters");
    fs::write(&path, "Dear ".repeat(20_000)).unwrap();
    let kind = SwapKind::File { path: path.clone(), size: None };
    let error = open(&kind).unwrap_err();
    assert!(matches!(error, DeviceError::HoldsData { found: "data of unknown kind", .. }));
    assert!(error.to_string().contains("--force"), "{error}");
    assert!(fs::read(&path).unwrap().starts_with(b"Dear Dear"), "untouched");

    let device = insist(&kind).unwrap();
    assert_eq!(device.info().slots_max, 100_000 / PAGE_SIZE as u32);
    assert_eq!(device.info().reserved, [Slot(0)], "what might be a header stays");
}

#[test]
fn an_empty_file_of_the_user_is_filled_and_keeps_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine");
    fs::write(&path, "").unwrap();
    let device = open(&file(&path)).unwrap();
    assert_eq!((device.info().slots_max, device.info().reserved.len()), (SLOTS, 0));
    drop(device);
    assert!(path.exists());
}

#[test]
fn two_cannot_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let kind = file(area(dir.path(), 100, 99, Vec::new()));
    let first = open(&kind).unwrap();
    let error = open(&kind).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    drop(first);
    open(&kind).unwrap();
}

#[test]
fn places_that_will_not_do_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let block = |path: &str| SwapKind::Block { path: path.into() };
    let table = [
        (file("/dev/null"), "/dev/null is neither a file nor a directory"),
        (block("/dev/null"), "/dev/null is no block device"),
        (file(dir.path().join("no/where")), "cannot create"),
        (block("/dev/no-such-device"), "there is no device /dev/no-such-device: check the path"),
        (sized(dir.path(), 9), "has room for 36 KiB only, a swap area needs 40 KiB"),
        (SwapKind::Ram { size: Bytes(64) }, "ram has room for less than a page only"),
    ];
    for (kind, part) in table {
        let text = open(&kind).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn each_way_of_driving_says_which_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let kind = file(dir.path());
    let all = Features::ALL;
    let table = [
        (Features { direct: false, ..all }, "refuses O_DIRECT"),
        (Features { fallocate: false, ..all }, "cannot reserve space"),
    ];
    for (features, part) in table {
        let notes = open_with(&kind, features).info().notes.join("\n");
        assert!(notes.contains(part), "{notes}");
    }
    let direct = open_with(&kind, Features { uring: false, ..all }).info().notes.join("\n");
    assert!(direct.contains("io_uring is refused") || direct.contains("O_DIRECT"), "{direct}");
    let ram = open(&SwapKind::Ram { size: Bytes(1 << 20) }).unwrap();
    assert_eq!(ram.info().name, "ram");
    assert!(!ram.info().rotational);
    assert_eq!(ram.info().notes, ["in memory: positioned I/O copies at once"]);
}
