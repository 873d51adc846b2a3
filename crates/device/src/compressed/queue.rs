//! One thread's way to the store: every request is done when `submit` returns.
//!
//! Owns: the codec, its buffer, and where this thread looks for room.
//! Invariants: each page of a request succeeds or fails by itself.

use super::codec::{Codec, OUTPUT_BYTES};
use super::spans::{CLASSES, Cursors};
use super::store::{Found, Store};
use super::word::filling;
use crate::error::DeviceError;
use crate::{Completion, IoOp, IoQueue, IoRequest, PageFailure};
use overspill_base::{PAGE_SIZE, Slot};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A page that compresses to more is kept as it is: it would take a whole page's place anyway.
const COMPRESSED_BYTES_MAX: usize = PAGE_SIZE * 4 / 5;

pub(super) struct CompressingQueue {
    store: Arc<Store>,
    codec: Codec,
    buffer: Box<[u8; OUTPUT_BYTES]>,
    cursors: Cursors,
    name: String,
    finished: Vec<Completion>,
}

impl CompressingQueue {
    pub(super) fn new(store: Arc<Store>, codec: Codec, name: String) -> Self {
        let buffer = Box::new([0; OUTPUT_BYTES]);
        Self { store, codec, buffer, cursors: [0; CLASSES], name, finished: Vec::new() }
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

impl IoQueue for CompressingQueue {
    fn submit(&mut self, mut request: IoRequest) {
        let mut failures = Vec::new();
        for (index, page) in request.pages.iter_mut().enumerate() {
            let slot = request.slot.plus(index);
            let done = match request.op {
                IoOp::Read => self.read(slot, page),
                IoOp::Write => self.write(slot, page),
            };
            failures.extend(done.err().map(|error| PageFailure { index, error }));
        }
        self.finished.push(Completion { request, failures });
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.finished);
    }

    fn wait(&mut self) {}

    fn in_flight(&self) -> usize {
        self.finished.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
