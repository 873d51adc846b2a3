//! A thread's queue to the store.
//!
//! Owns: the codec, its buffer, and where this thread searches for a free place.
//! Invariants: each page of a request succeeds or fails by itself. With a sealer everything that is
//! stored is encrypted, so a page that repeats one word is compressed like any other.

use super::codec::{Codec, OUTPUT_BYTES};
use super::spans::{CLASSES, Cursors};
use super::store::{Found, Store};
use super::word::filling;
use crate::error::DeviceError;
use crate::seal::Sealer;
use crate::synchronous::Perform;
use crate::{Completion, IoOp, IoRequest, PageFailure};
use overspill_base::{PAGE_SIZE, Slot};
use rustix::io::Errno;
use std::sync::Arc;

/// A page that compresses to more is stored as it is: it would take a whole page's place anyway.
const COMPRESSED_BYTES_MAX: usize = PAGE_SIZE * 4 / 5;

pub(super) struct Compressor {
    store: Arc<Store>,
    codec: Codec,
    buffer: Box<[u8; OUTPUT_BYTES]>,
    cursors: Cursors,
    sealer: Option<Sealer>,
    name: String,
}

impl Compressor {
    pub(super) fn new(
        store: Arc<Store>,
        codec: Codec,
        sealer: Option<Sealer>,
        name: String,
    ) -> Self {
        let buffer = Box::new([0; OUTPUT_BYTES]);
        Self { store, codec, buffer, cursors: [0; CLASSES], sealer, name }
    }

    fn write(&mut self, slot: Slot, page: &[u8]) -> Result<(), DeviceError> {
        if self.sealer.is_none() && filling(page).is_some_and(|word| self.store.fill(slot, word)) {
            return Ok(());
        }
        let compressed = self.codec.compress(page, &mut self.buffer[..]);
        let put = match compressed.filter(|&len| len <= COMPRESSED_BYTES_MAX) {
            Some(len) => self.put(slot, len),
            None if self.sealer.is_none() => self.store.put(slot, page, &mut self.cursors),
            None => {
                self.buffer[..PAGE_SIZE].copy_from_slice(page);
                self.put(slot, PAGE_SIZE)
            }
        };
        put.map_err(|errno| self.failed(IoOp::Write, slot, errno))
    }

    /// Stores the first `len` bytes of the buffer.
    fn put(&mut self, slot: Slot, len: usize) -> Result<(), Errno> {
        let bytes = &mut self.buffer[..len];
        let seal = self.sealer.as_ref().map(|sealer| (sealer, sealer.seal(slot, bytes)));
        self.store.put(slot, bytes, &mut self.cursors)?;
        seal.into_iter().for_each(|(sealer, seal)| sealer.keep(seal));
        Ok(())
    }

    fn read(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), DeviceError> {
        let found = self.store.get(slot, page, &mut self.buffer[..]);
        let restored = match found.map_err(|errno| self.failed(IoOp::Read, slot, errno))? {
            Found::Filled => self.sealer.is_none(),
            Found::Page => open(&self.sealer, slot, page),
            Found::Compressed(len) => {
                let bytes = &mut self.buffer[..len];
                open(&self.sealer, slot, bytes) && self.codec.decompress(bytes, page).is_ok()
            }
            Found::Damage => false,
        };
        let damaged = || DeviceError::Damaged { name: self.name.clone(), slot };
        if restored { Ok(()) } else { Err(damaged()) }
    }

    fn failed(&self, op: IoOp, slot: Slot, errno: Errno) -> DeviceError {
        DeviceError::Io { name: self.name.clone(), op, slot, errno }
    }
}

/// Decrypts what was read of `slot`, if it is encrypted; false if it is not what the slot holds.
fn open(sealer: &Option<Sealer>, slot: Slot, bytes: &mut [u8]) -> bool {
    sealer.as_ref().is_none_or(|sealer| sealer.open(slot, bytes))
}

impl Perform for Compressor {
    fn perform(&mut self, mut request: IoRequest) -> Completion {
        let mut failures = Vec::new();
        for (index, page) in request.pages.iter_mut().enumerate() {
            let slot = request.slot.plus(index);
            let done = match request.op {
                IoOp::Read => self.read(slot, page),
                IoOp::Write => self.write(slot, page),
            };
            failures.extend(done.err().map(|error| PageFailure { index, error }));
        }
        Completion { request, failures }
    }
}
