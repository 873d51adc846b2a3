//! A device of any kind the user can name.
//!
//! Owns: which kind of device serves which place, in the process that opens it and in those that
//! attach to it.
//! Not here: anything a device does.
//! Rejected: a trait object from the start. The supervisor of a run needs more of a device than the
//! pagers do: its descriptor, its attachment, its usage.

use crate::compressed::{CompressedDevice, Usage};
use crate::error::DeviceError;
use crate::file::{Attachment, FileDevice, OpenOptions};
use crate::seal::{Sealed, Sealer};
use crate::served::ServedDevice;
use crate::spec::{SwapKind, SwapSpec};
use crate::{DeviceInfo, SwapDevice};
use overspill_base::Bytes;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// An open swap device.
#[derive(Debug)]
pub enum Device {
    /// A file, block device or plain memory.
    File(FileDevice),
    /// Compressed memory.
    Compressed(CompressedDevice),
    /// Behind a connection that one process has, which serves it to another.
    Remote {
        /// The device.
        device: Arc<dyn SwapDevice>,
        /// What others need to know.
        attachment: Box<Attachment>,
    },
}

/// What memory can hold, in times its own size: one page may become this much smaller.
const COMPRESSED_TIMES_MAX: u64 = 16;

/// Refuses a place in memory that is larger than memory can hold.
fn check_memory(kind: &SwapKind) -> Result<(), DeviceError> {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let (size, times) = match *kind {
        SwapKind::Ram { size } => (size, 1),
        SwapKind::Compressed { size } => (size, COMPRESSED_TIMES_MAX),
        _ => return Ok(()),
    };
    let most = Bytes(memory.saturating_mul(times));
    match size <= most {
        true => Ok(()),
        false => Err(DeviceError::MoreThanMemory { name: kind.to_string(), size, most }),
    }
}

impl Device {
    /// Opens the place of this machine that `spec` names. Blocks on the file system.
    ///
    /// # Errors
    /// As [`FileDevice::open`] and [`CompressedDevice::open`]; [`DeviceError::OnlyInRuns`],
    /// [`DeviceError::MoreThanMemory`].
    pub fn open(spec: &SwapSpec, options: &OpenOptions) -> Result<Self, DeviceError> {
        check_memory(&spec.kind)?;
        match spec.kind {
            SwapKind::Compressed { size } => {
                CompressedDevice::open(spec, size).map(Self::Compressed)
            }
            SwapKind::Nbd { .. } | SwapKind::RedisCluster { .. } => {
                Err(DeviceError::OnlyInRuns { name: spec.kind.to_string() })
            }
            _ => FileDevice::open(spec, options).map(Self::File),
        }
    }

    /// Attaches to what another process opened on this machine, through `fd`.
    ///
    /// # Errors
    /// As [`FileDevice::attach`] and [`CompressedDevice::attach`].
    pub fn attach(fd: OwnedFd, attachment: Attachment) -> Result<Self, DeviceError> {
        match attachment.algorithm {
            Some(algorithm) => {
                CompressedDevice::attach(fd, algorithm, attachment).map(Self::Compressed)
            }
            None => FileDevice::attach(fd, attachment).map(Self::File),
        }
    }

    /// What [`attach`] needs besides a descriptor.
    pub fn attachment(&self) -> &Attachment {
        match self {
            Self::File(device) => device.attachment(),
            Self::Compressed(device) => device.attachment(),
            Self::Remote { attachment, .. } => attachment,
        }
    }

    /// Its properties.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            Self::File(device) => device.info(),
            Self::Compressed(device) => device.info(),
            Self::Remote { device, .. } => device.info(),
        }
    }

    /// The usage of compressed memory; none for other devices.
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Self::File(_) | Self::Remote { .. } => None,
            Self::Compressed(device) => Some(device.usage()),
        }
    }

    /// True if its queues have a ring each; see [`reserve_rings`](crate::file::reserve_rings).
    pub fn has_rings(&self) -> bool {
        matches!(self, Self::File(device) if device.has_rings())
    }

    /// Another descriptor of a file of the user's that was empty, and is to be so again afterwards.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn kept_if_empty(&self) -> Result<Option<OwnedFd>, Errno> {
        let file = self.descriptor().filter(|_| self.attachment().was_empty);
        file.map(|file| fcntl_dupfd_cloexec(file, 0)).transpose()
    }

    /// Returns the device as it is, for the process that serves it.
    pub fn bare(self) -> Arc<dyn SwapDevice> {
        match self {
            Self::File(device) => Arc::new(device),
            Self::Compressed(device) => Arc::new(device),
            Self::Remote { device, .. } => device,
        }
    }

    /// Returns the device as pagers use it. One that is [encrypted](Attachment::encrypted) needs a
    /// sealer.
    pub fn shared(self, sealer: Option<Sealer>) -> Arc<dyn SwapDevice> {
        assert_eq!(self.attachment().encrypted, sealer.is_some());
        match self {
            Self::File(device) => sealed(Arc::new(device), sealer),
            Self::Compressed(device) => Arc::new(device.sealed_by(sealer)),
            Self::Remote { device, .. } => sealed(device, sealer),
        }
    }

    /// What other processes open it by; none if only this one has it open.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(device) => Some(device.as_fd()),
            Self::Compressed(device) => Some(device.as_fd()),
            Self::Remote { .. } => None,
        }
    }
}

fn sealed(device: Arc<dyn SwapDevice>, sealer: Option<Sealer>) -> Arc<dyn SwapDevice> {
    match sealer {
        None => device,
        Some(sealer) => Arc::new(Sealed::new(device, sealer)),
    }
}

/// Attaches to the device that another process opened, through `fd`; see [`FileDevice::attach`]. If
/// that process serves it, `fd` is [`Apart::socket`].
///
/// [`Apart::socket`]: crate::served::apart::Apart::socket
///
/// # Errors
/// [`DeviceError::Open`].
pub fn attach(
    fd: OwnedFd,
    attachment: Attachment,
    sealer: Option<Sealer>,
) -> Result<Arc<dyn SwapDevice>, DeviceError> {
    if attachment.served {
        assert_eq!(attachment.encrypted, sealer.is_some());
        let device = ServedDevice::new(fd, &attachment);
        return Ok(sealed(Arc::new(device), sealer));
    }
    Ok(Device::attach(fd, attachment)?.shared(sealer))
}
