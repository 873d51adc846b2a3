//! A thread's queue to an encrypted device.
//!
//! Owns: memory for encrypted pages on their way to the device, and the pages they were made of.
//! Invariants: an encrypted page belongs to one request until its completion; a read is decrypted
//! where it lands, before its submitter sees it. With a few writes in flight at a time nothing is
//! allocated, so that a request can be made in a signal handler.
//! Not here: when a slot is written, and by whom.

use super::Sealer;
use super::table::Seal;
use crate::buffers::Buffers;
use crate::error::DeviceError;
use crate::in_flight::InFlight;
use crate::{
    Completion, IoOp, IoQueue, IoRequest, MAX_REQUEST_PAGES, PageFailure, USUAL_REQUESTS,
    has_failed,
};
use overspill_base::shared::{PageArena, PageBuf};
use std::os::fd::BorrowedFd;

/// Encrypted pages that each thread of each process has beside its limit, unless a device far away
/// is to be kept busy; and pages of a write.
pub(super) const USUAL_PAGES: usize = 32;
/// Most encrypted pages of a thread.
const PAGES_MAX: usize = 1024;
const _: () = assert!(PAGES_MAX >= MAX_REQUEST_PAGES);

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
            buffers: Buffers::of(PageArena::new(PAGES_MAX).map_err(refused)?, USUAL_PAGES),
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

    fn set_window(&mut self, pages: usize) {
        self.buffers.set_usual(pages.max(USUAL_PAGES));
        self.inner.set_window(pages);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.ready.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }
}
