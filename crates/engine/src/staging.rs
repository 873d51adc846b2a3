//! Staging memory: where pages are between the program's mapping and the device.
//!
//! Owns: the arena pages are moved into, cut into chunks that one eviction batch fills and that are
//! given back whole, so that emptying them costs one call per chunk. Pages read ahead that wait for
//! their touch share chunks, of which they never take the last half: eviction goes on.
//! Pages that wait there are copied to the program, so it never sees their memory, which is read into again.
//! Invariants: a chunk for evicted pages is handed out empty; it returns when all pages taken from it were
//! released, and is emptied then. What the program has seen is never written to: a pipe (`vmsplice`) or a
//! socket (`MSG_ZEROCOPY`) may still send from memory that was evicted, and nobody can find out.
//! Each staged page belongs to a frame, so staging never adds to the limit, except for pages that
//! were mapped again before their chunk was complete; those are at most the arena.
//! Frames with homes ([`crate::homes`]) need none of that: page f of the arena is frame f's, nothing is
//! ever taken or released, and there are no chunks.
//! Pages are those of the space, 4 KiB or more, and are numbered so; the arena and requests to devices
//! count in 4 KiB. A chunk is 256 KiB, or one page where that is larger.
//! Not here: how pages get in and out ([`AddressSpace`]).
//! Rejected: reading into chunks that evicted pages have filled, which saves the kernel freeing memory
//! and finding some. Other pages' bytes left the process that way (docs/delivery.md says what it was worth).

use crate::frames::LockedPage;
use crate::space::AddressSpace;
use crate::tuning::Tuning;
use overspill_base::PAGE_SIZE;
use overspill_base::shared::{PageArena, PageBuf};
use overspill_base::sync::Ordering::{AcqRel, Relaxed};
use overspill_base::sync::{AtomicBool, AtomicUsize, LockClass, Mutex};
use std::ops::Range;

/// Chunks kept as they are for reads, in bytes, but one at least: what they hold comes on top of the limit.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// The arena and its chunks.
#[derive(Debug)]
pub(crate) struct Staging {
    arena: PageArena,
    /// Bytes of a page, also of a slot.
    pub(crate) page_bytes: usize,
    /// Pages of a chunk.
    pub(crate) chunk: usize,
    /// True if its pages are frames' homes.
    pub(crate) has_homes: bool,
    free: Mutex<Free>,
    /// Pages of each chunk still in use.
    in_use: Vec<AtomicUsize>,
    /// Whether what is in a chunk was read by a device and nothing else. Changes with nobody using it.
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
    pub(crate) fn new(arena: PageArena, page_bytes: usize) -> Self {
        let chunk_bytes = Tuning::chunk_pages(page_bytes) * page_bytes;
        let chunks = arena.pages() * PAGE_SIZE / chunk_bytes;
        Self::with_chunks(arena, page_bytes, chunks)
    }

    /// A home of `page_bytes` for every frame.
    pub(crate) fn homes(arena: PageArena, page_bytes: usize) -> Self {
        Self { has_homes: true, ..Self::with_chunks(arena, page_bytes, 0) }
    }

    fn with_chunks(arena: PageArena, page_bytes: usize, chunks: usize) -> Self {
        Self {
            arena,
            page_bytes,
            chunk: Tuning::chunk_pages(page_bytes),
            has_homes: false,
            free: Mutex::new(
                LockClass::Staging,
                Free {
                    chunks: (0..chunks).rev().collect(),
                    kept: Vec::with_capacity(chunks),
                    singles: 0..0,
                },
            ),
            in_use: (0..chunks).map(|_| AtomicUsize::new(0)).collect(),
            is_reads: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn arena(&self) -> &PageArena {
        &self.arena
    }

    /// Pages there are.
    pub(crate) fn pages(&self) -> usize {
        self.arena.pages() * PAGE_SIZE / self.page_bytes
    }

    /// An empty chunk's pages; release each of them once.
    pub(crate) fn take_chunk(&self, space: &dyn AddressSpace) -> Option<Range<usize>> {
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

    fn empty(&self, chunk: usize, space: &dyn AddressSpace) {
        self.is_reads[chunk].store(false, Relaxed);
        space.recycle(&self.arena, chunk * self.chunk..(chunk + 1) * self.chunk);
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
    pub(crate) fn drain(&self, space: &dyn AddressSpace) {
        let rest = std::mem::take(&mut self.free.lock().singles);
        self.release(rest, space);
    }

    /// Ends the use of `pages` of one chunk; the last ones empty it.
    pub(crate) fn release(&self, pages: Range<usize>, space: &dyn AddressSpace) {
        if pages.is_empty() || self.has_homes {
            return;
        }
        let chunk = pages.start / self.chunk;
        // AcqRel: whoever empties the chunk has seen every other user finish with it.
        if self.in_use[chunk].fetch_sub(pages.len(), AcqRel) == pages.len() {
            self.take_back(chunk, space);
        }
    }

    /// A chunk nobody uses any more is emptied, unless only devices have written to it and such chunks are few.
    fn take_back(&self, chunk: usize, space: &dyn AddressSpace) {
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
        let most = (KEPT_BYTES_MAX / (self.chunk * self.page_bytes)).max(1);
        most.min(self.in_use.len() / 4)
    }

    /// The content of a staged page.
    pub(crate) fn content(&self, page: usize) -> &[u8] {
        self.contents(page, 1)
    }

    /// The content of adjacent staged pages of one chunk.
    pub(crate) fn contents(&self, page: usize, pages: usize) -> &[u8] {
        debug_assert!(page + pages <= self.pages());
        // SAFETY: each page is staged for a frame that the caller has locked or under writeback, and
        // such pages are only read: by writeback, by mapping them again, by looking at them. A
        // writer here would tear what is being written out. The device that reads into one does so
        // while its frame is locked for that read.
        unsafe { std::slice::from_raw_parts(self.address(page), pages * self.page_bytes) }
    }

    /// Where staging page, or home, number `page` is.
    pub(crate) fn address(&self, page: usize) -> *mut u8 {
        self.arena.address(page * (self.page_bytes / PAGE_SIZE))
    }

    /// Fills the home of a page that nobody sees with zeros.
    pub(crate) fn clear_home(&self, locked: &LockedPage) {
        let home = self.address(locked.frame().index());
        // SAFETY: in bounds, as `address` checks; the home is its frame's, the frame is locked, and
        // nobody looks at a home before `AddressSpace::reveal`.
        unsafe { home.write_bytes(0, self.page_bytes) };
    }

    /// A handle to a staged page for the device to read from, or to fill.
    pub(crate) fn buffer(&self, page: usize) -> PageBuf {
        // SAFETY: as in `content`; the frame stays under WRITEBACK, or locked while it is being read,
        // and so keeps the page staged, until the request that owns this handle has completed.
        unsafe { PageBuf::from_raw(self.address(page)) }
    }

    /// Chunks nobody uses.
    pub(crate) fn free_chunks(&self) -> usize {
        let free = self.free.lock();
        free.chunks.len() + free.kept.len()
    }
}
