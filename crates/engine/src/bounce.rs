//! Bounce buffers: memory that reads land in, owned by one worker and reused.
//!
//! Not here: staging memory, which all workers share (`staging`).

use crate::tuning::Tuning;
use overspill_base::shared::{PageArena, PageBuf};
use overspill_base::{FrameNo, PAGE_SIZE};

/// The bounce memory of one worker.
///
/// A chunk is handed out run by run, and again from its start when all of it has been returned:
/// with one read at a time it is always the same memory.
#[derive(Debug)]
pub(crate) struct Bounce {
    arena: PageArena,
    page_bytes: usize,
    /// Pages in a chunk.
    chunk: usize,
    /// The chunk that runs are taken from, and how many of its pages were taken.
    open: usize,
    filled: usize,
    free: Vec<usize>,
    in_use: Vec<usize>,
    /// By page: whose content is read into it.
    frames: Vec<FrameNo>,
}

impl Bounce {
    /// Reserves `chunks` chunks for pages of `page_bytes`.
    pub(crate) fn new(chunks: usize, page_bytes: usize) -> std::io::Result<Self> {
        let chunk = Tuning::chunk_pages(page_bytes);
        let arena = PageArena::new(chunks * chunk * (page_bytes / PAGE_SIZE))?;
        let (free, in_use) = ((1..chunks).collect(), vec![0; chunks]);
        let frames = vec![FrameNo(0); chunks * chunk];
        Ok(Self { arena, page_bytes, chunk, open: 0, filled: 0, free, in_use, frames })
    }

    /// Takes a run of `pages` pages, at most a chunk; returns its first page.
    pub(crate) fn take(&mut self, pages: usize) -> Option<usize> {
        debug_assert!(pages <= self.chunk);
        if self.filled + pages > self.chunk {
            self.open = self.free.pop()?;
            self.filled = 0;
        }
        let first = self.open * self.chunk + self.filled;
        self.filled += pages;
        self.in_use[self.open] += pages;
        Some(first)
    }

    /// Returns one page of a run; ignores a buffer that lies elsewhere.
    pub(crate) fn give(&mut self, buffer: &PageBuf) {
        let Some(page) = self.index_of(buffer) else { return };
        let chunk = page / self.chunk;
        self.in_use[chunk] -= 1;
        if self.in_use[chunk] > 0 {
            return;
        }
        if chunk == self.open {
            self.filled = 0;
        } else {
            self.free.push(chunk);
        }
    }

    /// Returns the frame whose page is read into `page`.
    pub(crate) fn frame(&self, page: usize) -> FrameNo {
        self.frames[page]
    }

    /// Returns a handle for the device to write the page of `frame` into.
    pub(crate) fn buffer_for(&mut self, page: usize, frame: FrameNo) -> PageBuf {
        self.frames[page] = frame;
        self.buffer(page)
    }

    fn buffer(&self, page: usize) -> PageBuf {
        // SAFETY: the page is in a run taken by the read that owns this handle, and this worker
        // hands out a run once.
        unsafe { self.arena.page(page * (self.page_bytes / PAGE_SIZE)) }
    }

    /// Returns the content of `pages` adjacent pages that have been read.
    pub(crate) fn content(&self, page: usize, pages: usize) -> &[u8] {
        let (start, len) = (page * self.page_bytes, pages * self.page_bytes);
        assert!(start + len <= self.arena.pages() * PAGE_SIZE);
        let start = self.arena.address(start / PAGE_SIZE);
        // SAFETY: in bounds; the read into them has completed, and the run has no other user.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns the page at `buffer`, `None` if it lies elsewhere.
    pub(crate) fn index_of(&self, buffer: &PageBuf) -> Option<usize> {
        Some(self.arena.index_of(buffer)? / (self.page_bytes / PAGE_SIZE))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bounce_memory_has_room_for_as_many_reads_as_it_has_pages() {
        let mut bounce = Bounce::new(2, PAGE_SIZE).unwrap();
        let chunk = Tuning::chunk_pages(PAGE_SIZE);
        let mut pages: Vec<_> = std::iter::from_fn(|| bounce.take(1)).collect();
        assert_eq!(pages.len(), 2 * chunk);
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 2 * chunk, "no page is handed out twice");
        for chunk_pages in pages.chunks(chunk) {
            assert_eq!(bounce.take(1), None);
            chunk_pages.iter().for_each(|&page| bounce.give(&bounce.buffer(page)));
            assert_eq!(bounce.take(chunk), Some(chunk_pages[0]));
        }
    }
}
