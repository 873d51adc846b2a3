//! A complete pool: words, engine, devices, and how an absent page is brought in.
//!
//! Owns: the order of construction, the reclaim thread if there is one, and what an outcome of the
//! engine means to the thread that requested the page.
//! Invariants: a miss is served on the thread that misses, which also reclaims if there is no
//! reclaim thread; its I/O has completed when it returns. There is a reclaim thread only with
//! devices whose writes take time. With devices as fast as memory it would do the same work, after
//! a wake-up, on a CPU that the program needs.
//! Only the process that made a pool uses it: a forked child's copy would go on with the same
//! slots.
//! Not here: guards; page numbers.

use super::error::PoolError;
use super::workers::Workers;
use crate::error::Error;
use crate::pager::memory;
use overspill_base::PageNo;
use overspill_base::clock::{Cpus, now_ns};
use overspill_base::secret::Maker;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::Ordering::Relaxed;
use overspill_base::sync::{Arc, AtomicBool, AtomicU64};
use overspill_base::{FrameNo, PAGE_SIZE};
use overspill_engine::{Engine, EngineParts, FaultOutcome, PageTable, Space, Swap, Tuning, Worker};
use overspill_space::{Asked, PoolSpace, Words};
use std::thread::JoinHandle;

/// The parts of a [`Core`].
pub(crate) struct CoreParts {
    /// Number of pages that fit into memory.
    pub(crate) frames: usize,
    /// Number of pages.
    pub(crate) pages: usize,
    pub(crate) page_bytes: usize,
    pub(crate) swaps: Vec<Swap>,
    pub(crate) report: Box<dyn Fn(&str) + Send + Sync>,
}

/// What guards and vectors of a pool share.
#[derive(Debug)]
pub(crate) struct Core {
    engine: Arc<Engine>,
    space: Arc<PoolSpace>,
    workers: Workers,
    page_bytes: usize,
    maker: Maker,
    stopping: Arc<AtomicBool>,
    reclaim: Option<JoinHandle<()>>,
}

impl Core {
    pub(crate) fn start(parts: CoreParts) -> Result<Self, Error> {
        let CoreParts { frames, pages, page_bytes, swaps, report } = parts;
        let cpus = Cpus::native();
        let maker = Maker::new().map_err(memory)?;
        let words = Words::new(Table::<AtomicU64>::private(pages).map_err(memory)?);
        let space = Arc::new(PoolSpace::new(words));
        let in_background = swaps.iter().any(|swap| !swap.device.info().synchronous);
        let arena = PageArena::new(frames * (page_bytes / PAGE_SIZE)).map_err(memory)?;
        let parts = EngineParts {
            frames,
            table: PageTable::new(Table::private(pages).map_err(memory)?),
            space: Space::Pool(space.clone()),
            page_bytes,
            swaps,
            arena,
            stats: Stats::on_heap(),
            report,
            tuning: tuning(frames),
            cpus,
        };
        let engine = Arc::new(Engine::new(parts));
        let stopping = Arc::new(AtomicBool::new(false));
        let reclaim = match in_background {
            true => Some(start_reclaim(&engine, &stopping)?),
            false => None,
        };
        let workers = Workers::new(cpus);
        Ok(Self { engine, space, workers, page_bytes, maker, stopping, reclaim })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn words(&self) -> &Words {
        self.space.words()
    }

    pub(crate) fn frames(&self) -> usize {
        self.engine.frames()
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    #[inline]
    pub(crate) fn check_maker(&self) -> Result<(), PoolError> {
        if self.maker.is_here() { Ok(()) } else { Err(PoolError::Forked) }
    }

    /// Requests `page` until it is granted; brings it in if it is absent.
    #[inline]
    pub(crate) fn acquire(
        &self,
        page: PageNo,
        ask: impl Fn(&Words, bool) -> Asked,
    ) -> Result<FrameNo, PoolError> {
        self.check_maker()?;
        let mut again = true;
        loop {
            match ask(self.words(), again) {
                Asked::Granted(frame) => return Ok(frame),
                Asked::Busy => self.words().wait(page),
                Asked::Absent => {
                    self.bring(page)?;
                    again = false;
                }
            }
        }
    }

    /// As [`acquire`](Self::acquire), but returns none instead of waiting for other users.
    pub(crate) fn acquire_idle(
        &self,
        page: PageNo,
        ask: impl Fn(&Words, bool) -> Asked,
    ) -> Result<Option<FrameNo>, PoolError> {
        self.check_maker()?;
        let mut again = true;
        loop {
            match ask(self.words(), again) {
                Asked::Granted(frame) => return Ok(Some(frame)),
                Asked::Busy => return Ok(None),
                Asked::Absent => {
                    self.bring(page)?;
                    again = false;
                }
            }
        }
    }

    /// Makes the engine bring in `page`. It may be absent again when this returns.
    #[cold]
    fn bring(&self, page: PageNo) -> Result<(), PoolError> {
        let served = self.workers.with(&self.engine, |worker| self.serve(worker, page));
        match served.map_err(queue_refused)? {
            FaultOutcome::Mapped | FaultOutcome::Pending => Ok(()),
            FaultOutcome::Poisoned => Err(PoolError::Lost { page, why: self.last_error() }),
            FaultOutcome::OutOfMemory => Err(self.no_frame()),
            FaultOutcome::Stray => unreachable!("page {page} has a word, so it is in the space"),
        }
    }

    fn serve(&self, worker: &mut Worker, page: PageNo) -> FaultOutcome {
        let engine = &*self.engine;
        let start_ns = now_ns();
        loop {
            match engine.fault(worker, page, start_ns) {
                FaultOutcome::Pending if worker.in_flight() > 0 => worker.wait(engine),
                FaultOutcome::Pending => self.workers.await_page(engine, page),
                FaultOutcome::OutOfMemory if self.workers.finish_ahead(engine) => continue,
                outcome => return outcome,
            }
            if engine.is_mapped(page) {
                return FaultOutcome::Mapped;
            }
        }
    }

    /// Starts reading `pages`, as far as there is memory for them; returns how many were processed.
    pub(crate) fn prefetch(
        &self,
        pages: impl ExactSizeIterator<Item = PageNo>,
    ) -> Result<usize, PoolError> {
        self.check_maker()?;
        let engine = &*self.engine;
        // With a worker that waits for its writes: one that reads ahead may not be polled for long.
        let room = |worker: &mut Worker| engine.make_room(worker, pages.len());
        self.workers.with(engine, room).map_err(queue_refused)?;
        let read = |worker: &mut Worker| engine.prefetch(worker, pages);
        self.workers.read_ahead(engine, read).map_err(queue_refused)
    }

    /// Makes pages zeros again, one by one, so that it never waits for a user of one page while it
    /// blocks users of another. Nothing in a forked child, of whose parent they are.
    pub(crate) fn discard(&self, first: PageNo, pages: usize) {
        let pages = if self.maker.is_here() { pages } else { 0 };
        (0..pages).for_each(|n| self.engine.discard(first.plus(n), 1));
    }

    /// Completes everything in flight; true if nothing can start by itself, so that the engine's
    /// counters can be compared.
    #[cfg(test)]
    pub(crate) fn finish(&self) -> bool {
        self.workers.finish_ahead(&self.engine);
        self.reclaim.is_none()
    }

    fn last_error(&self) -> String {
        self.engine.last_error().unwrap_or_else(|| "its swap device gave no reason".into())
    }

    /// Why there was no free frame: checks what the frames are used for.
    fn no_frame(&self) -> PoolError {
        let frames = self.frames();
        match self.words().count_in_use(self.engine.pages_in_memory()) {
            pinned if pinned >= frames => PoolError::AllPinned { pages: frames },
            _ => PoolError::OutOfSwap { why: self.last_error() },
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn queue_refused(error: std::io::Error) -> PoolError {
    PoolError::Queue { why: error.to_string() }
}

/// Batches that leave most of a small pool alone, and no heuristics: the program tells a pool what
/// to read ahead.
fn tuning(frames: usize) -> Tuning {
    Tuning {
        reclaim_batch_pages: (frames / 8).clamp(1, Tuning::CHUNK_PAGES),
        fault_around_pages: 1,
        // A pool sees every use: a refault is no reason to activate a page, and prefetched pages
        // have time to be requested.
        active_ratio: 1,
        ..Tuning::default()
    }
}

fn start_reclaim(
    engine: &Arc<Engine>,
    stopping: &Arc<AtomicBool>,
) -> Result<JoinHandle<()>, Error> {
    let refused = Error::system("start the pool's reclaim thread");
    let mut worker = match Worker::new(engine) {
        Ok(worker) => worker,
        Err(error) => return Err(refused(error)),
    };
    let (engine, stopping) = (engine.clone(), stopping.clone());
    let reclaim = move || {
        while !stopping.load(Relaxed) {
            engine.balance(&mut worker, || stopping.load(Relaxed));
        }
        worker.finish(&engine);
    };
    std::thread::Builder::new().name("pool-reclaim".into()).spawn(reclaim).map_err(refused)
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.maker.is_here() {
            return;
        }
        self.workers.finish_ahead(&self.engine);
        if let Some(reclaim) = self.reclaim.take() {
            self.stopping.store(true, Relaxed);
            self.engine.wake_background();
            // It ends by itself; a panic in it was reported when it happened.
            let _ = reclaim.join();
        }
    }
}
