//! A thread's queue to the store.
//!
//! Owns: the codec, its buffer, and where this thread searches for a free place.
//! Invariants: each page of a request succeeds or fails by itself.

use super::codec::{Codec, OUTPUT_BYTES};
use super::spans::{CLASSES, Cursors};
use super::store::{Found, Store};
use super::word::filling;
use crate::error::DeviceError;
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
    name: String,
}

impl Compressor {
    pub(super) fn new(store: Arc<Store>, codec: Codec, name: String) -> Self {
        let buffer = Box::new([0; OUTPUT_BYTES]);
        Self { store, codec, buffer, cursors: [0; CLASSES], name }
    }

    fn write(&mut self, slot: Slot, page: &[u8]) -> Result<(), DeviceError> {
        if filling(page).is_some_and(|word| self.store.fill(slot, word)) {
            return Ok(());
        }
        let compressed = self.codec.compress(page, &mut self.buffer[..]);
        let bytes = match compressed {
            Some(len) if len <= COMPRESSED_BYTES_MAX => &self.buffer[..len],
            _ => page,
        };
        let put = self.store.put(slot, bytes, &mut self.cursors);
        put.map_err(|errno| self.failed(IoOp::Write, slot, errno))
    }

    fn read(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), DeviceError> {
        let found = self.store.get(slot, page, &mut self.buffer[..]);
        let restored = match found.map_err(|errno| self.failed(IoOp::Read, slot, errno))? {
            Found::Page => Ok(()),
            Found::Compressed(len) => {
                self.codec.decompress(&self.buffer[..len], page).ok().ok_or(())
            }
            Found::Damage => Err(()),
        };
        restored.map_err(|()| DeviceError::Damaged { name: self.name.clone(), slot })
    }

    fn failed(&self, op: IoOp, slot: Slot, errno: Errno) -> DeviceError {
        DeviceError::Io { name: self.name.clone(), op, slot, errno }
    }
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
