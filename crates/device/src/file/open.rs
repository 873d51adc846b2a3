//! From the place the user named to an open file that may be overwritten.
//!
//! Owns: the rules of what is created, what is accepted, and what is refused.
//! Invariants: a file with content, and a block device that is mounted, swapped to or otherwise
//! used, is refused before anything is written; so is a device without a swap header unless the
//! user insists, and even then its first page is left alone. A file we create has mode 0600 and is
//! unlinked at once.
//! Not here: how to read and write it ([`super::drive`]).

use super::facts::{self, spare_room};
use super::{Attachment, Features, OpenOptions, growth, probe};
use crate::error::{DeviceError, is_full};
use crate::header::{HeaderError, SwapHeader};
use crate::spec::SwapKind;
use overspill_base::{Bytes, PAGE_SIZE};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, MemfdFlags, Mode, OFlags, SeekFrom, flock, fstat,
    ftruncate, memfd_create, openat, seek, stat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{geteuid, getpid};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The minimum that mkswap accepts. Smaller sizes are typing errors: `ram:64` for `ram:64M`.
const LEAST_SLOTS: u32 = 10;
/// Less room than this, where no size was asked for, is told.
const LITTLE: Bytes = Bytes(64 << 20);

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

type Opened = Result<(OwnedFd, Attachment), DeviceError>;

/// Opens the place `kind` names and reserves its first slots. For errors see
/// [`FileDevice::open`](super::FileDevice::open).
pub(super) fn open(kind: &SwapKind, options: &OpenOptions, features: Features) -> Opened {
    match kind {
        SwapKind::Default => in_default_directory(options.swap_size, features),
        SwapKind::File { path, size } => file(path, *size, options, features),
        SwapKind::Block { path } => block(path, options.force),
        SwapKind::Ram { size } => memory(*size),
        SwapKind::Compressed { .. } | SwapKind::Nbd { .. } | SwapKind::RedisCluster { .. } => {
            let what = "no file: it is opened as a `Device`";
            Err(DeviceError::Unsupported { name: kind.to_string(), what })
        }
    }
}

/// In `$TMPDIR`, which a refusal names, or `/var/tmp`.
fn in_default_directory(limit: Option<Bytes>, features: Features) -> Opened {
    let named = std::env::var_os("TMPDIR").filter(|directory| !directory.is_empty());
    let Some(directory) = named else {
        return unlinked_in(Path::new("/var/tmp"), limit, features);
    };
    unlinked_in(Path::new(&directory), limit, features).map_err(|error| match error {
        DeviceError::Open { name, action, errno } => {
            DeviceError::Open { name: format!("{name} ($TMPDIR)"), action, errno }
        }
        other => other,
    })
}

fn file(path: &Path, size: Option<Bytes>, options: &OpenOptions, features: Features) -> Opened {
    let name = path.display().to_string();
    let limit = size.or(options.swap_size);
    let stat = match stat(path) {
        // A misspelt directory must not become an unbounded file beside it.
        Err(Errno::NOENT) if size.is_none() || name.ends_with('/') => {
            return Err(DeviceError::Missing { name });
        }
        Err(Errno::NOENT) => {
            let fd = unnamed_at(path, features).map_err(refused(&name, "create"))?;
            return grown_from_nothing(fd, name, limit, features);
        }
        other => other.map_err(refused(&name, "open"))?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => unlinked_in(path, limit, features),
        FileType::RegularFile => existing(path, limit, options.force, features),
        FileType::BlockDevice => {
            let what = "a block device: name it as block:PATH instead of file:PATH";
            Err(DeviceError::Unsupported { name, what })
        }
        _ => {
            let what = "neither a file nor a directory: name one of these";
            Err(DeviceError::Unsupported { name, what })
        }
    }
}

/// Creates an unnamed file in `directory`.
fn unlinked_in(directory: &Path, limit: Option<Bytes>, features: Features) -> Opened {
    let name = format!("swap file in {}", directory.display());
    let created = unnamed_in(directory, || unused_path(directory), features);
    let fd = created.map_err(refused(&name, "create a"))?;
    grown_from_nothing(fd, name, limit, features)
}

/// Creates a file that would be at `path`, without that name.
fn unnamed_at(path: &Path, features: Features) -> Result<OwnedFd, Errno> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    unnamed_in(directory.unwrap_or(Path::new(".")), || path.to_owned(), features)
}

/// Creates an unnamed file in `directory`. Where the file system has none, it is made at
/// `otherwise` and loses its name at once, unless the process is killed in that moment.
fn unnamed_in(
    directory: &Path,
    otherwise: impl FnOnce() -> PathBuf,
    features: Features,
) -> Result<OwnedFd, Errno> {
    let flags = READ_WRITE | OFlags::TMPFILE | OFlags::EXCL;
    match openat(CWD, directory, flags, PRIVATE) {
        Ok(fd) if features.tmpfile => Ok(fd),
        // Refusals mean that the file system does not support O_TMPFILE; some return EISDIR.
        Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            create_unlinked(&otherwise())
        }
        refused => refused,
    }
}

/// An unused path; if another process takes it first, creating it fails.
fn unused_path(directory: &Path) -> PathBuf {
    let stem = format!(".overspill-{}", getpid());
    (0..u32::MAX)
        .map(|n| directory.join(format!("{stem}-{n}")))
        .find(|path| stat(path).is_err())
        .expect("fewer than 2^32 swap files of one process")
}

fn create_unlinked(path: &Path) -> Result<OwnedFd, Errno> {
    let fd = openat(CWD, path, READ_WRITE | OFlags::CREATE | OFlags::EXCL, PRIVATE)?;
    unlinkat(CWD, path, AtFlags::empty())?;
    Ok(fd)
}

/// An empty file that grows up to `limit`, or to what its file system can spare.
fn grown_from_nothing(
    fd: OwnedFd,
    name: String,
    limit: Option<Bytes>,
    features: Features,
) -> Opened {
    facts::write_in_place(&fd);
    let room = spare_room(&fd);
    let size = match limit {
        Some(size) => size,
        None => room.map_err(refused(&name, "see the free space of"))?,
    };
    if limit.is_none() && size.pages_floor() < LEAST_SLOTS.into() {
        return Err(DeviceError::DiskFull { name, size: Bytes::of_pages(LEAST_SLOTS.into()) });
    }
    let (fd, mut area) = regular(fd, named(name, size.min(facts::file_size_limit())), features)?;
    // What others free may make it true.
    let room = room.unwrap_or(size);
    let short = match limit {
        Some(_) if room < size => {
            Some(format!("its file system has room for {room} of {size} now"))
        }
        None if room < LITTLE => Some(format!("its file system has room for {room} only")),
        _ => None,
    };
    area.notes.extend(short);
    Ok((fd, area))
}

/// Opens a file the user made: a swap area, or empty.
fn existing(path: &Path, limit: Option<Bytes>, force: bool, features: Features) -> Opened {
    let name = path.display().to_string();
    let fd = openat(CWD, path, READ_WRITE, Mode::empty()).map_err(refused(&name, "open"))?;
    let stat = fstat(&fd).map_err(refused(&name, "open"))?;
    if facts::is_live_swap(&stat) {
        return Err(live_swap(name));
    }
    // What has the name may have changed since it was looked at.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(DeviceError::Unsupported { name, what: "no file any more: try again" });
    }
    lock(&fd, &name)?;
    if stat.st_size == 0 {
        let (fd, area) = grown_from_nothing(fd, name, limit, features)?;
        Ok((fd, Attachment { was_empty: true, ..area }))
    } else {
        area_in(fd, name, Bytes(stat.st_size as u64), limit, force, features)
    }
}

/// A warning, if others may read what is swapped to this file.
pub(super) fn readable_by_others(fd: &OwnedFd) -> Option<String> {
    const ALSO_THEN: &str = "may read what is swapped to it, also when the run has ended";
    let stat = fstat(fd).ok()?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let (owner, me) = (stat.st_uid, geteuid().as_raw());
    if owner != me && owner != 0 {
        return Some(format!("user {owner}, whose it is, {ALSO_THEN}: leave out encrypt=off"));
    }
    let is_open = mode.intersects(Mode::RGRP.union(Mode::ROTH));
    is_open.then(|| format!("others {ALSO_THEN}: chmod 600, or leave out encrypt=off"))
}

/// Opens a file with content, which must be a swap area.
fn area_in(
    fd: OwnedFd,
    name: String,
    size: Bytes,
    limit: Option<Bytes>,
    force: bool,
    features: Features,
) -> Opened {
    let area = match read_header(&fd, &name, size)? {
        Ok(header) if !header.bad_pages.is_empty() => {
            let reason = HeaderError::BadPagesInFile;
            return Err(DeviceError::BadHeader { name, reason });
        }
        Ok(header) => {
            let area = with_header(name, size);
            let limit = limit.unwrap_or(size);
            let slots_max = header.slots().min(slots_in(limit));
            Attachment { slots_max, notes: unheeded(limit, size).into_iter().collect(), ..area }
        }
        Err(_) if force => with_header(name, limit.unwrap_or(size)),
        Err(HeaderError::NoMagic) => {
            let found = probe::describe(&fd).map_err(refused(&name, "read"))?;
            return Err(DeviceError::HoldsData { name, found });
        }
        Err(reason) => return Err(DeviceError::BadHeader { name, reason }),
    };
    regular(fd, area, features)
}

/// A note, if an area is smaller than the user wants it.
fn unheeded(limit: Bytes, size: Bytes) -> Option<String> {
    let larger = "make a larger one with overspill mkswap";
    (limit > size)
        .then(|| format!("the size given, {limit}, changes nothing: it has {size}; {larger}"))
}

fn block(path: &Path, force: bool) -> Opened {
    let name = path.display().to_string();
    let stat = stat(path).map_err(|errno| match errno {
        Errno::NOENT => DeviceError::NoDevice { name: name.clone() },
        errno => refused(&name, "open")(errno),
    })?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        let what = "no block device: name a file or directory as file:PATH";
        return Err(DeviceError::Unsupported { name, what });
    }
    if facts::is_live_swap(&stat) {
        return Err(live_swap(name));
    }
    let fd = open_exclusively(path, &name)?;
    let size = Bytes(seek(&fd, SeekFrom::End(0)).map_err(refused(&name, "find the size of"))?);
    let area = match read_header(&fd, &name, size)? {
        Ok(header) => Attachment {
            slots_max: header.slots(),
            reserved: std::iter::once(0).chain(header.bad_pages.iter().map(|bad| bad.0)).collect(),
            ..with_header(name, size)
        },
        Err(_) if force => with_header(name, size),
        Err(HeaderError::NoMagic) => {
            let found = probe::describe(&fd).map_err(refused(&name, "read"))?;
            return Err(DeviceError::NotASwapArea { name, found });
        }
        Err(reason) => return Err(DeviceError::BadHeader { name, reason }),
    };
    large_enough(&area)?;
    let rotational = facts::is_rotational(stat.st_rdev);
    let synchronous = facts::is_memory_block(stat.st_rdev);
    Ok((fd, Attachment { rotational, synchronous, ..area }))
}

/// O_EXCL on a block device excludes mounts, swapon, volume managers and every other O_EXCL, and is
/// refused if there is one; so it also keeps two of us apart.
pub(super) fn open_exclusively(path: &Path, name: &str) -> Result<OwnedFd, DeviceError> {
    openat(CWD, path, READ_WRITE | OFlags::EXCL, Mode::empty()).map_err(|errno| match errno {
        Errno::BUSY => DeviceError::Busy {
            name: name.to_owned(),
            user: "it is mounted, part of a volume, or another program's; release it there first",
        },
        errno => refused(name, "open")(errno),
    })
}

fn memory(size: Bytes) -> Opened {
    let area = named("ram".to_owned(), size);
    large_enough(&area)?;
    let refused = refused(&area.name, "set up");
    let fd = memfd_create("overspill", MemfdFlags::CLOEXEC).map_err(&refused)?;
    ftruncate(&fd, Bytes::of_pages(area.slots_max.into()).0).map_err(&refused)?;
    Ok((fd, Attachment { synchronous: true, ..area }))
}

/// The last steps for all regular files: reserves the first slots and checks the storage.
fn regular(fd: OwnedFd, mut area: Attachment, features: Features) -> Opened {
    large_enough(&area)?;
    let stat = fstat(&fd).map_err(refused(&area.name, "open"))?;
    area.rotational = facts::is_rotational(stat.st_dev);
    area.synchronous = facts::is_in_memory(&fd);
    if area.synchronous {
        area.notes.push("its file system is in memory (tmpfs): name a directory on disk".into());
    }
    let first = if features.fallocate {
        growth::reserve(&fd, 0, LEAST_SLOTS)
    } else {
        Err(Errno::OPNOTSUPP)
    };
    match first {
        Ok(()) => area.grows = true,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => extend_unreserved(&fd, &mut area)?,
        Err(errno) if is_full(errno) => {
            let size = Bytes::of_pages(area.slots_max.into());
            return Err(DeviceError::DiskFull { name: area.name, size });
        }
        Err(errno) => return Err(refused(&area.name, "reserve space in")(errno)),
    }
    Ok((fd, area))
}

/// Gives the file its full length at once, without reserving space.
fn extend_unreserved(fd: &OwnedFd, area: &mut Attachment) -> Result<(), DeviceError> {
    let refused = refused(&area.name, "extend");
    let length = Bytes::of_pages(area.slots_max.into()).0;
    if (fstat(fd).map_err(&refused)?.st_size as u64) < length {
        ftruncate(fd, length).map_err(&refused)?;
    }
    area.notes.push("its file system cannot reserve space: it may fill up before its limit".into());
    Ok(())
}

pub(crate) fn named(name: String, size: Bytes) -> Attachment {
    Attachment {
        name,
        slots_max: slots_in(size),
        reserved: Vec::new(),
        rotational: false,
        synchronous: false,
        discards: false,
        page_discard: false,
        grows: false,
        was_empty: false,
        algorithm: None,
        encrypted: false,
        served: false,
        notes: Vec::new(),
    }
}

/// An area whose first page is, or counts as, a header.
fn with_header(name: String, size: Bytes) -> Attachment {
    Attachment { reserved: vec![0], ..named(name, size) }
}

/// Whole slots in `size`; what 32 bits cannot number is left unused.
pub(super) fn slots_in(size: Bytes) -> u32 {
    u32::try_from(size.pages_floor()).unwrap_or(u32::MAX)
}

/// The outer error is the system's, the inner one the header's.
fn read_header(
    fd: &OwnedFd,
    name: &str,
    size: Bytes,
) -> Result<Result<SwapHeader, HeaderError>, DeviceError> {
    let start = probe::read_start(fd, PAGE_SIZE).map_err(refused(name, "read the header of"))?;
    let Ok(page) = <&[u8; PAGE_SIZE]>::try_from(&start[..]) else {
        return Ok(Err(HeaderError::NoMagic));
    };
    let pages = size.pages_floor();
    Ok(SwapHeader::parse(page).and_then(|header| {
        if u64::from(header.last_page) < pages {
            Ok(header)
        } else {
            Err(HeaderError::PastEnd { last_page: header.last_page, pages })
        }
    }))
}

pub(crate) fn large_enough(area: &Attachment) -> Result<(), DeviceError> {
    let pages = |n: u32| Bytes::of_pages(n.into());
    if area.slots_max < LEAST_SLOTS {
        let (size, least) = (pages(area.slots_max), pages(LEAST_SLOTS));
        return Err(DeviceError::TooSmall { name: area.name.clone(), size, least });
    }
    Ok(())
}

/// Locks a file for this process. What another thread starts has our descriptors until it executes
/// its program, so a lock that was given up is tried for a while.
pub(super) fn lock(fd: &OwnedFd, name: &str) -> Result<(), DeviceError> {
    const TRIES: u32 = 20;
    let mut tries = 0;
    while let Err(errno) = flock(fd, FlockOperation::NonBlockingLockExclusive) {
        tries += 1;
        match errno {
            Errno::WOULDBLOCK if tries < TRIES => std::thread::sleep(Duration::from_millis(5)),
            Errno::WOULDBLOCK => {
                let user = "another program has locked it; give each overspill a file of its own";
                return Err(DeviceError::Busy { name: name.to_owned(), user });
            }
            errno => return Err(refused(name, "lock")(errno)),
        }
    }
    Ok(())
}

pub(super) fn live_swap(name: String) -> DeviceError {
    DeviceError::Busy { name, user: "the kernel swaps to it; `swapoff` it first" }
}

pub(crate) fn refused(name: &str, action: &'static str) -> impl Fn(Errno) -> DeviceError + use<> {
    let name = name.to_owned();
    move |errno| DeviceError::Open { name: name.clone(), action, errno }
}
