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
use overspill_wire::descriptor;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Child;

/// A place that is open.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenPlace {
    /// What the user named.
    pub(crate) spec: SwapSpec,
    pub(crate) by: OpenBy,
}

/// Who has it open.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum OpenBy {
    /// Who has this.
    Descriptor(#[serde(with = "descriptor")] OwnedFd, Attachment),
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
        let (by, process) = match spec.is_served() {
            true => {
                let (started, process) = apart::start(server, &spec, options)?;
                (OpenBy::Process(started), Some(process))
            }
            false => (open_here(&spec, options)?, None),
        };
        Ok((Self { spec, by }, process))
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

#[cfg(test)]
mod tests {
    use super::*;

    impl OpenPlace {
        /// One of this machine.
        pub(crate) fn of_tests(spec: &str) -> Self {
            let spec = spec.parse().unwrap();
            Self::open(spec, &OpenOptions::default(), Path::new("")).unwrap().0
        }
    }
}
