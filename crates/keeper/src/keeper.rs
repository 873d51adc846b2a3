//! A keeper: the engine, the guests and the threads.
//!
//! Owns: the order of construction, and the end.
//! Not here: what the threads do (`serve`, `care`).

use crate::alone;
use crate::arrivals::Arrivals;
use crate::call::Call;
use crate::eye::EyeParts;
use crate::front::Front;
use crate::guest::Guest;
use crate::known::GuestParts;
use crate::letters::Bell;
use crate::limit::Limit;
use crate::readers::Readers;
use crate::shortage::Shortage;
use crate::space::GuestSpace;
use crate::wakeup::Wakeup;
use overspill_base::clock::{self, Cpus};
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::{Event, Stats};
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_engine::{Engine, EngineParts, FrameBudget, PageTable, Space, Swap, Tuning, Worker};
use overspill_guest::Vpn;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

/// Words of the page table: 4 TiB of pages that were touched. Only what is used takes memory.
const TABLE_PAGES: usize = 1 << 30;

/// What a keeper is made of.
pub struct KeeperParts {
    /// Memory that the pages of all guests may take, and the most that they ever may.
    pub memory: Bytes,
    /// See `memory`.
    pub memory_max: Bytes,
    /// Swap areas, in the order of their numbers.
    pub swaps: Vec<Swap>,
    /// Where events are counted.
    pub stats: Stats,
    /// Where it is recorded which pages come, if it is.
    pub(crate) arrivals: Option<Arrivals>,
    /// The engine's switches and sizes.
    pub tuning: Tuning,
    /// What takes rights over guests.
    pub front: Arc<dyn Front>,
    /// Takes one line about an error.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
}

/// What its threads share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) space: Arc<GuestSpace>,
    limit: Arc<Limit>,
    pub(crate) guests: Mutex<BTreeMap<u64, Arc<Guest>>>,
    /// Children that were forked so far.
    pub(crate) forks: AtomicU64,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) readers: Readers,
    pub(crate) front: Arc<dyn Front>,
    /// Whether a guest was killed for lack of memory.
    pub(crate) out_of_memory: AtomicBool,
    pub(crate) shortage: Shortage,
    stopping: AtomicBool,
    /// Of the threads that look after guests.
    pub(crate) care: Call,
    pub(crate) survey: Call,
    pub(crate) growth: Call,
    pub(crate) bell: Bell,
}

/// A running keeper. Dropping it ends its threads; guests that wait for pages then wait for ever,
/// so they must have ended before.
pub struct Keeper {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the threads.
    ///
    /// # Errors
    /// No memory for the tables, no thread, no descriptor.
    pub fn start(parts: KeeperParts) -> std::io::Result<Self> {
        let pages = |bytes: Bytes| bytes.pages_floor() as usize;
        let (frames, limit) = (pages(parts.memory_max), Arc::new(Limit::new(pages(parts.memory))));
        let space = Arc::new(GuestSpace::new(TABLE_PAGES, parts.arrivals));
        let engine = Arc::new(Engine::new(EngineParts {
            frames,
            budget: Some(limit.clone()),
            table: PageTable::new(Table::private(TABLE_PAGES)?),
            space: Space::Moving(space.clone()),
            page_bytes: PAGE_SIZE,
            swaps: parts.swaps,
            arena: PageArena::new(Engine::staging_pages(frames))?,
            stats: parts.stats,
            salvage: Box::new(|_| false),
            report: parts.report,
            tuning: parts.tuning,
            cpus: Cpus::native(),
        }));
        let (cpus, wakeup) = (clock::cpu_count(), Wakeup::new()?);
        let shared = Arc::new(Shared {
            engine,
            space,
            limit,
            guests: Mutex::new(LockClass::Control, BTreeMap::new()),
            forks: AtomicU64::new(0),
            out_of_memory: AtomicBool::new(false),
            shortage: Shortage::default(),
            readers: Readers::new(cpus, &wakeup)?,
            wakeup: Arc::new(wakeup),
            front: parts.front,
            stopping: AtomicBool::new(false),
            care: Call::new(),
            survey: Call::new(),
            growth: Call::new(),
            bell: Bell::new(),
        });
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
            alone::run_first();
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
        let shared = &self.shared;
        let letters = parts.letters.take();
        if let Some(child) = shared.guest(number) {
            let (eye, known, agent) = parts.apart();
            if let EyeParts::Userfault(userfault) = eye {
                child.eye.set_anchor(userfault.anchor());
            }
            child.attached(known, agent);
            letters.map_or(Ok(()), |letters| shared.take_letters(&child, &letters))?;
        } else {
            let (wakeup, front) = (shared.wakeup.clone(), shared.front.clone());
            let guest = Arc::new(Guest::new(number, parts, wakeup, front)?);
            letters.map_or(Ok(()), |letters| shared.take_letters(&guest, &letters))?;
            shared.engine.stats().count(Event::processes);
            shared.readers.listen(&guest)?;
            shared.guests.lock().insert(number, guest);
        }
        shared.survey.call();
        shared.growth.call();
        shared.call_care();
        Ok(())
    }

    /// Changes the limit, at most to what was given as the most. Does not wait until it is kept to.
    pub fn set_memory(&self, memory: Bytes) {
        let shared = &self.shared;
        shared.limit.set(shared.engine.frames().min(memory.pages_floor() as usize));
        shared.engine.wake_background();
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
        while guest.as_ref().is_some_and(|guest| guest.eye.has_address_space()) {
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
    /// where there may be more. What is in memory then is not paged any more, until the guest
    /// [stays](Self::stay).
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
    /// has left, it is a process like others. Waits for that.
    ///
    /// # Errors
    /// Why it stays, in words: it is paged as before.
    pub fn let_go(&self, number: u64) -> Result<(), String> {
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
        guests.values().filter(|guest| guest.known().is_none()).for_each(|guest| guest.kill());
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

impl Shared {
    /// A guest, while there is one of this number.
    pub(crate) fn guest(&self, number: u64) -> Option<Arc<Guest>> {
        self.guests.lock().get(&number).cloned()
    }

    /// The guests there are now: what is done with each is done without the lock.
    pub(crate) fn all_guests(&self) -> Vec<Arc<Guest>> {
        self.guests.lock().values().cloned().collect()
    }

    pub(crate) fn must_stop(&self) -> bool {
        // Acquire: with `Keeper::drop`.
        self.stopping.load(Acquire)
    }

    pub(crate) fn limit_pages(&self) -> usize {
        self.limit.limit()
    }

    /// Pages for which there is room without an eviction. Waits for nobody.
    pub(crate) fn room_pages(&self) -> u64 {
        (self.engine.free_frames() + self.limit.unleased()) as u64
    }

    /// Has all guests looked after soon.
    pub(crate) fn call_care(&self) {
        self.care.call();
    }

    /// Forgets a guest of which all pages are discarded.
    pub(crate) fn remove(&self, guest: &Arc<Guest>) {
        self.readers.ignore(guest);
        self.guests.lock().retain(|_, other| !Arc::ptr_eq(other, guest));
    }
}
