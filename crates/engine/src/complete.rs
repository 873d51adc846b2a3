//! Completions: the end of a page's read or write.
//!
//! Owns: reaping a worker's queues, and the dispatch of completions.
//! Invariants: a page being read is locked and cached under its entry until its completion takes
//! the lock over; a read that fails poisons its own page and no other; a write that fails keeps its
//! page in memory, and its area is not written to again.
//! Not here: submitting (`swapin`, `writeback`), the queues (`worker`).

use crate::engine::Engine;
use crate::frames::LockedPage;
use crate::space::{BufferPool, Mapped};
use crate::store::{Moving, Store};
use crate::transfer::{CompletedRead, Destination, PageRead, Purpose, untag};
use crate::types::{Pte, flag};
use crate::worker::{Worker, WorkerKind};
use overspill_area::{AreaNo, SwapEntry};
use overspill_base::stats::Event;
use overspill_base::{FrameNo, clock, work};
use overspill_device::{Completion, DeviceError, IoOp, IoRequest, PageFailure};

impl Worker {
    /// Completes the requests that have finished; returns their number. Never blocks on I/O.
    pub fn poll(&mut self, engine: &Engine) -> usize {
        let count = self.complete(engine);
        self.drop_gone(engine);
        count
    }

    /// As [`poll`](Self::poll), but keeps the devices of areas that were swapped off.
    pub(crate) fn complete(&mut self, engine: &Engine) -> usize {
        let mut done = self.reap();
        let count = done.len();
        let _interrupt = (count > 0).then(work::in_interrupt);
        for completion in done.drain(..) {
            match completion.request.op {
                IoOp::Read => engine.complete_read(self, completion),
                IoOp::Write => engine.complete_write(self, completion),
            }
        }
        self.keep_reaped(done);
        count
    }

    /// Completes the request just submitted by an in-place worker, which has one at a time; its
    /// scratch lists are free after that.
    pub(crate) fn complete_in_place(&mut self, engine: &Engine) {
        match self.kind() {
            WorkerKind::Pager => {}
            WorkerKind::InPlace => {
                self.complete(engine);
            }
        }
    }

    /// Blocks until a request in flight has finished, and completes it.
    pub fn wait(&mut self, engine: &Engine) {
        self.wait_for_one();
        self.complete(engine);
    }

    /// Completes all requests in flight, and drops devices that were swapped off.
    pub fn finish(&mut self, engine: &Engine) {
        while self.in_flight() > 0 {
            self.wait(engine);
        }
        self.drop_gone(engine);
    }
}

impl Engine {
    /// Ends a read: maps its pages, or leaves those read ahead in the swap cache, and wakes the
    /// faulting threads.
    fn complete_read(&self, worker: &mut Worker, completion: Completion) {
        let Completion { request, failures } = completion;
        let (area, purpose) = untag(request.tag);
        let count = request.pages.len();
        let pace = &self.swaps.get(area).pace;
        worker.note_pace(pace, area, &request, purpose == Purpose::Readahead);
        let transfer_failed =
            count > 1 && failures.iter().any(|failure| !failure.error.is_of_one_page());
        if transfer_failed {
            return retry_singly(worker, area, request, purpose);
        }
        // Counted before a faulting thread can see its page.
        self.stats.add(Event::pswpin, (count - failures.len()) as u64);
        match &self.store {
            Store::Moving(moving) => {
                self.complete_moving_read(worker, moving, area, &request, &failures);
            }
            Store::Pool(pool) => self.complete_pool_read(&**pool, area, &request, &failures),
        }
        worker.scratch.keep_pages(request.pages);
        if let Purpose::Fault { start_ns } = purpose {
            self.stats.fault_latency(clock::now_ns() - start_ns);
        }
    }

    fn complete_moving_read(
        &self,
        worker: &mut Worker,
        moving: &Moving,
        area: AreaNo,
        request: &IoRequest,
        failures: &[PageFailure],
    ) {
        let mut completed = std::mem::take(&mut worker.scratch.completed);
        // Last first: a stream waits for the first page, and then finds all of them.
        for (n, buffer) in request.pages.iter().enumerate().rev() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            let bounced = worker.bounce.index_of(buffer);
            let locked = self.page_just_read(entry, |frame| match bounced {
                Some(page) => worker.bounce.frame(page) == frame,
                None => self.frames.staged(frame) == self.memory.place_of(buffer),
            });
            match (failures.iter().find(|f| f.index == n), bounced) {
                (Some(failure), _) => self.read_failed(locked, entry, &failure.error),
                (None, None) => self.leave_in_cache(locked, entry),
                (None, Some(page)) => {
                    let destination = Destination::Bounce(page);
                    let accepted = self.accept(locked, entry);
                    completed.extend(accepted.map(|locked| CompletedRead { locked, destination }));
                }
            }
        }
        completed.reverse();
        while !completed.is_empty() {
            self.map_first_run(worker, moving, &mut completed, CompletedRead::precedes);
        }
        worker.scratch.completed = completed;
        request.pages.iter().for_each(|buffer| worker.bounce.give(buffer));
    }

    /// As above, for a pool, whose pages are read in place.
    fn complete_pool_read(
        &self,
        pool: &dyn BufferPool,
        area: AreaNo,
        request: &IoRequest,
        failures: &[PageFailure],
    ) {
        for (n, buffer) in request.pages.iter().enumerate() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            let place = self.memory.place_of(buffer);
            let locked = self.page_just_read(entry, |frame| place == Some(frame.index()));
            if let Some(failure) = failures.iter().find(|failure| failure.index == n) {
                self.read_failed(locked, entry, &failure.error);
            } else if let Some(locked) = self.accept(locked, entry) {
                pool.publish(locked.page(), locked.frame());
                self.finish_read(locked);
            }
        }
    }

    /// Takes back the lock of a page that was read; `is_it` tells its frame from those of other
    /// pages on the slot.
    fn page_just_read(&self, entry: SwapEntry, is_it: impl Fn(FrameNo) -> bool) -> LockedPage {
        let frame = self.cache.lookup_where(entry, is_it).expect("a page being read stays cached");
        self.frames.take_from_io(frame)
    }

    /// Maps the pages at the front of `completed` that are `adjacent` to one another; returns their
    /// number.
    pub(crate) fn map_first_run(
        &self,
        worker: &Worker,
        moving: &Moving,
        completed: &mut Vec<CompletedRead>,
        adjacent: impl Fn(&CompletedRead, &CompletedRead) -> bool,
    ) -> usize {
        let run = completed.chunk_by(adjacent).next().map_or(0, <[_]>::len);
        let mapped = self.map_adjacent(worker, moving, &completed[..run]);
        let mut pages = completed.drain(..run).map(|completed| completed.locked);
        pages.by_ref().take(mapped.pages).for_each(|locked| self.finish_read(locked));
        if let Some(why) = mapped.stopped {
            self.map_refused(pages, why);
        }
        run
    }

    fn map_adjacent(&self, worker: &Worker, moving: &Moving, run: &[CompletedRead]) -> Mapped {
        let first = run[0].locked.page();
        let content = match run[0].destination {
            Destination::Bounce(at) => worker.bounce.content(at, run.len()),
            Destination::Chunk(at) => self.memory.contents(at, run.len()),
        };
        moving.space.map(first, content)
    }

    /// Deals with a page that could not be read. One that was read ahead stays on its slot, and its
    /// next fault reads it again. Any other is poisoned: a touch raises SIGBUS.
    fn read_failed(&self, locked: LockedPage, entry: SwapEntry, error: &DeviceError) {
        let page = locked.page();
        if !self.frames.has(locked.frame(), flag::READAHEAD)
            && let Some(word) = self.table.load_on(page, entry)
            && self.table.replace(page, word, Pte::Poisoned)
        {
            self.count_poisoned(page, entry.area(), error);
        } else {
            self.space.wake(page);
        }
        self.drop_cached(locked);
    }

    /// Ends the writeback of a request's pages.
    fn complete_write(&self, worker: &mut Worker, completion: Completion) {
        let Completion { request, failures } = completion;
        let area = AreaNo(request.tag as u8);
        worker.note_pace(&self.swaps.get(area).pace, area, &request, true);
        if let Some(failure) = failures.first() {
            self.stats.add(Event::write_errors, failures.len() as u64);
            self.areas.get(area).avoid();
            let line = format!("{}; its pages stay in memory", failure.error);
            self.report_error("a write failed", area, line);
        }
        self.stats.add(Event::pswpout, (request.pages.len() - failures.len()) as u64);
        for n in 0..request.pages.len() {
            let entry = SwapEntry::new(area, request.slot.plus(n));
            self.end_writeback(entry, failures.iter().any(|f| f.index == n));
        }
        worker.scratch.keep_pages(request.pages);
    }
}

/// Reads the pages of a failed transfer one by one, to find the one that fails.
fn retry_singly(worker: &mut Worker, area: AreaNo, request: IoRequest, purpose: Purpose) {
    for (n, into) in request.pages.into_iter().enumerate() {
        let entry = SwapEntry::new(area, request.slot.plus(n));
        worker.submit_read(std::iter::once(PageRead { entry, into }), purpose);
    }
    worker.flush();
}
