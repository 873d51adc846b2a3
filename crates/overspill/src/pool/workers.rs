//! The engine's workers, lent to the threads that miss a page.
//!
//! Owns: the idle workers. A thread that misses takes one from its CPU's shelf, and returns it with
//! nothing in flight. Prefetching leaves reads in flight when it returns, so it has separate
//! workers, and a thread that needs a page that one of them is reading reaps that read.
//! Invariants: a worker on a shelf has nothing in flight. A worker that is reading ahead is on
//! `ahead`, or with a thread that will return it; if a thread waits then, it is emptied first. So
//! no thread sleeps for a read that no other will reap.
//! Rejected: workers in thread-local storage, because their destructors run when the pool, or what
//! they use themselves, is gone; one queue of workers for all, which every miss of every CPU would
//! touch; prefetching in a thread, which costs a wake-up for what takes a system call.

use overspill_base::PageNo;
use overspill_base::clock::Cpus;
use overspill_base::sync::Ordering::SeqCst;
use overspill_base::sync::{AtomicUsize, LockClass, Mutex};
use overspill_engine::{Engine, Worker};

/// Idle workers of one pool. A worker is boxed because it is large and moved.
type Shelf = Mutex<Vec<Box<Worker>>>;

/// The workers of one pool.
#[derive(Debug)]
pub(crate) struct Workers {
    shelves: Box<[Shelf]>,
    cpus: Cpus,
    ahead: Shelf,
    /// Number of threads that wait for a page that another thread may be reading ahead.
    waiting: AtomicUsize,
}

fn shelf() -> Shelf {
    Mutex::new(LockClass::Pool, Vec::new())
}

impl Workers {
    /// Starts without workers: they are made as threads need them.
    pub(crate) fn new(cpus: Cpus) -> Self {
        Self {
            shelves: std::iter::repeat_with(shelf).take(cpus.count).collect(),
            cpus,
            ahead: shelf(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Calls `f` with a worker, which then completes what `f` left in flight.
    pub(crate) fn with<R>(
        &self,
        engine: &Engine,
        f: impl FnOnce(&mut Worker) -> R,
    ) -> std::io::Result<R> {
        let idle = self.shelves[self.cpus.current()].lock().pop();
        let mut worker = idle.map_or_else(|| Worker::new(engine).map(Box::new), Ok)?;
        let result = f(&mut worker);
        worker.finish(engine);
        self.shelves[self.cpus.current()].lock().push(worker);
        Ok(result)
    }

    /// Calls `f` with a worker; `f` may leave reads in flight.
    pub(crate) fn read_ahead<R>(
        &self,
        engine: &Engine,
        f: impl FnOnce(&mut Worker) -> R,
    ) -> std::io::Result<R> {
        let idle = self.ahead.lock().pop();
        let mut worker = idle.map_or_else(|| Worker::new(engine).map(Box::new), Ok)?;
        worker.poll(engine);
        let result = f(&mut worker);
        self.release(engine, worker);
        Ok(result)
    }

    /// Waits until `page`, locked by another thread, is mapped, or may be looked at again.
    pub(crate) fn await_page(&self, engine: &Engine, page: PageNo) {
        self.waiting.fetch_add(1, SeqCst);
        let busy = self.take_busy();
        if let Some(mut worker) = busy {
            while worker.in_flight() > 0 && !engine.is_mapped(page) {
                worker.wait(engine);
            }
            self.waiting.fetch_sub(1, SeqCst);
            self.release(engine, worker);
        } else {
            engine.wait_unlocked(page);
            self.waiting.fetch_sub(1, SeqCst);
        }
    }

    /// Completes all reads ahead; false if there were none.
    pub(crate) fn finish_ahead(&self, engine: &Engine) -> bool {
        let mut any = false;
        while let Some(mut worker) = self.take_busy() {
            worker.finish(engine);
            self.ahead.lock().push(worker);
            any = true;
        }
        any
    }

    fn take_busy(&self) -> Option<Box<Worker>> {
        let mut ahead = self.ahead.lock();
        let at = ahead.iter().position(|worker| worker.in_flight() > 0)?;
        Some(ahead.swap_remove(at))
    }

    /// Returns a worker. A thread that looked for it before that has already counted itself, and is
    /// seen here: both happened under the shelf's lock, in that order.
    fn release(&self, engine: &Engine, worker: Box<Worker>) {
        self.ahead.lock().push(worker);
        if self.waiting.load(SeqCst) > 0 {
            self.finish_ahead(engine);
        }
    }
}
