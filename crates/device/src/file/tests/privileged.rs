//! Small file systems and loop devices. Each test is skipped, and says so, where the system does
//! not let us have one.

use super::*;
use crate::SwapDevice;
use crate::testing::{Pages, is_filled, read, write};
use overspill_base::{PAGE_SIZE, Slot};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Runs a command; its output, or why there is none.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A mounted file system, unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(args: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        run("mount", &[args, &[text(dir.path())]].concat())?;
        Ok(Self(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[text(self.0.path())]).unwrap();
    }
}

/// A loop device over a file of `pages` pages, detached when dropped.
struct Loop {
    node: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    /// `format` makes of the file what the device is to hold.
    fn new(pages: usize, format: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("disk");
        fs::write(&path, vec![0; pages * PAGE_SIZE]).map_err(|error| error.to_string())?;
        if let [program, args @ ..] = format {
            run(program, &[args, &[text(&path)]].concat())?;
        }
        let node = run("losetup", &["-f", "--show", text(&path)])?.into();
        Ok(Self { node, _dir: dir })
    }

    fn kind(&self) -> SwapKind {
        SwapKind::Block { path: self.node.clone() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d", text(&self.node)]).unwrap();
    }
}

macro_rules! or_skip {
    ($attempt:expr) => {
        match $attempt {
            Ok(value) => value,
            Err(reason) => return println!("skipped: {reason}"),
        }
    };
}

const EIGHT_MIB: u32 = 2048;

#[test]
fn a_full_file_system_is_an_error_and_what_was_there_stays_usable() {
    let mount = or_skip!(Mount::new(&["-t", "tmpfs", "-o", "size=8m", "none"]));
    let device = open(&sized(mount.0.path(), 10 * EIGHT_MIB)).unwrap();
    assert_eq!(device.grow(1000), Ok(1000), "a whole step has no room");
    let error = device.grow(2 * EIGHT_MIB).unwrap_err();
    assert_eq!(
        error,
        DeviceError::Full {
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
    assert!(matches!(error, DeviceError::Full { .. }), "{error}");
    assert!(write(&mut *queue, Slot(0), pages.filled(0..4, 5)).failures.is_empty());
}

#[test]
fn no_room_at_all_is_found_at_open() {
    let mount = or_skip!(Mount::new(&["-t", "tmpfs", "-o", "size=16k", "none"]));
    let error = open(&file(mount.0.path())).unwrap_err();
    assert!(matches!(error, DeviceError::Full { .. }), "{error}");
}

#[test]
fn a_swap_area_on_a_block_device_is_used_and_not_shared() {
    let disk = or_skip!(Loop::new(300, &["mkswap", "-q"]));
    let device = open(&disk.kind()).unwrap();
    assert_eq!((device.info().slots_max, &device.info().reserved[..]), (300, &[Slot(0)][..]));
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
