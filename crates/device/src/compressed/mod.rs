//! Compressed memory as a swap device: it holds more pages than the memory it takes.
//!
//! Owns: the choice of how a page is stored. A page that repeats one word is stored as that word;
//! one that compresses by a fifth or more is stored compressed, with others of its size; any other
//! is stored as it is ([`word`], [`spans`], [`store`], [`codec`]).
//!
//! The size of the device is that of the pages it holds, as zram's `disksize`: a user who asks for
//! 512 MiB more memory gets 512 MiB more, even if nothing compresses, and no write fails because of
//! what was written before. The memory it takes is another number, reported by [`Usage`]: that of
//! the objects and 7 to 13 % more (16 MiB each of text, logs, program code, Python's heap; 0.3 % on
//! noise): places larger than their objects, spans not yet full, and words, 8 bytes per slot and 8
//! per span. The memory is not accounted to any process.
//!
//! Invariants: a slot without a holder takes no memory: `area` notifies us when the last holder
//! releases it, the object's place is freed, and its span's memory is given back with the last
//! object in it. All state is words without locks, in a memory file that the process which opened
//! the device may pass on.
//! Not here: checksums. They are computed on the page, before and after, and so verify the codec
//! too, and they tell without compressing whether a page has changed: so they stay where objects
//! are encrypted.
//! Absent: compaction. A span with one object left keeps its memory; new objects of its class go
//! there first.
//! Rejected: a bound on memory instead of pages. The number of slots to offer would then be a
//! guess, and a wrong guess is a write that fails.

mod codec;
mod queue;
mod spans;
mod store;
#[cfg(test)]
mod tests;
mod word;

pub use codec::Algorithm;

use crate::error::DeviceError;
use crate::file::{Attachment, large_enough, named, refused};
use crate::seal::Sealer;
use crate::spec::SwapSpec;
use crate::synchronous::SynchronousQueue;
use crate::{DeviceInfo, FreeNotify, IoQueue, SwapDevice};
use codec::Codec;
use overspill_base::{Bytes, Slot};
use queue::Compressor;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use store::Store;

/// What a compressed device holds, and how much memory it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of pages it holds.
    pub held_pages: u64,
    /// Of these, pages that repeat one word.
    pub filled_pages: u64,
    /// Of these, pages stored as they are.
    pub incompressible_pages: u64,
    /// Size of the others, compressed, without what their places waste.
    pub compressed_bytes: u64,
    /// Memory it takes, including tables.
    pub memory_bytes: u64,
    /// The most pages it has ever held.
    pub held_pages_max: u64,
    /// The most memory it has ever taken, without tables.
    pub memory_bytes_max: u64,
}

/// Pages in memory, compressed.
#[derive(Debug)]
pub struct CompressedDevice {
    store: Arc<Store>,
    algorithm: Algorithm,
    attachment: Attachment,
    info: DeviceInfo,
    sealer: Option<Sealer>,
}

impl CompressedDevice {
    /// Makes an empty device of `size`, as specified by `spec`.
    ///
    /// # Errors
    /// [`DeviceError::TooSmall`]; [`DeviceError::Open`] if the system has no memory for its tables.
    pub fn open(spec: &SwapSpec, size: Bytes) -> Result<Self, DeviceError> {
        let algorithm = spec.algorithm.unwrap_or_default();
        let mut attachment = named("compressed".to_owned(), size);
        large_enough(&attachment)?;
        attachment.synchronous = true;
        attachment.discards = true;
        attachment.algorithm = Some(algorithm);
        attachment.notes.push(format!("in memory, compressed with {}", algorithm.name()));
        attachment.encrypt_as(spec);
        if spec.discard.is_some() {
            attachment.notes.push("it forgets freed slots anyway: discard= has no effect".into());
        }
        let store = Store::create(attachment.slots_max);
        let store = store.map_err(refused(&attachment.name, "set up"))?;
        Ok(Self::new(store, algorithm, attachment))
    }

    /// Attaches to the device that another process opened, through `fd`; see
    /// [`FileDevice::attach`].
    ///
    /// # Errors
    /// [`DeviceError::Open`] with the error of mmap.
    ///
    /// [`FileDevice::attach`]: crate::file::FileDevice::attach
    pub fn attach(
        fd: OwnedFd,
        algorithm: Algorithm,
        attachment: Attachment,
    ) -> Result<Self, DeviceError> {
        let store = Store::attach(fd, attachment.slots_max);
        let store = store.map_err(refused(&attachment.name, "attach to"))?;
        Ok(Self::new(store, algorithm, attachment))
    }

    fn new(store: Store, algorithm: Algorithm, attachment: Attachment) -> Self {
        let info = attachment.info();
        Self { store: Arc::new(store), algorithm, attachment, info, sealer: None }
    }

    /// What [`attach`](Self::attach) needs besides a descriptor.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Encrypts what is stored from now on, if there is a sealer.
    pub(crate) fn sealed_by(self, sealer: Option<Sealer>) -> Self {
        Self { sealer, ..self }
    }

    /// Returns its current usage.
    pub fn usage(&self) -> Usage {
        self.store.usage()
    }
}

impl AsFd for CompressedDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.store.as_fd()
    }
}

impl SwapDevice for CompressedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// All of it is usable from the start.
    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        let slots_max = self.info.slots_max;
        if slots <= slots_max {
            return Ok(slots_max);
        }
        let name = self.info.name.clone();
        Err(DeviceError::Full { name, size: Bytes::of_pages(slots_max.into()) })
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let name = self.info.name.clone();
        let codec = Codec::new(self.algorithm, &name)?;
        let compressor = Compressor::new(self.store.clone(), codec, self.sealer.clone(), name);
        Ok(Box::new(SynchronousQueue::new(compressor, depth)))
    }

    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        (0..slots as usize).for_each(|n| self.store.forget(first.plus(n)));
        Ok(())
    }

    fn free_notify(&self) -> Option<Arc<dyn FreeNotify>> {
        Some(self.store.clone())
    }
}
