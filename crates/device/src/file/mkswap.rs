//! Makes a swap area of a file or a block device.
//!
//! Owns: what is refused, what is warned of, and the order of the writes.
//! Invariants: nothing is written before every reason to refuse has been checked. Existing content
//! is destroyed only if the user insists, and what is mounted, swapped to or otherwise used not
//! even then. The header is written last, and it is on the storage when the call returns.
//! Not here: the header's layout ([`crate::header`]), searching for bad pages ([`super::check`]).
//! Rejected: replacing an existing swap area without `force`, as util-linux does. It may hold a
//! hibernated system or belong to another one.
//!
//! Unlike in util-linux, a place counts as free only if its first 68 KiB are zeros, and its end is
//! not checked: if there is a second partition table, the first one is found.

use super::facts;
use super::open::{self, large_enough, live_swap, named, refused, slots_in};
use super::{FileDevice, check, probe};
use crate::error::DeviceError;
use crate::header::{HeaderError, ID_LEN, MAX_BAD_PAGES, SwapHeader};
use overspill_base::{Bytes, PAGE_SIZE, Slot};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, Stat, fstat, fsync, openat, seek, stat};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::process::geteuid;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Wiped at both ends of a place that held something, so that it is not recognised any more:
/// superblocks and partition tables with their copies are there.
const WIPE_BYTES: u64 = 1 << 20;

/// How to make a swap area.
#[derive(Clone, Debug, Default)]
pub struct MkswapOptions {
    /// Its label, at most 16 bytes; may be empty.
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
    /// Total size of its pages.
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
/// * [`DeviceError::TooSmall`], [`Unreadable`](DeviceError::Unreadable) if it would be of no use.
/// * [`DeviceError::LongLabel`].
pub fn mkswap(path: &Path, options: &MkswapOptions) -> Result<NewArea, DeviceError> {
    let label = options.label.clone();
    if label.len() > ID_LEN {
        return Err(DeviceError::LongLabel { label, most: ID_LEN });
    }
    let place = Place::claim(path)?;
    large_enough(&named(place.name.clone(), place.size))?;
    let found = place.content()?;
    if let (Some(found), false) = (&found, options.force) {
        return Err(DeviceError::WouldDestroy { name: place.name, found: found.clone() });
    }
    let notes = place.notes()?;
    let bad_pages = if options.check { place.bad_pages()? } else { Vec::new() };
    let good = Bytes::of_pages(u64::from(place.slots()) - bad_pages.len() as u64);
    large_enough(&named(place.name.clone(), good))?;
    if found.is_some() {
        place.wipe(&bad_pages)?;
    }
    let capacity = Bytes(good.0 - PAGE_SIZE as u64);
    let made = NewArea { capacity, bad_pages: bad_pages.len(), notes };
    let last_page = place.slots() - 1;
    place.write_header(&SwapHeader { last_page, bad_pages, uuid: options.uuid, label })?;
    Ok(made)
}

/// A file or block device to become a swap area, which is not used otherwise meanwhile.
struct Place {
    fd: OwnedFd,
    name: String,
    size: Bytes,
    /// False for a block device.
    file: bool,
}

impl Place {
    fn claim(path: &Path) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let unsupported = |what| DeviceError::Unsupported { name: name.clone(), what };
        let stat = stat(path).map_err(|errno| match errno {
            Errno::NOENT => unsupported("not there: make it first, as `fallocate -l 1G` does"),
            errno => refused(&name, "open")(errno),
        })?;
        if facts::is_live_swap(&stat) {
            return Err(live_swap(name));
        }
        let (fd, file) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => (open::open_exclusively(path, &name)?, false),
            FileType::RegularFile => {
                let fd = open_read_write(path).map_err(refused(&name, "open"))?;
                open::lock(&fd, &name)?;
                (fd, true)
            }
            _ => return Err(unsupported("neither a file nor a block device: name one of these")),
        };
        let size = seek(&fd, SeekFrom::End(0)).map_err(refused(&name, "find the size of"))?;
        Ok(Self { fd, name, size: Bytes(size), file })
    }

    fn slots(&self) -> u32 {
        slots_in(self.size)
    }

    fn refused(&self, action: &'static str) -> impl Fn(Errno) -> DeviceError + use<> {
        refused(&self.name, action)
    }

    /// What it holds, if not zeros.
    fn content(&self) -> Result<Option<String>, DeviceError> {
        let start = probe::read_start(&self.fd, PAGE_SIZE).map_err(self.refused("read"))?;
        let page = start[..].try_into().expect("it has ten pages at least");
        Ok(match SwapHeader::parse(page) {
            Ok(header) if header.label.is_empty() => Some("a swap area".into()),
            Ok(header) => Some(format!("a swap area labelled `{}`", header.label)),
            Err(HeaderError::NoMagic) => {
                probe::content(&self.fd).map_err(self.refused("read"))?.map(str::to_owned)
            }
            Err(_) => Some("a damaged swap area".into()),
        })
    }

    /// What swapon would complain about, and what it should complain about but does not.
    fn notes(&self) -> Result<Vec<String>, DeviceError> {
        let Self { fd, name, size, file } = self;
        let stat = fstat(fd).map_err(self.refused("open"))?;
        let (uid, stored) = (stat.st_uid, stat.st_blocks as u64 * 512);
        let numbered = Bytes::of_pages(u32::MAX.into());
        let all = [
            access_note(&stat, name, *file),
            (*file && geteuid().is_root() && uid != 0)
                .then(|| format!("{name} belongs to user {uid}: `chown 0:0 {name}`")),
            (*file && stored < size.0).then(|| {
                format!("{name} has holes: swapon will refuse it, `overspill run` will fill them")
            }),
            (*size > numbered).then(|| format!("only the first {numbered} of {name} are used")),
        ];
        Ok(all.into_iter().flatten().collect())
    }

    /// The pages that cannot be read.
    fn bad_pages(&self) -> Result<Vec<Slot>, DeviceError> {
        // A separate file description, so that it can read directly while the other one writes
        // buffered.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let fd = open_read_write(path.as_ref()).map_err(self.refused("open"))?;
        let device = FileDevice::attach(fd, named(self.name.clone(), self.size))?;
        let bad = check::unreadable(&device, MAX_BAD_PAGES)?;
        match why_unusable(&bad, self.file) {
            None => Ok(bad),
            Some(why) => {
                let (name, pages) = (self.name.clone(), bad.len());
                Err(DeviceError::Unreadable { name, pages, why })
            }
        }
    }

    /// Zeros both ends, except pages known to be bad: writes there would fail.
    fn wipe(&self, bad: &[Slot]) -> Result<(), DeviceError> {
        let end = self.size.0;
        let last = Bytes::of_pages(Bytes(end.saturating_sub(WIPE_BYTES)).pages_floor());
        let ends = [0..WIPE_BYTES.min(end), last.0..end];
        for start in ends.into_iter().flat_map(|end| end.step_by(PAGE_SIZE)) {
            let zeros = &[0; PAGE_SIZE][..(end - start).min(PAGE_SIZE as u64) as usize];
            if !bad.iter().any(|slot| Bytes::of_pages(slot.0.into()).0 == start) {
                self.write_at(zeros, start)?;
            }
        }
        Ok(())
    }

    fn write_header(&self, header: &SwapHeader) -> Result<(), DeviceError> {
        let mut page = [0; PAGE_SIZE];
        header.write_to(&mut page);
        self.write_at(&page, 0)?;
        fsync(&self.fd).map_err(self.refused("write to"))
    }

    fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), DeviceError> {
        while !bytes.is_empty() {
            let written = retry_on_intr(|| pwrite(&self.fd, bytes, offset));
            match written.map_err(self.refused("write to"))? {
                0 => return Err(self.refused("write to")(Errno::NOSPC)),
                written => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
            }
        }
        Ok(())
    }
}

fn open_read_write(path: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// A block device may be accessible to a group, such as `disk`; a file to its owner only.
fn access_note(stat: &Stat, name: &str, file: bool) -> Option<String> {
    let (theirs, right) = if file { (0o077, "0600") } else { (0o007, "0660") };
    let mode = stat.st_mode & 0o7777;
    let told =
        || format!("{name} has mode {mode:04o}, so others may read it: `chmod {right} {name}`");
    (mode & theirs != 0).then(told)
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
