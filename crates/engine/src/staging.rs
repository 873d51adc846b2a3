//! Staging memory: holds pages between the program's mapping and the device.
//!
//! Owns: the use of the arena that pages are moved into. It is cut into chunks; an eviction batch
//! fills one, and it is released whole, so that emptying it costs one call. Pages read ahead wait
//! here for their touch: one by one in shared chunks, which leave eviction half of all, or by the
//! window in chunks of their own, which leave it a quarter. They are copied to the program, which
//! never sees their memory, so that can be read into again.
//! Invariants: a chunk for evicted pages is handed out empty, unless they are copied there; when
//! all its pages are released it is emptied and free. Memory the program has seen is never written
//! to: a pipe (`vmsplice`) or a socket (`MSG_ZEROCOPY`) may still send from evicted memory, and
//! that cannot be detected. Each staged page belongs to a frame, so staging adds nothing to the
//! limit, except for pages released before the rest of their chunk, its *slack*: when a quarter of
//! all chunks have some, what is released is emptied at once. A chunk is 256 KiB, or one page if
//! that is larger.
//! Not here: moving pages in and out ([`MovingSpace`]), their bytes (`memory`).
//! Rejected: reading into chunks that evicted pages have filled, which saves the kernel from
//! freeing and allocating memory. Other pages' bytes left the process that way (docs/delivery.md
//! has the gain).

use crate::memory::PageMemory;
use crate::space::MovingSpace;
use crate::tuning::Tuning;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed};
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, LockClass, Mutex};
use std::ops::Range;

/// Bytes of unused chunks kept for reads and copies without being emptied: they come on top of the
/// limit.
const KEPT_BYTES_MAX: usize = 2 << 20;
/// Of so many chunks one is kept, and at least one of four: a small limit does not bear more.
const CHUNKS_PER_KEPT: usize = 16;

/// Part of all chunks that may have slack.
const SLACK_PART: usize = 4;
/// Most pages in a chunk: bits in a word.
const CHUNK_PAGES_MAX: usize = 64;
const _: () = assert!(Tuning::CHUNK_PAGES <= CHUNK_PAGES_MAX);

/// The chunks of an arena.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Arc<PageMemory>,
    /// Pages in a chunk.
    pub(crate) chunk: usize,
    free: Mutex<Free>,
    chunks: Vec<Chunk>,
    /// Number of chunks of which a part was released: those that may have slack.
    partly_held: AtomicUsize,
}

/// The state of a chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// A bit for each page that was put to use. Changes only before any of them is released.
    taken: AtomicU64,
    /// A bit for each page that is in use.
    held: AtomicU64,
    /// A bit for each page that was emptied when it was released.
    emptied: AtomicU64,
    /// Whether the program has never seen its memory. Changes only while the chunk is unused.
    is_unseen: AtomicBool,
}

#[derive(Debug)]
struct Free {
    chunks: Vec<usize>,
    /// Unused chunks that the program has never seen; at most [`KEPT_BYTES_MAX`].
    kept: Vec<usize>,
    /// What is left of the chunk that single pages are taken from.
    singles: Range<usize>,
}

impl Free {
    /// Takes a chunk that need not be empty.
    fn pop_kept(&mut self) -> Option<usize> {
        self.kept.pop().or_else(|| self.chunks.pop())
    }
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
            chunks: std::iter::repeat_with(Chunk::default).take(chunks).collect(),
            partly_held: AtomicUsize::new(0),
        }
    }

    /// Returns the number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Takes a chunk to move pages to, an empty one unless they are copied; release each of its
    /// pages once.
    pub(crate) fn take_chunk(&self, space: &dyn MovingSpace) -> Option<Range<usize>> {
        if space.copies_out() {
            let chunk = self.free.lock().pop_kept()?;
            return Some(self.start_unseen(chunk));
        }
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
        self.chunks[chunk].is_unseen.store(false, Relaxed);
        space.recycle(self.memory.arena(), chunk * self.chunk..(chunk + 1) * self.chunk);
    }

    fn start(&self, chunk: usize) -> Range<usize> {
        let whole = u64::MAX >> (CHUNK_PAGES_MAX - self.chunk);
        self.chunks[chunk].taken.store(whole, Relaxed);
        self.chunks[chunk].held.store(whole, Relaxed);
        self.chunks[chunk].emptied.store(0, Relaxed);
        chunk * self.chunk..(chunk + 1) * self.chunk
    }

    /// Takes one page to read into, unless that would leave eviction less than half of the chunks.
    pub(crate) fn take_single(&self) -> Option<usize> {
        let mut free = self.free.lock();
        if free.singles.is_empty() && free.chunks.len() > self.chunks.len() / 2 {
            free.singles = free.chunks.pop().map(|chunk| self.start(chunk))?;
        }
        free.singles.next()
    }

    /// Takes a chunk for pages read ahead to wait in, unless that would leave eviction less than a
    /// quarter of the chunks; release each of its pages once.
    pub(crate) fn take_to_wait(&self) -> Option<Range<usize>> {
        let chunk = {
            let mut free = self.free.lock();
            let room = free.chunks.len() + free.kept.len() > self.chunks.len() / 4;
            if room { free.pop_kept() } else { None }
        }?;
        Some(self.start_unseen(chunk))
    }

    fn start_unseen(&self, chunk: usize) -> Range<usize> {
        self.chunks[chunk].is_unseen.store(true, Relaxed);
        self.start(chunk)
    }

    /// Releases what [`take_single`](Self::take_single) has not handed out of its chunk.
    pub(crate) fn drain(&self, space: &dyn MovingSpace) {
        let rest = std::mem::take(&mut self.free.lock().singles);
        self.release(rest, space);
    }

    /// Returns the end of a chunk, which was not put to use, before any other page of it is
    /// released.
    pub(crate) fn trim(&self, unused: Range<usize>, space: &dyn MovingSpace) {
        if unused.is_empty() {
            return;
        }
        let (chunk, bits) = self.place_of(&unused);
        let state = &self.chunks[chunk];
        let taken = state.taken.load(Relaxed) & !bits;
        state.taken.store(taken, Relaxed);
        state.held.store(taken, Relaxed);
        if taken == 0 {
            self.empty_unused(chunk, space);
        }
    }

    /// Returns the chunk of some pages of one, and their bits there.
    fn place_of(&self, pages: &Range<usize>) -> (usize, u64) {
        let bits = u64::MAX >> (CHUNK_PAGES_MAX - pages.len()) << (pages.start % self.chunk);
        (pages.start / self.chunk, bits)
    }

    /// Releases `pages` of one chunk; the last ones empty it.
    pub(crate) fn release(&self, pages: Range<usize>, space: &dyn MovingSpace) {
        if pages.is_empty() {
            return;
        }
        let (chunk, bits) = self.place_of(&pages);
        if self.partly_held.load(Relaxed) > self.chunks.len() / SLACK_PART {
            self.empty_slack(chunk, bits, space);
        }
        // AcqRel: every other user's last access happens-before the chunk is emptied.
        let Chunk { taken, held, .. } = &self.chunks[chunk];
        let before = held.fetch_and(!bits, AcqRel);
        let (is_first, is_last) = (before == taken.load(Relaxed), before == bits);
        if is_first && !is_last {
            self.partly_held.fetch_add(1, Relaxed);
        }
        if is_last && !is_first {
            self.partly_held.fetch_sub(1, Relaxed);
        }
        if is_last {
            self.empty_unused(chunk, space);
        }
    }

    /// Empties what was released of a chunk, and the pages `bits`, which are about to be: as long
    /// as they are not, nobody else empties the chunk or is given it.
    fn empty_slack(&self, chunk: usize, bits: u64, space: &dyn MovingSpace) {
        let state = &self.chunks[chunk];
        // Acquire: with `release`, the last accesses of others happen-before.
        let slack = state.taken.load(Relaxed) & !state.held.load(Acquire) | bits;
        let slack = slack & !state.emptied.fetch_or(slack, Relaxed);
        let start = chunk * self.chunk;
        for run in runs(slack) {
            space.recycle(self.memory.arena(), start + run.start..start + run.end);
        }
    }

    /// Empties a chunk that is no longer used, or keeps it if the program has never seen it and few
    /// are kept.
    fn empty_unused(&self, chunk: usize, space: &dyn MovingSpace) {
        if self.chunks[chunk].is_unseen.load(Relaxed) {
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
        let chunks = self.chunks.len();
        most.min(chunks.div_ceil(CHUNKS_PER_KEPT)).min(chunks / 4)
    }

    /// Returns the number of unused chunks.
    pub(crate) fn free_chunks(&self) -> usize {
        let free = self.free.lock();
        free.chunks.len() + free.kept.len()
    }
}

/// Returns the runs of ones in a word.
pub(crate) fn runs(mut word: u64) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        let start = word.trailing_zeros();
        let end = start + (word.checked_shr(start)?).trailing_ones();
        word &= u64::MAX.checked_shl(end).unwrap_or(0);
        Some(start as usize..end as usize)
    })
}
