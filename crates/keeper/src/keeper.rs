//! A keeper: the engine, the guests and the threads.
//!
//! Owns: the order of construction, and the end.
//! Not here: what the threads do (`serve`, `care`).

use crate::parts::GuestParts;
use crate::priority;
use crate::serve::shared::{KeeperParts, Shared};
use overspill_base::Bytes;
use overspill_base::clock;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::{Relaxed, Release};
use overspill_engine::{Engine, Worker};
use overspill_guest::Vpn;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running keeper. Dropping it ends its threads; guests that wait for pages then wait for ever,
/// so they must have ended before.
pub struct Keeper {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Keeper {
    /// How many threads have queues to swap areas, the caller's among them, at most.
    pub(crate) fn workers() -> usize {
        // Readers; care, reclaim, ahead; who brings guests back.
        clock::cpu_count() + 4
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// No memory for the tables, no thread, no descriptor.
    pub fn start(parts: KeeperParts) -> std::io::Result<Self> {
        let (cpus, shared) = (clock::cpu_count(), Arc::new(Shared::new(parts)?));
        let mut keeper = Self { shared, threads: Vec::new() };
        for cpu in 0..cpus {
            keeper.spawn("ovs-read", move |shared, worker| {
                let mut only = CpuSet::new();
                only.set(cpu);
                // A CPU that this process may not use: the reader runs elsewhere.
                let _ = sched_setaffinity(None, &only);
                shared.read(worker, cpu);
            })?;
        }
        keeper.spawn_without("ovs-survey", Shared::survey_all)?;
        keeper.spawn_without("ovs-brake", |shared| {
            priority::run_first();
            shared.brake();
        })?;
        keeper.spawn_without("ovs-letters", Shared::read_letters)?;
        keeper.spawn("ovs-care", Shared::care)?;
        keeper.spawn("ovs-reclaim", |shared, worker| {
            while !shared.must_stop() {
                shared.engine.balance(worker, || shared.must_stop());
            }
        })?;
        keeper.spawn("ovs-ahead", |shared, worker| {
            while !shared.must_stop() {
                shared.engine.read_ahead(worker, || shared.must_stop());
            }
        })?;
        Ok(keeper)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce(&Shared, &mut Worker) + Send + 'static,
    ) -> std::io::Result<()> {
        let mut worker = Worker::new(&self.shared.engine)?;
        self.spawn_without(name, move |shared| body(shared, &mut worker))
    }

    /// As [`spawn`](Self::spawn), for a thread that has nothing to do with swap.
    fn spawn_without(
        &mut self,
        name: &str,
        body: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name(name.into());
        self.threads.push(builder.spawn(move || body(&shared))?);
        Ok(())
    }

    /// Begins to page a guest, with a number of the caller's choice, or moves pages out of a forked
    /// child from now on, which has a number. Its memory is registered and adopted by and by.
    ///
    /// # Errors
    /// Of epoll.
    pub fn add(&self, number: u64, mut parts: GuestParts) -> Result<(), Errno> {
        let letters = parts.letters.take();
        self.shared.add(number, parts.attached(), letters.as_ref())
    }

    /// Changes the limit, at most to what was given as the most. Does not wait until it is kept to.
    pub fn set_memory(&self, memory: Bytes) {
        self.shared.set_limit(memory);
    }

    /// The limit.
    pub(crate) fn limit_pages(&self) -> usize {
        self.shared.limit_pages()
    }

    /// Has the threads close the devices of areas that have left: one each time at least.
    pub(crate) fn release_gone(&self) {
        let shared = &self.shared;
        shared.engine.wake_background();
        shared.call_care();
        shared.readers.call_all();
        shared.wakeup.wake();
    }

    /// Serves a guest until nobody has its memory, whose process and agent have ended: the child of
    /// a vfork may.
    pub(crate) fn wait_for_end_of_memory(&self, number: u64) {
        let guest = self.shared.guest(number);
        while guest.as_ref().is_some_and(|guest| guest.source.has_address_space()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Notes that a guest has ended, or executes another program.
    pub fn ended(&self, number: u64) {
        let guest = self.shared.guest(number);
        if let Some(guest) = guest {
            guest.ended();
            self.shared.call_care();
        }
    }

    /// Brings some pages of a guest back, which goes on meanwhile, from an address on; returns
    /// where there may be more, the same address if none can come now. What is in memory then is
    /// not paged any more, until the guest [stays](Self::stay).
    ///
    /// # Errors
    /// Why they do not come, in words.
    pub fn bring(&self, number: u64, from: Vpn) -> Result<Option<Vpn>, String> {
        let worker = Worker::new(&self.shared.engine).map_err(|error| error.to_string());
        self.shared.bring_some(&mut worker?, number, from).map_err(|why| why.to_string())
    }

    /// What tells of a child that a guest has asked for, or `None` if it cannot be had: its
    /// userfaultfd, or where the guest has none a pidfd.
    pub fn fetched(&self, number: u64, fork: u64, fetched: Option<OwnedFd>) {
        self.shared.fetched(number, fork, fetched);
    }

    /// Has a guest paged again of which pages were brought back.
    pub fn stay(&self, number: u64) {
        let guest = self.shared.guest(number);
        guest.iter().for_each(|guest| self.shared.stay(guest));
    }

    /// Brings all pages of a guest back, whose threads stand still, and forgets it: when its agent
    /// has left, it is a process like others. Waits for that. False if that cannot be now: it is
    /// paged as before.
    ///
    /// # Errors
    /// Why it stays, in words: it is paged as before.
    pub fn let_go(&self, number: u64) -> Result<bool, String> {
        let worker = Worker::new(&self.shared.engine).map_err(|error| error.to_string());
        self.shared.let_go(&mut worker?, number).map_err(|why| why.to_string())
    }

    /// True if there are no guests, and all pages of those that were are dropped.
    pub fn is_deserted(&self) -> bool {
        self.shared.guests.lock().is_empty()
    }

    /// Ends the forked children that are not attached to, each when it misses a page.
    pub fn end_children(&self) {
        let guests = self.shared.guests.lock();
        guests.values().filter(|guest| guest.handles().is_none()).for_each(|guest| guest.kill());
    }

    /// True if a guest was killed for lack of memory.
    pub fn has_run_out(&self) -> bool {
        self.shared.out_of_memory.load(Relaxed)
    }

    /// Returns the engine, for its counters.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Release: with `must_stop`.
        self.shared.stopping.store(true, Release);
        self.shared.engine.wake_background();
        self.shared.survey.call();
        self.shared.growth.call();
        self.shared.bell.ring();
        self.shared.call_care();
        for thread in self.threads.drain(..) {
            // One reader may take the wake-up from another.
            while !thread.is_finished() {
                self.shared.readers.call_all();
                self.shared.wakeup.wake();
                std::thread::sleep(Duration::from_millis(1));
            }
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
