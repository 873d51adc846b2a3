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
use overspill_device::served::apart::{self, Started, Starting};
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

/// A place that is being opened.
#[derive(Debug)]
pub struct Opening {
    spec: SwapSpec,
    options: OpenOptions,
    /// The process that opens it, if that is another one.
    server: Option<Starting>,
}

impl OpenPlace {
    /// The most that a keeper takes.
    pub const MAX: usize = AreaNo::MAX;
}

impl Opening {
    /// Begins; returns the process that has the place open, too, if that is another one, which is
    /// the caller's to reap.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn start(
        spec: SwapSpec,
        options: OpenOptions,
        server: &Path,
    ) -> Result<(Self, Option<Child>), DeviceError> {
        let started = spec.is_served().then(|| apart::start(server)).transpose()?;
        let (server, process) = started.unzip();
        Ok((Self { spec, options, server }, process))
    }

    /// Opens it. Blocks on the file system and the network.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn finish(self) -> Result<OpenPlace, DeviceError> {
        let Self { spec, options, server } = self;
        let by = match server {
            Some(starting) => OpenBy::Process(starting.open(&spec, &options)?),
            None => open_here(&spec, &options)?,
        };
        Ok(OpenPlace { spec, by })
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
            let (spec, options) = (spec.parse().unwrap(), OpenOptions::default());
            let (opening, _) = Opening::start(spec, options, Path::new("")).unwrap();
            opening.finish().unwrap()
        }
    }
}
