//! A thread's queue to an encrypted device.
//!
//! Owns: memory for encrypted pages on their way to the device, and the pages they were made of.
//! Invariants: an encrypted page belongs to one request until its completion; a read is decrypted
//! where it lands, before its submitter sees it. With a few writes in flight at a time nothing is
//! allocated, so that a request can be made in a signal handler.
//! Not here: when a slot is written, and by whom.

use super::Sealer;
use super::table::Seal;
use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{
    Completion, IoOp, IoQueue, IoRequest, MAX_REQUEST_PAGES, PageFailure, USUAL_REQUESTS,
    has_failed,
};
use overspill_base::shared::{PageArena, PageBuf};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// A request in flight, as it was submitted.
struct Flight {
    tag: u64,
    write: Option<Written>,
}

/// What a write was made of, and what will be known of its slots.
#[derive(Default)]
struct Written {
    pages: Vec<PageBuf>,
    seals: Vec<Seal>,
}

impl Written {
    fn with_room() -> Self {
        let (pages, seals) = (MAX_REQUEST_PAGES, MAX_REQUEST_PAGES);
        Self { pages: Vec::with_capacity(pages), seals: Vec::with_capacity(seals) }
    }
}

pub(super) struct SealedQueue {
    /// Above the memory it uses: dropped first.
    inner: Box<dyn IoQueue>,
    sealer: Sealer,
    name: String,
    flights: InFlight<Flight>,
    /// Completed while `submit` waited for memory.
    ready: Vec<Completion>,
    reaped: Vec<Completion>,
    buffers: Buffers,
    /// Lists for the next writes, so that a few at a time allocate nothing.
    spare: Vec<Written>,
}

impl SealedQueue {
    pub(super) fn new(
        inner: Box<dyn IoQueue>,
        sealer: Sealer,
        name: &str,
        depth: u32,
    ) -> Result<Self, DeviceError> {
        let refused = |errno| DeviceError::Queue { name: name.to_owned(), errno };
        let mut spare = Vec::with_capacity(depth as usize);
        spare.extend(
            std::iter::repeat_with(Written::with_room).take(depth.min(USUAL_REQUESTS) as usize),
        );
        Ok(Self {
            inner,
            sealer,
            name: name.to_owned(),
            flights: InFlight::new(depth),
            ready: Vec::with_capacity(depth as usize),
            reaped: Vec::with_capacity(depth as usize),
            buffers: Buffers::new().map_err(refused)?,
            spare,
        })
    }

    /// Encrypts what is to be written, after waiting for memory; returns what is kept meanwhile.
    fn begin_write(&mut self, request: &mut IoRequest) -> Written {
        let Written { pages: mut encrypted, mut seals } = self.spare.pop().unwrap_or_default();
        while !self.buffers.take(request.pages.len(), &mut encrypted) {
            self.complete_some();
        }
        for (index, (copy, page)) in encrypted.iter_mut().zip(&request.pages).enumerate() {
            copy.copy_from_slice(page);
            seals.push(self.sealer.seal(request.slot.plus(index), copy));
        }
        Written { pages: std::mem::replace(&mut request.pages, encrypted), seals }
    }

    fn complete_some(&mut self) {
        self.inner.flush();
        self.inner.wait();
        self.finish_reaped();
    }

    /// Takes what the inner queue has completed.
    fn finish_reaped(&mut self) {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.inner.reap(&mut reaped);
        for mut completion in reaped.drain(..) {
            self.finish(&mut completion);
            self.ready.push(completion);
        }
        self.reaped = reaped;
    }

    fn finish(&mut self, completion: &mut Completion) {
        let Flight { tag, write } = self.flights.take(completion.request.tag);
        completion.request.tag = tag;
        match write {
            None => self.open(completion),
            Some(written) => self.end_write(completion, written),
        }
    }

    /// Decrypts what was read. A page that cannot be is cleared: its bytes are nobody's.
    fn open(&self, completion: &mut Completion) {
        let Completion { request, failures } = completion;
        for (index, page) in request.pages.iter_mut().enumerate() {
            let slot = request.slot.plus(index);
            if !has_failed(failures, index) && !self.sealer.open(slot, page) {
                page.fill(0);
                let error = DeviceError::Seal { name: self.name.clone(), slot };
                failures.push(PageFailure { index, error });
            }
        }
    }

    /// Gives the submitter's pages back.
    fn end_write(&mut self, completion: &mut Completion, written: Written) {
        let Written { pages, mut seals } = written;
        for (index, seal) in seals.drain(..).enumerate() {
            if !has_failed(&completion.failures, index) {
                self.sealer.keep(seal);
            }
        }
        let mut encrypted = std::mem::replace(&mut completion.request.pages, pages);
        encrypted.drain(..).for_each(|page| self.buffers.give(&page));
        if self.spare.len() < self.spare.capacity() {
            self.spare.push(Written { pages: encrypted, seals });
        }
    }
}

/// Pages that small requests share. Each thread of each process has as many beside its limit.
const USUAL_PAGES: usize = 64;

/// Memory for encrypted pages: for one request at least. A request's pages are adjacent, so that
/// they go to the device as one piece, and as near to the start as possible: what is beyond the
/// first pages is for large requests only, and is not even resident as long as there are none.
struct Buffers {
    arena: PageArena,
    taken: [bool; MAX_REQUEST_PAGES],
}

impl Buffers {
    fn new() -> Result<Self, Errno> {
        Ok(Self { arena: PageArena::new(MAX_REQUEST_PAGES)?, taken: [false; MAX_REQUEST_PAGES] })
    }

    /// Takes adjacent pages into `taken`; false if there are not as many beside each other.
    fn take(&mut self, pages: usize, taken: &mut Vec<PageBuf>) -> bool {
        let Some(run) = self.free_run(pages) else { return false };
        self.taken[run.clone()].fill(true);
        // SAFETY: the arena is dropped after the inner queue, which waits for its requests, and a
        // page is not taken again before its request has completed.
        taken.extend(run.map(|page| unsafe { self.arena.page(page) }));
        true
    }

    fn free_run(&self, pages: usize) -> Option<Range<usize>> {
        let (least, mut free) = (pages.max(1), 0);
        let last = self.taken[..pages.max(USUAL_PAGES)].iter().position(|&taken| {
            free = if taken { 0 } else { free + 1 };
            free == least
        })?;
        let first = last + 1 - least;
        Some(first..first + pages)
    }

    fn give(&mut self, page: &PageBuf) {
        let index = self.arena.index_of(page).expect("it was taken from the arena");
        self.taken[index] = false;
    }
}

impl IoQueue for SealedQueue {
    fn submit(&mut self, mut request: IoRequest) {
        let write = match request.op {
            IoOp::Read => None,
            IoOp::Write => Some(self.begin_write(&mut request)),
        };
        request.tag = self.flights.put(Flight { tag: request.tag, write });
        self.inner.submit(request);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.finish_reaped();
        done.append(&mut self.ready);
    }

    fn wait(&mut self) {
        if self.ready.is_empty() {
            self.inner.wait();
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.ready.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }
}
