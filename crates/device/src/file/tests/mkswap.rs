//! Swap areas made by us and by util-linux mean the same to us, to util-linux and to the kernel.

use super::storage::{Loop, Mount, or_skip, run, text};
use super::*;
use crate::SwapDevice;
use crate::file::{MkswapOptions, NewArea, mkswap};
use crate::header::SwapHeader;
use overspill_base::{PAGE_SIZE, Slot};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const UUID: [u8; 16] = [0, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204, 221, 238, 255];
const UUID_TEXT: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// Options with a label of maximum length.
fn spill() -> MkswapOptions {
    MkswapOptions { label: "sixteen-byte-lbl".into(), uuid: UUID, check: true, force: false }
}

fn forced() -> MkswapOptions {
    MkswapOptions { force: true, ..spill() }
}

/// A file of zeros that only its owner may read.
fn zeros(dir: &Path, pages: usize) -> PathBuf {
    let path = dir.join("area");
    fs::write(&path, vec![0; pages * PAGE_SIZE]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn header_of(path: &Path) -> SwapHeader {
    let start = fs::read(path).unwrap()[..PAGE_SIZE].try_into().unwrap();
    SwapHeader::parse(&start).unwrap()
}

/// A place the kernel swaps to, until dropped.
struct Live<'a>(&'a Path);

impl<'a> Live<'a> {
    fn new(path: &'a Path) -> Result<Self, String> {
        run("swapon", &[text(path)]).map(|_| Self(path))
    }

    /// Its KiB in `/proc/swaps`.
    fn kib(&self) -> u64 {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        let line = swaps.lines().find(|line| line.starts_with(text(self.0))).unwrap();
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        run("swapoff", &[text(self.0)]).unwrap();
    }
}

#[test]
fn util_linux_and_the_kernel_accept_a_file() {
    // Not on tmpfs: the kernel cannot swap to a file there.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = zeros(dir.path(), 300);
    let area = mkswap(&path, &spill()).unwrap();
    assert_eq!(area, NewArea { capacity: Bytes::of_pages(299), bad_pages: 0, notes: Vec::new() });
    let said = or_skip!(run("blkid", &["-p", text(&path)]));
    for part in ["LABEL=\"sixteen-byte-lbl\"", UUID_TEXT, "TYPE=\"swap\"", "VERSION=\"1\""] {
        assert!(said.contains(part), "`{part}` in {said}");
    }
    let said = or_skip!(run("swaplabel", &[text(&path)]));
    assert!(said.contains("sixteen-byte-lbl") && said.contains(UUID_TEXT), "{said}");

    let live = or_skip!(Live::new(&path));
    assert_eq!(live.kib(), 299 * 4);
    let error = mkswap(&path, &forced()).unwrap_err();
    assert!(error.to_string().contains("`swapoff` it first"), "{error}");
    drop(live);
    assert_eq!(open(&file(&path)).unwrap().info().slots_max, 300);
}

#[test]
fn the_kernel_accepts_a_block_device_and_leaves_out_the_same_bad_pages() {
    let disk = or_skip!(Loop::new(300, &[]));
    mkswap(&disk.node, &spill()).unwrap();
    let live = or_skip!(Live::new(&disk.node));
    assert_eq!(live.kib(), 299 * 4);
    let error = open(&disk.kind()).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    drop(live);

    let bad_pages = vec![Slot(7), Slot(150), Slot(299)];
    let header = SwapHeader { bad_pages, ..header_of(&disk.node) };
    let mut page = [0; PAGE_SIZE];
    header.write_to(&mut page);
    fs::write(&disk.node, page).unwrap();
    let live = or_skip!(Live::new(&disk.node));
    assert_eq!(live.kib(), 296 * 4);
    drop(live);
    let device = open(&disk.kind()).unwrap();
    assert_eq!(device.info().reserved, [0, 7, 150, 299].map(Slot));
    assert_eq!(device.info().capacity(), Bytes::of_pages(296));
}

#[test]
fn areas_of_util_linux_are_accepted_in_either_byte_order() {
    let disk = or_skip!(Loop::new(300, &["mkswap", "-q", "-L", "theirs"]));
    let mut page = fs::read(&disk.node).unwrap()[..PAGE_SIZE].to_vec();
    for order in ["this machine's", "the other"] {
        let info = open(&disk.kind()).unwrap().info().clone();
        assert_eq!((info.slots_max, &info.reserved[..]), (300, &[Slot(0)][..]), "{order}");
        let error = mkswap(&disk.node, &spill()).unwrap_err().to_string();
        assert!(error.contains("a swap area labelled `theirs`"), "{error}");
        let live = or_skip!(Live::new(&disk.node));
        assert_eq!(live.kib(), 299 * 4, "{order}: what the kernel says");
        drop(live);
        // Version, last page and number of bad pages.
        page[1024..1036].chunks_exact_mut(4).for_each(|field| field.reverse());
        fs::write(&disk.node, &page).unwrap();
    }
}

#[test]
fn what_is_there_is_named_and_lost_only_by_force() {
    let disk = or_skip!(Loop::new(1024, &["mkfs.ext4", "-q", "-F"]));
    let error = mkswap(&disk.node, &spill()).unwrap_err().to_string();
    assert!(error.contains("an ext2, ext3 or ext4 file system"), "{error}");
    assert!(error.contains("--force"), "{error}");
    let mount = or_skip!(Mount::new(&[text(&disk.node)]));
    let error = mkswap(&disk.node, &forced()).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    drop(mount);
    or_skip!(run("blkid", &["-p", text(&disk.node)]));

    mkswap(&disk.node, &forced()).unwrap();
    // Two signatures would be "ambivalent" and an error.
    let said = run("blkid", &["-p", text(&disk.node)]).unwrap();
    assert!(said.contains("TYPE=\"swap\"") && !said.contains("ext4"), "{said}");
}

#[test]
fn what_stood_at_either_end_is_wiped_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = zeros(dir.path(), 0);
    // 3 MiB and a partial page, where the copy of a partition table would be.
    let size = (3 << 20) + 512;
    fs::write(&path, vec![7; size]).unwrap();
    let found = DeviceError::WouldDestroy {
        name: path.display().to_string(),
        found: "data of unknown kind".into(),
    };
    assert_eq!(mkswap(&path, &spill()), Err(found));
    assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 7), "untouched");

    mkswap(&path, &forced()).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), size);
    let is = |range: std::ops::Range<usize>, byte| content[range].iter().all(|&b| b == byte);
    assert!(is(PAGE_SIZE..1 << 20, 0) && is(1 << 20..2 << 20, 7) && is(2 << 20..size, 0));
    assert_eq!(header_of(&path).last_page, 767, "whole pages only");
}

#[test]
fn what_swapon_would_not_like_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = zeros(dir.path(), 0);
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let notes = mkswap(&path, &spill()).unwrap().notes;
    let told = |part: &str| notes.iter().any(|note| note.contains(part));
    assert!(told("mode 0644") && told("chmod 0600") && told("has holes"), "{notes:?}");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(open(&file(&path)).unwrap().info().slots_max, 256, "we fill the holes");
}

#[test]
fn places_that_cannot_become_areas_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let table = [
        (dir.path().join("nothing"), "is not there: make it first"),
        (dir.path().to_owned(), "neither a file nor a block device"),
        ("/dev/null".into(), "neither a file nor a block device"),
        (zeros(dir.path(), 9), "has room for 36 KiB only, a swap area needs 40 KiB"),
    ];
    for (path, part) in table {
        let error = mkswap(&path, &spill()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let path = zeros(dir.path(), 10);
    let label = "seventeen-byte-lb".to_owned();
    let error = mkswap(&path, &MkswapOptions { label, ..spill() }).unwrap_err().to_string();
    assert!(error.contains("has 17 bytes; at most 16"), "{error}");
    let area = mkswap(&path, &spill()).unwrap();
    assert_eq!(area.capacity, Bytes::of_pages(9), "ten pages are enough");

    let user = open(&file(&path)).unwrap();
    let error = mkswap(&path, &forced()).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }), "{error}");
    drop(user);
}

/// A device-mapper target over a loop device with page 100 unreadable, removed when dropped.
struct Mapped(String);

impl Mapped {
    fn new(below: &Path) -> Result<Self, String> {
        let name = format!("overspill-test-{}", std::process::id());
        let below = text(below);
        let table = format!("0 800 linear {below} 0\n800 8 error\n808 1592 linear {below} 808\n");
        run("dmsetup", &["create", &name, "--table", &table])?;
        Ok(Self(name))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        run("dmsetup", &["remove", "--retry", &self.0]).unwrap();
    }
}

#[test]
fn pages_a_disk_cannot_read_are_listed_as_bad() {
    let disk = or_skip!(Loop::new(300, &[]));
    let mapped = or_skip!(Mapped::new(&disk.node));
    let path = Path::new("/dev/mapper").join(&mapped.0);
    let area = mkswap(&path, &spill()).unwrap();
    assert_eq!((area.bad_pages, area.capacity), (1, Bytes::of_pages(298)));
    assert_eq!(header_of(&disk.node).bad_pages, [Slot(100)]);
    let kind = SwapKind::Block { path };
    assert_eq!(open(&kind).unwrap().info().reserved, [0, 100].map(Slot));
}
