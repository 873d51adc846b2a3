//! Making a swap area of a file or a block device.
//!
//! Owns: what is refused, what is warned of, and the order of the writes.
//! Invariants: nothing is written before every reason to refuse has been looked at. What the place
//! held is destroyed only if the user insists, and what is mounted, swapped to or otherwise used not
//! even then. The header is written last, and it is on the storage when the call returns.
//! Not here: the header's layout ([`crate::header`]), searching for bad pages ([`super::check`]).
//! Rejected: replacing an existing swap area without being told to, as util-linux does. It may hold a
//! hibernated system or belong to another one.
//!
//! Unlike in util-linux, a place counts as free only if its first 68 KiB are zeros, and its last part
//! is not looked at: a second partition table there is found by the first one.

use super::facts;
use super::open::{self, large_enough, live_swap, named, refused};
use super::{FileDevice, check, probe};
use crate::error::DeviceError;
use crate::header::{HeaderError, ID_LEN, MAX_BAD_PAGES, SwapHeader};
use overspill_base::{Bytes, PAGE_SIZE, Slot};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, Stat, fstat, fsync, openat, seek, stat};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::process::geteuid;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Wiped at both ends of a place that held something, so that nobody finds it again: superblocks
/// and partition tables with their copies lie there.
const WIPE_BYTES: u64 = 1 << 20;

/// How a swap area is to be made.
#[derive(Clone, Debug, Default)]
pub struct MkswapOptions {
    /// Its name, at most 16 bytes; may be empty.
    pub label: String,
    /// Its UUID; zeros for none.
    pub uuid: [u8; ID_LEN],
    /// Read every page first, and list those that cannot be read as bad.
    pub check: bool,
    /// Overwrite what is there.
    pub force: bool,
}

/// A swap area that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewArea {
    /// Room for pages.
    pub capacity: Bytes,
    /// Pages listed as bad.
    pub bad_pages: usize,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
}

/// Makes the file or block device at `path` a swap area. Blocks until it is on the storage.
///
/// # Errors
/// * [`DeviceError::Open`] with the system's reason, [`Unsupported`](DeviceError::Unsupported),
///   [`Busy`](DeviceError::Busy).
/// * [`DeviceError::WouldDestroy`] if something is there, unless that is forced.
/// * [`DeviceError::TooSmall`], [`Unreadable`](DeviceError::Unreadable) where it would be of no use.
/// * [`DeviceError::LongLabel`].
pub fn mkswap(path: &Path, options: &MkswapOptions) -> Result<NewArea, DeviceError> {
    let name = path.display().to_string();
    if options.label.len() > ID_LEN {
        let (label, most) = (options.label.clone(), ID_LEN);
        return Err(DeviceError::LongLabel { label, most });
    }
    let fd = claim(path, &name)?;
    let size = Bytes(seek(&fd, SeekFrom::End(0)).map_err(refused(&name, "find the size of"))?);
    let area = named(name.clone(), size);
    large_enough(&area)?;
    let found = content(&fd).map_err(refused(&name, "read"))?;
    let notes = notes(&fd, &name, size)?;
    if let (Some(found), false) = (&found, options.force) {
        return Err(DeviceError::WouldDestroy { name, found: found.clone() });
    }
    let bad_pages = if options.check { bad_pages(&fd, area.slots_max, &name)? } else { Vec::new() };
    let good_pages = area.slots_max - bad_pages.len() as u32;
    large_enough(&named(name.clone(), Bytes::of_pages(good_pages.into())))?;
    if found.is_some() {
        wipe(&fd, size, &bad_pages).map_err(refused(&name, "write to"))?;
    }
    let capacity = Bytes::of_pages(u64::from(good_pages) - 1);
    let made = NewArea { capacity, bad_pages: bad_pages.len(), notes };
    let MkswapOptions { label, uuid, .. } = options.clone();
    let header = SwapHeader { last_page: area.slots_max - 1, bad_pages, uuid, label };
    write_header(&fd, &header).map_err(refused(&name, "write to"))?;
    Ok(made)
}

/// Opens the place for nobody else to use meanwhile.
fn claim(path: &Path, name: &str) -> Result<OwnedFd, DeviceError> {
    let unsupported = |what| DeviceError::Unsupported { name: name.to_owned(), what };
    let stat = stat(path).map_err(|errno| match errno {
        Errno::NOENT => unsupported("not there: make it first, as `fallocate -l 1G` does"),
        errno => refused(name, "open")(errno),
    })?;
    if facts::is_live_swap(&stat) {
        return Err(live_swap(name.to_owned()));
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => open::open_exclusively(path, name),
        FileType::RegularFile => {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let fd = openat(CWD, path, flags, Mode::empty()).map_err(refused(name, "open"))?;
            open::lock(&fd, name)?;
            Ok(fd)
        }
        _ => Err(unsupported("neither a file nor a block device: name one of these")),
    }
}

/// What is there, if it is not zeros.
fn content(fd: &OwnedFd) -> Result<Option<String>, Errno> {
    let start = probe::read_start(fd, PAGE_SIZE)?;
    let page = start[..].try_into().expect("ten pages at least, as just checked");
    Ok(match SwapHeader::parse(page) {
        Ok(header) if header.label.is_empty() => Some("a swap area".into()),
        Ok(header) => Some(format!("a swap area labelled `{}`", header.label)),
        Err(HeaderError::NoMagic) => probe::content(fd)?.map(str::to_owned),
        Err(_) => Some("a damaged swap area".into()),
    })
}

/// What swapon would complain about, and what it would let pass though it should not.
fn notes(fd: &OwnedFd, name: &str, size: Bytes) -> Result<Vec<String>, DeviceError> {
    let stat = fstat(fd).map_err(refused(name, "open"))?;
    let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let numbered = Bytes::of_pages(u32::MAX.into());
    let all = [
        access_note(&stat, name, file),
        (file && geteuid().is_root() && stat.st_uid != 0)
            .then(|| format!("{name} belongs to user {}: `chown 0:0 {name}`", stat.st_uid)),
        (file && (stat.st_blocks as u64) * 512 < size.0).then(|| {
            format!("{name} has holes: swapon will refuse it, `overspill run` will fill them")
        }),
        (size > numbered).then(|| format!("only the first {numbered} of {name} are used")),
    ];
    Ok(all.into_iter().flatten().collect())
}

/// A block device may belong to a group, such as `disk`; a file to nobody else.
fn access_note(stat: &Stat, name: &str, file: bool) -> Option<String> {
    let (theirs, right) = if file { (0o077, "0600") } else { (0o007, "0660") };
    let mode = stat.st_mode & 0o7777;
    let told =
        || format!("{name} has mode {mode:04o}, so others may read it: `chmod {right} {name}`");
    (mode & theirs != 0).then(told)
}

/// Zeros both ends, but for the pages that are known to be bad: a write there would fail.
fn wipe(fd: &OwnedFd, size: Bytes, bad: &[Slot]) -> Result<(), Errno> {
    let last = Bytes::of_pages(Bytes(size.0.saturating_sub(WIPE_BYTES)).pages_floor());
    let pages = [0..WIPE_BYTES.min(size.0), last.0..size.0];
    for start in pages.into_iter().flat_map(|end| end.step_by(PAGE_SIZE)) {
        let zeros = &[0; PAGE_SIZE][..(size.0 - start).min(PAGE_SIZE as u64) as usize];
        if !bad.iter().any(|slot| Bytes::of_pages(slot.0.into()).0 == start) {
            write_at(fd, zeros, start)?;
        }
    }
    Ok(())
}

fn write_header(fd: &OwnedFd, header: &SwapHeader) -> Result<(), Errno> {
    let mut page = [0; PAGE_SIZE];
    header.write_to(&mut page);
    write_at(fd, &page, 0)?;
    fsync(fd)
}

fn write_at(fd: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match retry_on_intr(|| pwrite(fd, bytes, offset))? {
            0 => return Err(Errno::NOSPC),
            written => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}

/// The pages that cannot be read.
fn bad_pages(fd: &OwnedFd, slots: u32, name: &str) -> Result<Vec<Slot>, DeviceError> {
    let stat = fstat(fd).map_err(refused(name, "open"))?;
    let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // A description of its own, so that it may read directly while the other writes buffered.
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = openat(CWD, path, flags, Mode::empty()).map_err(refused(name, "open"))?;
    let device = FileDevice::attach(fd, named(name.to_owned(), Bytes::of_pages(slots.into())))?;
    let bad = check::unreadable(&device, MAX_BAD_PAGES)?;
    match why_unusable(&bad, file) {
        None => Ok(bad),
        Some(why) => Err(DeviceError::Unreadable { name: name.to_owned(), pages: bad.len(), why }),
    }
}

fn why_unusable(bad: &[Slot], file: bool) -> Option<&'static str> {
    match bad {
        [] => None,
        [Slot(0), ..] => Some("the one for the header among them"),
        _ if file => Some("and a file cannot have bad pages"),
        _ if bad.len() > MAX_BAD_PAGES => Some("or more, and a header lists 637 at most"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_pages_are_for_disks_and_there_is_room_for_637() {
        let bad = |range: std::ops::Range<u32>| range.map(Slot).collect::<Vec<_>>();
        let table = [
            (0..0, true, None),
            (1..638, false, None),
            (1..639, false, Some("637 at most")),
            (0..1, false, Some("the header")),
            (5..6, true, Some("a file cannot")),
        ];
        for (pages, file, why) in table {
            let found = why_unusable(&bad(pages.clone()), file);
            let fits = match (found, why) {
                (Some(found), Some(part)) => found.contains(part),
                (found, why) => found == why,
            };
            assert!(fits, "{pages:?}: {found:?}");
        }
    }
}
