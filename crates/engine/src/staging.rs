//! Staging memory: where pages are between the program's mapping and the device.
//!
//! Owns: the use of the arena that pages are moved into, cut into chunks that one eviction batch
//! fills and that are given back whole, so that emptying them costs one call per chunk. Pages read
//! ahead that wait for their touch share chunks, of which they never take the last half: eviction
//! goes on. Pages that wait there are copied to the program, so it never sees their memory, which
//! is read into again.
//! Invariants: a chunk for evicted pages is handed out empty; it returns when all pages taken from
//! it were released, and is emptied then. What the program has seen is never written to: a pipe
//! (`vmsplice`) or a socket (`MSG_ZEROCOPY`) may still send from memory that was evicted, and
//! nobody can find out. Each staged page belongs to a frame, so staging never adds to the limit,
//! except for pages that were mapped again before their chunk was complete; those are at most the
//! arena. A chunk is 256 KiB, or one page where that is larger.
//! Not here: how pages get in and out ([`MovingSpace`]), their bytes (`memory`).
//! Rejected: reading into chunks that evicted pages have filled, which saves the kernel freeing
//! memory and finding some. Other pages' bytes left the process that way (docs/delivery.md says
//! what it was worth).

use crate::memory::PageMemory;
use crate::space::MovingSpace;
use crate::tuning::Tuning;
use overspill_base::sync::Ordering::{AcqRel, Relaxed};
use overspill_base::sync::{Arc, AtomicBool, AtomicUsize, LockClass, Mutex};
use std::ops::Range;

/// Chunks kept as they are for reads, in bytes, but one at least: what they hold comes on top of
/// the limit.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// The chunks of an arena.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Arc<PageMemory>,
    /// Pages of a chunk.
    pub(crate) chunk: usize,
    free: Mutex<Free>,
    /// Pages of each chunk still in use.
    in_use: Vec<AtomicUsize>,
    /// Whether what is in a chunk was read by a device and nothing else. Changes with nobody using
    /// it.
    is_reads: Vec<AtomicBool>,
}

#[derive(Debug)]
struct Free {
    chunks: Vec<usize>,
    /// Chunks nobody uses that only devices have written to; at most [`KEPT_BYTES_MAX`].
    kept: Vec<usize>,
    /// The rest of the chunk that readahead takes single pages from.
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

    /// Chunks there are.
    pub(crate) fn chunks(&self) -> usize {
        self.in_use.len()
    }

    /// An empty chunk's pages; release each of them once.
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

    /// One page to read into, unless that would leave eviction less than half of the chunks.
    pub(crate) fn take_single(&self) -> Option<usize> {
        let mut free = self.free.lock();
        if free.singles.is_empty() && free.chunks.len() > self.in_use.len() / 2 {
            free.singles = free.chunks.pop().map(|chunk| self.start(chunk))?;
        }
        free.singles.next()
    }

    /// A chunk to read pages into that will wait there, unless that would leave eviction less than
    /// a quarter of the chunks; release each of its pages once.
    pub(crate) fn take_to_wait(&self) -> Option<Range<usize>> {
        let chunk = {
            let mut free = self.free.lock();
            let room = free.chunks.len() + free.kept.len() > self.in_use.len() / 4;
            if room { free.kept.pop().or_else(|| free.chunks.pop()) } else { None }
        }?;
        self.is_reads[chunk].store(true, Relaxed);
        Some(self.start(chunk))
    }

    /// Gives back what [`take_single`](Self::take_single) has not handed out of its chunk.
    pub(crate) fn drain(&self, space: &dyn MovingSpace) {
        let rest = std::mem::take(&mut self.free.lock().singles);
        self.release(rest, space);
    }

    /// Ends the use of `pages` of one chunk; the last ones empty it.
    pub(crate) fn release(&self, pages: Range<usize>, space: &dyn MovingSpace) {
        if pages.is_empty() {
            return;
        }
        let chunk = pages.start / self.chunk;
        // AcqRel: whoever empties the chunk has seen every other user finish with it.
        if self.in_use[chunk].fetch_sub(pages.len(), AcqRel) == pages.len() {
            self.empty_unused(chunk, space);
        }
    }

    /// A chunk nobody uses any more is emptied, unless only devices have written to it and such
    /// chunks are few.
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
        most.min(self.in_use.len() / 4)
    }

    /// Chunks nobody uses.
    pub(crate) fn free_chunks(&self) -> usize {
        let free = self.free.lock();
        free.chunks.len() + free.kept.len()
    }
}
