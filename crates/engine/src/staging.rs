//! Staging memory: holds pages between the program's mapping and the device.
//!
//! Owns: the use of the arena that pages are moved into. It is cut into chunks; an eviction batch
//! fills one, and it is released whole, so that emptying it costs one call. Pages read ahead wait
//! here for their touch: one by one in shared chunks, which leave eviction half of all, or by the
//! window in chunks of their own, which leave it a quarter. They are copied to the program, which
//! never sees their memory, so that can be read into again.
//! Invariants: a chunk for evicted pages is handed out empty; when all its pages are released it is
//! emptied and free. Memory the program has seen is never written to: a pipe (`vmsplice`) or a
//! socket (`MSG_ZEROCOPY`) may still send from evicted memory, and that cannot be detected. Each
//! staged page belongs to a frame, so staging adds nothing to the limit, except for pages mapped
//! again before their chunk is released; those are at most the arena. A chunk is 256 KiB, or one
//! page if that is larger.
//! Not here: moving pages in and out ([`MovingSpace`]), their bytes (`memory`).
//! Rejected: reading into chunks that evicted pages have filled, which saves the kernel from
//! freeing and allocating memory. Other pages' bytes left the process that way (docs/delivery.md
//! has the gain).

use crate::memory::PageMemory;
use crate::space::MovingSpace;
use crate::tuning::Tuning;
use overspill_base::sync::Ordering::{AcqRel, Relaxed};
use overspill_base::sync::{Arc, AtomicBool, AtomicUsize, LockClass, Mutex};
use std::ops::Range;

/// Bytes of unused chunks kept for reads without being emptied: they come on top of the limit.
const KEPT_BYTES_MAX: usize = 2 << 20;
/// Of so many chunks one is kept, and at least one of four: a small limit does not bear more.
const CHUNKS_PER_KEPT: usize = 16;

/// The chunks of an arena.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Arc<PageMemory>,
    /// Pages in a chunk.
    pub(crate) chunk: usize,
    free: Mutex<Free>,
    /// Per chunk: pages in use.
    in_use: Vec<AtomicUsize>,
    /// Per chunk: whether only devices have written to it. Changes only while the chunk is unused.
    is_reads: Vec<AtomicBool>,
}

#[derive(Debug)]
struct Free {
    chunks: Vec<usize>,
    /// Unused chunks that only devices have written to; at most [`KEPT_BYTES_MAX`].
    kept: Vec<usize>,
    /// What is left of the chunk that single pages are taken from.
    singles: Range<usize>,
}

impl Staging {
    pub(crate) fn new(memory: Arc<PageMemory>) -> Self {
        let chunk = Tuning::chunk_pages(memory.page_bytes);
        let chunks = memory.places() / chunk;
        let free = Free {
            chunks: (0..chunks).rev().collect(),
            kept: Vec::with_capacity(chunks),
            singles: 0..0,
        };
        Self {
            memory,
            chunk,
            free: Mutex::new(LockClass::Staging, free),
            in_use: (0..chunks).map(|_| AtomicUsize::new(0)).collect(),
            is_reads: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Returns the number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.in_use.len()
    }

    /// Takes an empty chunk; release each of its pages once.
    pub(crate) fn take_chunk(&self, space: &dyn MovingSpace) -> Option<Range<usize>> {
        let (chunk, kept) = {
            let mut free = self.free.lock();
            let empty = free.chunks.pop();
            (empty.or_else(|| free.kept.pop())?, empty.is_none())
        };
        if kept {
            self.empty(chunk, space);
        }
        Some(self.start(chunk))
    }

    fn empty(&self, chunk: usize, space: &dyn MovingSpace) {
        self.is_reads[chunk].store(false, Relaxed);
        space.recycle(self.memory.arena(), chunk * self.chunk..(chunk + 1) * self.chunk);
    }

    fn start(&self, chunk: usize) -> Range<usize> {
        self.in_use[chunk].store(self.chunk, Relaxed);
        chunk * self.chunk..(chunk + 1) * self.chunk
    }

    /// Takes one page to read into, unless that would leave eviction less than half of the chunks.
    pub(crate) fn take_single(&self) -> Option<usize> {
        let mut free = self.free.lock();
        if free.singles.is_empty() && free.chunks.len() > self.in_use.len() / 2 {
            free.singles = free.chunks.pop().map(|chunk| self.start(chunk))?;
        }
        free.singles.next()
    }

    /// Takes a chunk for pages read ahead to wait in, unless that would leave eviction less than a
    /// quarter of the chunks; release each of its pages once.
    pub(crate) fn take_to_wait(&self) -> Option<Range<usize>> {
        let chunk = {
            let mut free = self.free.lock();
            let room = free.chunks.len() + free.kept.len() > self.in_use.len() / 4;
            if room { free.kept.pop().or_else(|| free.chunks.pop()) } else { None }
        }?;
        self.is_reads[chunk].store(true, Relaxed);
        Some(self.start(chunk))
    }

    /// Releases what [`take_single`](Self::take_single) has not handed out of its chunk.
    pub(crate) fn drain(&self, space: &dyn MovingSpace) {
        let rest = std::mem::take(&mut self.free.lock().singles);
        self.release(rest, space);
    }

    /// Releases `pages` of one chunk; the last ones empty it.
    pub(crate) fn release(&self, pages: Range<usize>, space: &dyn MovingSpace) {
        if pages.is_empty() {
            return;
        }
        let chunk = pages.start / self.chunk;
        // AcqRel: every other user's last access happens-before the chunk is emptied.
        if self.in_use[chunk].fetch_sub(pages.len(), AcqRel) == pages.len() {
            self.empty_unused(chunk, space);
        }
    }

    /// Empties a chunk that is no longer used, or keeps it if only devices have written to it and
    /// few are kept.
    fn empty_unused(&self, chunk: usize, space: &dyn MovingSpace) {
        if self.is_reads[chunk].load(Relaxed) {
            let mut free = self.free.lock();
            if free.kept.len() < self.kept_max() {
                return free.kept.push(chunk);
            }
        }
        self.empty(chunk, space);
        self.free.lock().chunks.push(chunk);
    }

    fn kept_max(&self) -> usize {
        let most = (KEPT_BYTES_MAX / (self.chunk * self.memory.page_bytes)).max(1);
        let chunks = self.in_use.len();
        most.min(chunks.div_ceil(CHUNKS_PER_KEPT)).min(chunks / 4)
    }

    /// Returns the number of unused chunks.
    pub(crate) fn free_chunks(&self) -> usize {
        let free = self.free.lock();
        free.chunks.len() + free.kept.len()
    }
}
