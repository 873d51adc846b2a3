//! Encryption: what leaves this machine's memory says nothing to others, and nothing comes back
//! that was not written there.
//!
//! Owns: a decorator that encrypts every page on its way to a device ([`Sealed`]), the cipher and
//! its key ([`cipher`]), and what is known of each slot ([`table`]).
//! Invariants: a page that a read returns without a failure is the page that was written last to
//! its slot. What a device is given depends on the key, the slot and the number of the write; the
//! page that is written is not changed, because it may be mapped again meanwhile.
//! Not here: what happens to a page that is lost ([`DeviceError::Seal`]).
//! Rejected: a checksum besides. The tag says more, and what has not changed is noticed by sealing
//! it again as the write that the slot holds: the same page has the same tag, which nobody sees.

pub mod cipher;
mod queue;
pub mod table;
#[cfg(test)]
mod tests;

pub use cipher::Algorithm;
pub use table::Seals;

use crate::error::DeviceError;
use crate::{DeviceInfo, FreeNotify, IoQueue, SwapDevice};
use cipher::Cipher;
use overspill_base::{PAGE_SIZE, Slot};
use queue::SealedQueue;
use rustix::io::Errno;
use std::sync::Arc;
use table::Seal;

/// Encrypts and decrypts the content of one area's slots. Clones share all of it.
#[derive(Clone, Debug)]
pub struct Sealer {
    cipher: Cipher,
    seals: Seals,
}

impl Sealer {
    /// Draws a key for `seals`, of whose slots nothing is known yet.
    ///
    /// # Errors
    /// Of drawing it ([`Secret::draw`](overspill_base::secret::Secret::draw)).
    pub fn new(algorithm: Algorithm, seals: Seals) -> Result<Self, Errno> {
        Ok(Self { cipher: Cipher::new(algorithm)?, seals })
    }

    /// What it encrypts with.
    pub fn algorithm(&self) -> Algorithm {
        self.cipher.algorithm()
    }

    /// Encrypts `bytes`, the new content of `slot`. From now on nothing is known of the slot.
    pub(crate) fn seal(&self, slot: Slot, bytes: &mut [u8]) -> Seal {
        let write = self.seals.begin(slot);
        Seal { write, tag: self.cipher.seal(write, bytes) }
    }

    /// The content with this seal is in its slot.
    pub(crate) fn keep(&self, seal: Seal) {
        self.seals.keep(seal);
    }

    /// Decrypts `bytes`; false if they are not what the slot holds.
    #[must_use]
    pub(crate) fn open(&self, slot: Slot, bytes: &mut [u8]) -> bool {
        let seal = self.seals.get(slot);
        seal.is_some_and(|Seal { write, tag }| self.cipher.open(write, &tag, bytes))
    }

    /// True if the slot holds `page`.
    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        let Some(Seal { write, tag }) = self.seals.get(slot) else { return false };
        let mut copy = [0; PAGE_SIZE];
        copy.copy_from_slice(page);
        self.cipher.seal(write, &mut copy) == tag
    }
}

/// A device whose pages are encrypted.
#[derive(Debug)]
pub struct Sealed {
    inner: Arc<dyn SwapDevice>,
    info: DeviceInfo,
    sealer: Sealer,
}

impl Sealed {
    /// Encrypts what `inner` is given.
    pub fn new(inner: Arc<dyn SwapDevice>, sealer: Sealer) -> Self {
        let write_pages_usual = Some(queue::USUAL_PAGES);
        let info = DeviceInfo { verifies: true, write_pages_usual, ..inner.info().clone() };
        Self { inner, info, sealer }
    }
}

impl SwapDevice for Sealed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        self.inner.grow(slots)
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        let inner = self.inner.open_queue(depth)?;
        let name = &self.info.name;
        Ok(Box::new(SealedQueue::new(inner, self.sealer.clone(), name, depth)?))
    }

    /// Forgets the slots' seals first: from here on their content is unknown.
    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError> {
        (0..slots as usize).for_each(|n| self.sealer.seals.forget(first.plus(n)));
        self.inner.discard(first, slots)
    }

    fn free_notify(&self) -> Option<Arc<dyn FreeNotify>> {
        let inner = self.inner.free_notify();
        Some(Arc::new(SealNotify { seals: self.sealer.seals.clone(), inner }))
    }

    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        self.sealer.holds(slot, page)
    }
}

/// Forgets seals with the use of their slots, so that no page is ever taken for one of the slot's
/// next user.
#[derive(Debug)]
struct SealNotify {
    seals: Seals,
    inner: Option<Arc<dyn FreeNotify>>,
}

impl FreeNotify for SealNotify {
    fn slot_free(&self, slot: Slot) {
        self.seals.forget(slot);
        self.inner.iter().for_each(|inner| inner.slot_free(slot));
    }
}
