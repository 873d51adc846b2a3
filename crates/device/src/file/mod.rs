//! Files, block devices and memory as swap devices.
//!
//! Owns: an open file descriptor, what is known about the storage behind it, and the choice of how
//! to drive it. `open` finds out what is at a path and refuses what must not be overwritten,
//! `growth` reserves space and `discard` gives it back, `drive` picks between `uring` and
//! `positioned` I/O, and `transfer` is the bookkeeping both share. `mkswap` makes swap areas.
//! Invariants: no data that was not meant for swap is overwritten unless the user insists. A file
//! we create is unlinked before the first page is written, so nothing is left behind, whatever
//! kills us. A device never shrinks.
//! Not here: which slots are in use, and when they are discarded.
//! Rejected: O_SYNC and fsync, because swap does not outlive its process; locks around growing,
//! because reserving the same space twice is harmless, also by another process.

mod check;
mod discard;
mod drive;
mod facts;
mod growth;
mod mkswap;
mod open;
mod positioned;
mod probe;
#[cfg(test)]
mod tests;
mod transfer;
mod uring;

pub use mkswap::{MkswapOptions, NewArea, mkswap};
pub use uring::reserve_rings;

pub(crate) use open::{large_enough, named, refused};

use crate::compressed::Algorithm;
use crate::error::{DeviceError, is_full};
use crate::seal;
use crate::spec::{Discard, SwapKind, SwapSpec};
use crate::{DeviceInfo, IoQueue, SwapDevice};
use drive::Driver;
use growth::Growth;
use overspill_base::{Bytes, Slot};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use transfer::Target;

/// Options besides the place.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// The maximum size of a file without a size of its own (`--swap-size`). By default the free
    /// space of its file system, less 5 % of the file system or 1 GiB, whichever is more, but never
    /// less than half of the free space.
    pub swap_size: Option<Bytes>,
    /// Overwrite files and block devices that are not swap areas (`--force`).
    pub force: bool,
}

/// What another process needs to use the same device through its own descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its name in messages.
    pub name: String,
    /// Maximum number of slots.
    pub slots_max: u32,
    /// Slots that must never be used.
    pub reserved: Vec<u32>,
    /// True if seeks are expensive.
    pub rotational: bool,
    /// True if a transfer is complete when it is submitted.
    pub synchronous: bool,
    /// True if content can be discarded.
    pub discards: bool,
    /// True if freed slots must be discarded.
    pub page_discard: bool,
    /// True if space must be reserved before it is written.
    pub grows: bool,
    /// True if it is an empty file of the user's, to be empty again when nobody swaps to it.
    pub was_empty: bool,
    /// How pages are compressed, if they are.
    pub algorithm: Option<Algorithm>,
    /// True if pages are encrypted.
    pub encrypted: bool,
    /// True if other processes do not open it, but ask the one that has.
    pub served: bool,
    /// What the user should know about the storage, one line each.
    pub notes: Vec<String>,
}

impl Attachment {
    /// Has pages encrypted, if the user wants that.
    pub fn encrypt_as(&mut self, spec: &SwapSpec) {
        self.encrypted = spec.is_encrypted();
        if self.encrypted {
            let algorithm = seal::Algorithm::of_this_machine();
            self.notes.push(format!("encrypted with {}", algorithm.name()));
        }
    }

    /// The device's properties, except how it is driven.
    pub fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            slots_max: self.slots_max,
            reserved: self.reserved.iter().copied().map(Slot).collect(),
            rotational: self.rotational,
            synchronous: self.synchronous,
            discards: self.discards,
            page_discard: self.page_discard,
            write_pages_usual: None,
            verifies: false,
            notes: self.notes.clone(),
        }
    }
}

/// What is tried before the plain way. Tests switch each off, to take the other path on any
/// machine.
#[derive(Clone, Copy, Debug)]
struct Features {
    tmpfile: bool,
    fallocate: bool,
    direct: bool,
    uring: bool,
}

impl Features {
    const ALL: Self = Self { tmpfile: true, fallocate: true, direct: true, uring: true };
}

/// A file, block device or memory used as swap.
///
/// Dropping it closes it; an unnamed file is then gone, unless another process still has it open.
#[derive(Debug)]
pub struct FileDevice {
    target: Arc<Target>,
    attachment: Attachment,
    info: DeviceInfo,
    growth: Growth,
    driver: Driver,
}

impl FileDevice {
    /// Opens the place that `spec` names, creates it if necessary, and discards its content if the
    /// user asked for that. Blocks on the file system.
    ///
    /// # Errors
    /// * [`DeviceError::Open`] with the system's reason.
    /// * [`DeviceError::Busy`], [`HoldsData`](DeviceError::HoldsData),
    ///   [`NotASwapArea`](DeviceError::NotASwapArea), [`BadHeader`](DeviceError::BadHeader) or
    ///   [`Unsupported`](DeviceError::Unsupported) for what must not be swapped to.
    /// * [`DeviceError::TooSmall`] or [`DeviceError::DiskFull`] if there is no room.
    pub fn open(spec: &SwapSpec, options: &OpenOptions) -> Result<Self, DeviceError> {
        Self::open_with(spec, options, Features::ALL)
    }

    fn open_with(
        spec: &SwapSpec,
        options: &OpenOptions,
        features: Features,
    ) -> Result<Self, DeviceError> {
        let (fd, mut attachment) = open::open(&spec.kind, options, features)?;
        if let Some(ssd) = spec.ssd {
            attachment.rotational = !ssd;
        }
        if matches!(spec.kind, SwapKind::File { .. }) && !spec.is_encrypted() {
            attachment.notes.extend(open::readable_by_others(&fd));
        }
        attachment.encrypt_as(spec);
        attachment.discards = discard::probe(&fd);
        attachment.page_discard =
            attachment.discards && spec.discard.is_some_and(Discard::of_freed);
        if spec.discard.is_some() && !attachment.discards {
            attachment.notes.push("it cannot discard: discard= has no effect".into());
        }
        let device = Self::new(fd, attachment, features);
        let at_open = spec.discard.is_some_and(Discard::at_open) && device.info.discards;
        Ok(if at_open { device.discarded() } else { device })
    }

    /// Discards the whole area. A refusal is reported to the user; it does not prevent swapping.
    fn discarded(mut self) -> Self {
        if let Err(error) = self.discard(Slot(0), self.info.slots_max) {
            let note = error.to_string();
            self.attachment.notes.push(note.clone());
            self.info.notes.push(note);
        }
        self
    }

    /// Attaches to the device that another process opened, through `fd`: inherited, received, or
    /// opened for reading and writing at `/proc/PID/fd/N`. Nothing is checked again. A lock on a
    /// file the user named lasts as long as a copy of the *first* descriptor.
    ///
    /// # Errors
    /// [`DeviceError::Open`] with EBADF if `fd` is not open for reading and writing.
    pub fn attach(fd: OwnedFd, attachment: Attachment) -> Result<Self, DeviceError> {
        let mode = fcntl_getfl(&fd).map(|flags| flags & OFlags::RWMODE);
        if mode == Ok(OFlags::RDWR) {
            return Ok(Self::new(fd, attachment, Features::ALL));
        }
        let errno = mode.err().unwrap_or(Errno::BADF);
        Err(DeviceError::Open { name: attachment.name, action: "attach to", errno })
    }

    /// What [`attach`](Self::attach) needs besides a descriptor.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// True if its queues have a ring each.
    pub fn has_rings(&self) -> bool {
        self.driver == Driver::Uring
    }

    fn new(fd: OwnedFd, attachment: Attachment, features: Features) -> Self {
        let (driver, how) = drive::choose(&fd, attachment.synchronous, features);
        let mut notes = attachment.notes.clone();
        notes.push(how);
        let info = DeviceInfo { notes, ..attachment.info() };
        let growth = Growth::new(attachment.slots_max, attachment.grows);
        let target = Arc::new(Target::new(fd, &info));
        Self { target, attachment, info, growth, driver }
    }
}

impl AsFd for FileDevice {
    /// The descriptor to pass to another process; see [`FileDevice::attach`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.target.as_fd()
    }
}

impl SwapDevice for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        self.growth.reach(&self.target, slots).map_err(|errno| {
            let (name, slots_max) = (self.info.name.clone(), self.info.slots_max);
            let size = Bytes::of_pages(slots_max.into());
            match is_full(errno) {
                true if slots > slots_max => DeviceError::Full { name, size },
                true => DeviceError::DiskFull { name, size },
                false => DeviceError::Open { name, action: "reserve space in", errno },
            }
        })
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        let info = &self.info;
        let inside = u64::from(first.0) + u64::from(slots) <= u64::from(info.slots_max);
        assert!(inside, "{slots} slots from {first} of {} with {}", info.name, info.slots_max);
        let discarded = if info.discards {
            discard::discard(&self.target, first, slots, &info.reserved)
        } else {
            Err(Errno::OPNOTSUPP)
        };
        let name = || info.name.clone();
        discarded.map_err(|errno| DeviceError::Discard { name: name(), first, errno })
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        drive::open_queue(self.driver, &self.target, depth)
    }
}
