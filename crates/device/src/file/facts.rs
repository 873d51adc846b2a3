//! Facts about files, devices and the system.
//!
//! Owns: the readers of `/proc/swaps`, of the block queues in sysfs, of file system statistics and
//! limits.
//! Invariants: a fact that cannot be read gets the cheapest answer: not rotational, not in use, not
//! in memory, not able to discard, unlimited.
//! Not here: what follows from the facts ([`super::open`], [`super::drive`]).

use overspill_base::Bytes;
use rustix::fs::{
    CWD, FileType, IFlags, Mode, OFlags, Stat, fstat, fstatfs, fstatvfs, ioctl_getflags,
    ioctl_setflags, major, minor, openat, readlinkat, stat,
};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const TMPFS_MAGIC: u32 = 0x0102_1994;
const GIB: u64 = 1 << 30;

/// True if the kernel itself swaps to the file or block device `what`.
pub(super) fn is_live_swap(what: &Stat) -> bool {
    let swaps = read_small(Path::new("/proc/swaps")).unwrap_or_default();
    swap_paths(&swaps).iter().filter_map(|path| stat(path).ok()).any(|swap| same(&swap, what))
}

fn same(a: &Stat, b: &Stat) -> bool {
    let block = |s: &Stat| FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice;
    match (block(a), block(b)) {
        (true, true) => a.st_rdev == b.st_rdev,
        (false, false) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}

/// The first column of `/proc/swaps`, without the heading, with blanks restored.
fn swap_paths(table: &[u8]) -> Vec<PathBuf> {
    let lines = table.split(|&byte| byte == b'\n').skip(1);
    lines
        .filter_map(|line| line.split(|byte| b" \t".contains(byte)).next())
        .filter(|path| !path.is_empty())
        .map(|path| PathBuf::from(OsString::from_vec(unescape(path))))
        .collect()
}

/// Decodes escapes such as `\040`.
fn unescape(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let octal = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, byte) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                text = &rest[3..];
            }
            _ => {
                plain.push(*first);
                text = rest;
            }
        }
    }
    plain
}

/// True if the disk with device number `dev` has to seek.
pub(super) fn is_rotational(dev: u64) -> bool {
    queue_limit(dev, "rotational").is_some_and(|flag| flag == 1)
}

/// True if the disk with device number `dev` supports discard.
pub(super) fn discards(dev: u64) -> bool {
    queue_limit(dev, "discard_max_bytes").is_some_and(|most| most > 0)
}

/// Reads a number from the queue of a block device. A partition's queue is its disk's; the virtual
/// numbers of file systems such as btrfs and NFS have none.
fn queue_limit(dev: u64, name: &str) -> Option<u64> {
    let device = sysfs(dev);
    let text = ["queue", "../queue"]
        .iter()
        .find_map(|queue| read_small(&device.join(queue).join(name)).ok())?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

fn sysfs(dev: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(dev), minor(dev)).into()
}

/// True if the block device with number `dev` is memory: a transfer is complete when it is
/// submitted. The kernel has a flag for that but does not export it, so this goes by the drivers
/// that set it: brd, zram, pmem. Device mapper and loop devices over them do not count, nor does
/// zram that writes back to a disk.
pub(super) fn is_memory_block(dev: u64) -> bool {
    let Ok(device) = readlinkat(CWD, sysfs(dev), Vec::new()) else { return false };
    let device = device.to_string_lossy();
    let mut names = device.rsplit_once("/block/").map_or("", |(_, names)| names).split('/');
    let disk = names.next().unwrap_or_default();
    let backing = || read_small(&Path::new("/sys/block").join(disk).join("backing_dev"));
    is_memory_disk(disk) && backing().map_or(true, |device| device.starts_with(b"none"))
}

/// Recognises the kernel's own names: `ram0`, `zram1`, `pmem0`, `pmem0.1s`.
fn is_memory_disk(name: &str) -> bool {
    let number = ["ram", "zram", "pmem"].iter().find_map(|driver| name.strip_prefix(driver));
    number.is_some_and(|rest| {
        let digits = rest.strip_suffix('s').filter(|_| name.starts_with('p')).unwrap_or(rest);
        digits.starts_with(|c: char| c.is_ascii_digit())
            && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

/// True if `fd` is in memory: a memfd, or a file on tmpfs. The node of a block device often is on a
/// tmpfs, but its content is not.
pub(super) fn is_in_memory(fd: impl AsFd) -> bool {
    let regular = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    fstat(&fd).is_ok_and(regular) && fstatfs(fd).is_ok_and(|fs| fs.f_type as u32 == TMPFS_MAGIC)
}

/// The default limit of a swap file: what the file system under `fd` can spare.
///
/// # Errors
/// The error of fstatvfs.
pub(super) fn spare_room(fd: impl AsFd) -> Result<Bytes, Errno> {
    let fs = fstatvfs(fd)?;
    Ok(spare(fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize))
}

/// Leaves 5 % of the file system or 1 GiB, whichever is more, to others; half of the free space if
/// that is less.
fn spare(free: u64, total: u64) -> Bytes {
    let reserve = (total / 20).max(GIB).min(free / 2);
    Bytes(free - reserve)
}

/// The largest file this process may write; beyond it a write would raise SIGXFSZ.
pub(super) fn file_size_limit() -> Bytes {
    Bytes(getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX))
}

/// Makes writes go to the reserved space. Only btrfs does otherwise by default; elsewhere the flag
/// is refused, which does no harm.
pub(super) fn write_in_place(fd: impl AsFd) {
    if let Ok(flags) = ioctl_getflags(&fd) {
        let _ = ioctl_setflags(&fd, flags | IFlags::NOCOW);
    }
}

/// A file under `/proc` or `/sys`.
fn read_small(path: &Path) -> Result<Vec<u8>, Errno> {
    let fd = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match retry_on_intr(|| read(&fd, &mut chunk))? {
            0 => return Ok(text),
            len => text.extend_from_slice(&chunk[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_are_read_with_their_blanks() {
        let table = b"Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/sda2                               partition\t1000\t\t0\t\t-2\n\
            /my\\040swap\\134x\t\t\tfile\t\t1000\t\t0\t\t-3\n";
        assert_eq!(swap_paths(table), [Path::new("/dev/sda2"), Path::new("/my swap\\x")]);
        assert!(swap_paths(b"Filename Type\n").is_empty());
        assert!(swap_paths(b"").is_empty());
    }

    #[test]
    fn disks_that_are_memory_are_known_by_name() {
        for name in ["ram0", "zram12", "pmem0", "pmem1.2", "pmem0s"] {
            assert!(is_memory_disk(name), "{name}");
        }
        for name in ["", "ram", "ramdisk", "zram0p1x", "sda", "nvme0n1", "loop0", "dm-0", "zram1s"]
        {
            assert!(!is_memory_disk(name), "{name}");
        }
    }

    #[test]
    fn others_keep_some_room() {
        // A large disk keeps 5 %, a small one 1 GiB, a nearly full one half of its free space.
        assert_eq!(spare(500 * GIB, 1000 * GIB), Bytes(450 * GIB));
        assert_eq!(spare(8 * GIB, 10 * GIB), Bytes(7 * GIB));
        assert_eq!(spare(GIB, 10 * GIB), Bytes(GIB / 2));
        assert_eq!(spare(0, 10 * GIB), Bytes(0));
    }

    #[test]
    fn a_file_is_the_same_under_two_paths() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "x").unwrap();
        std::fs::hard_link(&one, &two).unwrap();
        assert!(same(&stat(&one).unwrap(), &stat(&two).unwrap()));
        assert!(!same(&stat(&one).unwrap(), &stat(dir.path()).unwrap()));
    }
}
