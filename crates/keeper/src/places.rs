//! Places to swap to, opened for a keeper.
//!
//! Owns: opening what the user named, in the front, which may open files and start programs as the
//! user may; and the form in which the keeper gets it.
//! Invariant: the keeper opens no path and starts no program: it gets descriptors, and what is to
//! be known of them. A place on another machine a process apart has open, which sees no more than
//! what the keeper has encrypted.
//! Not here: keys, which are the keeper's alone (`swaps`).

use overspill_area::AreaNo;
use overspill_device::any::Device;
use overspill_device::file::{Attachment, OpenOptions};
use overspill_device::served::apart::{self, Started};
use overspill_device::{DeviceError, SwapSpec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::path::Path;
use std::process::Child;

/// Bytes that may be said of a place, at most: as many bad slots as a header can name.
const ATTACHMENT_BYTES_MAX: usize = 64 << 10;

/// A place that is open.
#[derive(Debug)]
pub struct OpenPlace {
    /// What the user named.
    pub(crate) spec: SwapSpec,
    /// The file of what is to be known of it, for its message.
    told: OwnedFd,
    pub(crate) by: OpenBy,
}

/// Who has it open.
#[derive(Debug)]
pub(crate) enum OpenBy {
    /// Who has this.
    Descriptor(OwnedFd, Attachment),
    /// A process of its own.
    Process(Started),
}

impl OpenPlace {
    /// The most that a keeper takes.
    pub const MAX: usize = AreaNo::MAX;

    /// Opens the place; returns the process that has it open, too, if that is another one, which is
    /// the caller's to reap. Blocks on the file system and the network.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn open(
        spec: SwapSpec,
        options: &OpenOptions,
        server: &Path,
    ) -> Result<(Self, Option<Child>), DeviceError> {
        let (by, process) = match spec.is_served() || spec.mirror.is_some() {
            true => {
                let (started, process) = apart::start(server, &spec, options)?;
                (OpenBy::Process(started), Some(process))
            }
            false => (open_here(&spec, options)?, None),
        };
        let told = write_attachment(by.attachment());
        let told = told.map_err(|errno| cannot_be_kept(by.attachment(), errno))?;
        Ok((Self { spec, told, by }, process))
    }

    /// The descriptors of its message.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let told = self.told.as_fd();
        match &self.by {
            OpenBy::Descriptor(descriptor, _) => vec![told, descriptor.as_fd()],
            OpenBy::Process(Started { orders, accounts, .. }) => {
                vec![told, orders.as_fd(), accounts.as_fd()]
            }
        }
    }

    /// Reads it from its message; `None` if it cannot be one.
    pub(crate) fn read(spec: SwapSpec, descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let told = descriptors.next()?;
        let attachment = read_attachment(&told)?;
        let by = match (descriptors.next()?, descriptors.next(), descriptors.next()) {
            (descriptor, None, _) => OpenBy::Descriptor(descriptor, attachment),
            (orders, Some(accounts), None) => {
                OpenBy::Process(Started { orders, accounts, attachment })
            }
            _ => return None,
        };
        Some(Self { spec, told, by })
    }
}

impl OpenBy {
    fn attachment(&self) -> &Attachment {
        match self {
            Self::Descriptor(_, attachment) => attachment,
            Self::Process(started) => &started.attachment,
        }
    }
}

fn open_here(spec: &SwapSpec, options: &OpenOptions) -> Result<OpenBy, DeviceError> {
    let device = Device::open(spec, options)?;
    let attachment = device.attachment().clone();
    let open = device.descriptor().expect("it is of this machine");
    match fcntl_dupfd_cloexec(open, 3) {
        Ok(descriptor) => Ok(OpenBy::Descriptor(descriptor, attachment)),
        Err(errno) => Err(cannot_be_kept(&attachment, errno)),
    }
}

fn cannot_be_kept(attachment: &Attachment, errno: Errno) -> DeviceError {
    DeviceError::Open { name: attachment.name.clone(), action: "keep open", errno }
}

fn write_attachment(attachment: &Attachment) -> Result<OwnedFd, Errno> {
    let json = serde_json::to_vec(attachment).expect("it has only strings and numbers");
    let file = memfd_create("overspill-place", MemfdFlags::CLOEXEC)?;
    match rustix::io::pwrite(&file, &json, 0)? {
        written if written == json.len() => Ok(file),
        _ => Err(Errno::NOSPC),
    }
}

fn read_attachment(file: &OwnedFd) -> Option<Attachment> {
    let bytes = usize::try_from(fstat(file).ok()?.st_size).ok()?;
    let mut json = vec![0; bytes.min(ATTACHMENT_BYTES_MAX)];
    let read = rustix::io::pread(file, &mut json, 0).ok()?;
    serde_json::from_slice(json.get(..read)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl OpenPlace {
        /// One of this machine.
        pub(crate) fn of_tests(spec: &str) -> Self {
            let spec = spec.parse().unwrap();
            Self::open(spec, &OpenOptions::default(), Path::new("")).unwrap().0
        }

        fn copies(&self) -> Vec<OwnedFd> {
            let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
            self.descriptors().into_iter().map(copy).collect()
        }
    }

    #[test]
    fn a_place_is_what_was_said_of_it() {
        let place = OpenPlace::of_tests("ram:1M,pri=3");
        let read = OpenPlace::read(place.spec.clone(), place.copies()).unwrap();
        assert_eq!(read.by.attachment().info(), place.by.attachment().info());
        let without = || OpenPlace::read(place.spec.clone(), place.copies().split_off(1));
        assert!(without().is_none(), "nothing is said of it");
        let mut many = place.copies();
        many.extend([place.copies(), place.copies()].into_iter().flatten());
        assert!(OpenPlace::read(place.spec.clone(), many).is_none(), "nobody knows which it is");
    }

    #[test]
    fn what_is_too_long_is_not_believed() {
        let mut attachment = OpenPlace::of_tests("ram:1M").by.attachment().clone();
        attachment.notes = vec!["x".repeat(ATTACHMENT_BYTES_MAX)];
        assert!(read_attachment(&write_attachment(&attachment).unwrap()).is_none());
    }
}
