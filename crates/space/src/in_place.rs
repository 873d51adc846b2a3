//! Faults served on the thread that has them: in a handler for a signal, or before a pin.
//!
//! Owns: the workers for them.
//! Invariants: a worker serves one fault at a time. There are [`WORKERS`], fewer if pages are
//! large, all made at the start because a signal handler cannot make one; if all are taken, the
//! thread sleeps until one is free.
//! Not here: how a signal arrives (`traps`), what a fault needs ([`Engine::fault_in_place`]).
//! Rejected: a worker per thread. Threads start and end without notice, and a handler can neither
//! allocate a worker nor touch thread-local memory that might have to be allocated first.

use crate::space::{ManagedSpace, SpaceSetupError};
use crate::traps::{Place, SPACES_MAX, ServeFault};
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use overspill_engine::{Engine, FaultOutcome, Worker};
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Number of threads whose faults can be served at the same time.
const WORKERS: usize = u64::BITS as usize;
/// Total size of their read buffers; large pages have fewer workers.
const WORKERS_BYTES: usize = 16 << 20;

/// Why faults cannot be served by signal.
#[derive(Debug, thiserror::Error)]
pub enum SignalSetupError {
    /// Setting up the address space or userfaultfd failed.
    #[error(transparent)]
    Space(#[from] SpaceSetupError),
    /// A worker could not be made.
    #[error("cannot prepare to serve faults on the threads that have them: {0}")]
    Worker(#[from] std::io::Error),
    /// The handler's table of spaces is full.
    #[error("faults by signal are served for at most {SPACES_MAX} pagers of a process: drop one")]
    TooManySpaces,
}

/// Serves faults of a space on the calling thread.
#[derive(Debug)]
pub struct InPlace {
    engine: Arc<Engine>,
    space: Arc<ManagedSpace>,
    workers: Workers,
}

impl InPlace {
    /// Makes the workers.
    ///
    /// # Errors
    /// Those of making a worker.
    pub fn new(engine: Arc<Engine>, space: Arc<ManagedSpace>) -> std::io::Result<Arc<Self>> {
        let workers = Workers::new(&engine, space.page_bytes())?;
        Ok(Arc::new(Self { engine, space, workers }))
    }

    /// Brings in a page; false if that is not possible, which is said if memory has run out. May be
    /// called in a signal handler.
    pub(crate) fn serve(&self, page: PageNo) -> bool {
        self.engine.stats().stall_begins();
        let mut worker = self.workers.take();
        let outcome = self.engine.fault_in_place(&mut worker, page);
        self.engine.stats().stall_ends();
        if outcome == FaultOutcome::OutOfMemory {
            self.space.say_out_of_memory(&self.engine);
        }
        outcome == FaultOutcome::Mapped
    }

    /// Releases the devices of areas that were swapped off. Waits for faults being served.
    pub fn drop_gone(&self) {
        for n in 0..self.workers.workers.len() {
            self.workers.take_one(n).finish(&self.engine);
        }
    }
}

impl ServeFault for InPlace {
    fn serve(&self, address: usize) -> bool {
        self.serve(self.space.page_at(address))
    }
}

/// Serves the faults that are signals while it lives.
#[derive(Debug)]
pub struct SignalFaults {
    place: &'static Place,
}

impl SignalFaults {
    /// Installs the handler if necessary, and has `in_place` serve what it is told. Call once per
    /// space.
    ///
    /// # Errors
    /// [`SignalSetupError`], worded for the user.
    pub fn start(in_place: &Arc<InPlace>) -> Result<Self, SignalSetupError> {
        let (addresses, trap) = in_place.space.open_signals()?;
        let place = Place::take(trap, &addresses, in_place.clone());
        Ok(Self { place: place.ok_or(SignalSetupError::TooManySpaces)? })
    }
}

impl Drop for SignalFaults {
    fn drop(&mut self) {
        self.place.leave();
    }
}

/// The workers, and which of them are idle.
struct Workers {
    workers: Box<[UnsafeCell<Worker>]>,
    /// A bit for each idle one. Acquire sees what the worker's last user wrote before its Release.
    idle: AtomicU64,
    /// Changes when a worker becomes idle while a thread waits for one.
    returned: AtomicU32,
    waiting: AtomicU32,
}

// SAFETY: only the thread that took a worker's bit out of `idle` accesses it.
unsafe impl Sync for Workers {}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workers({} idle)", self.idle.load(Relaxed).count_ones())
    }
}

impl Workers {
    fn new(engine: &Engine, page_bytes: usize) -> std::io::Result<Self> {
        let count = (WORKERS_BYTES / page_bytes).clamp(1, WORKERS);
        let make = |_| Worker::for_faulter(engine).map(UnsafeCell::new);
        Ok(Self {
            workers: (0..count).map(make).collect::<Result<_, _>>()?,
            idle: AtomicU64::new(u64::MAX >> (WORKERS - count)),
            returned: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        })
    }

    /// Takes an idle worker; sleeps while there is none.
    fn take(&self) -> Taken<'_> {
        self.take_when(|idle| (idle != 0).then(|| idle.trailing_zeros() as usize))
    }

    /// Takes worker `n`; sleeps until it is idle.
    fn take_one(&self, n: usize) -> Taken<'_> {
        self.take_when(|idle| (idle & (1 << n) != 0).then_some(n))
    }

    /// Takes the worker that `choose` finds among the idle ones; sleeps until it finds one.
    fn take_when(&self, choose: impl Fn(u64) -> Option<usize>) -> Taken<'_> {
        loop {
            let seen = self.returned.load(Acquire);
            if let Some(number) = self.try_take(&choose) {
                return Taken { workers: self, number };
            }
            // Pairs with `give`: it sets the bit, then looks for waiters; we count ourselves, then
            // look for the bit. In SeqCst's total order, one of the two sees the other.
            self.waiting.fetch_add(1, SeqCst);
            if choose(self.idle.load(SeqCst)).is_none() {
                let _ = futex::wait(&self.returned, futex::Flags::PRIVATE, seen, None);
            }
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    fn try_take(&self, choose: &impl Fn(u64) -> Option<usize>) -> Option<usize> {
        let mut idle = self.idle.load(Relaxed);
        loop {
            let number = choose(idle)?;
            let rest = idle & !(1 << number);
            match self.idle.compare_exchange_weak(idle, rest, AcqRel, Relaxed) {
                Ok(_) => return Some(number),
                Err(changed) => idle = changed,
            }
        }
    }

    fn give(&self, number: usize) {
        self.idle.fetch_or(1 << number, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            self.returned.fetch_add(1, AcqRel);
            let _ = futex::wake(&self.returned, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

/// A worker in use; idle again when dropped.
struct Taken<'a> {
    workers: &'a Workers,
    number: usize,
}

impl std::ops::Deref for Taken<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        // SAFETY: we took its bit, so no other thread accesses it.
        unsafe { &*self.workers.workers[self.number].get() }
    }
}

impl std::ops::DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        // SAFETY: as in `deref`; &mut self is exclusive.
        unsafe { &mut *self.workers.workers[self.number].get() }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.workers.give(self.number);
    }
}
