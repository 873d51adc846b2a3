//! What the threads of a keeper have in common.
//!
//! Owns: the engine, and the guests by their numbers.
//! Not here: what each thread does, and the threads (`keeper`).

use super::limit::Limit;
use super::readers::Readers;
use super::shortage::Shortage;
use crate::arrivals::Arrivals;
use crate::call::Call;
use crate::front::Front;
use crate::guest::letters::Bell;
use crate::guest::state::Guest;
use crate::space::guest_space::GuestSpace;
use crate::wakeup::Wakeup;
use overspill_base::clock::{self, Cpus};
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::Ordering::Acquire;
use overspill_base::sync::{Arc, AtomicBool, AtomicU64, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_engine::{Engine, EngineParts, PageTable, Space, Swap, Tuning};
use std::collections::BTreeMap;

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
    pub(crate) limit: Limit,
    pub(crate) guests: Mutex<BTreeMap<u64, Arc<Guest>>>,
    /// Children that were forked so far.
    pub(crate) forks: AtomicU64,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) readers: Readers,
    pub(crate) front: Arc<dyn Front>,
    /// Whether a guest was killed for lack of memory.
    pub(crate) out_of_memory: AtomicBool,
    pub(crate) shortage: Shortage,
    pub(crate) stopping: AtomicBool,
    /// Of the threads that look after guests.
    pub(crate) care: Call,
    pub(crate) survey: Call,
    pub(crate) growth: Call,
    pub(crate) bell: Bell,
}

impl Shared {
    /// Makes what the threads share, without any guest.
    ///
    /// # Errors
    /// No memory for the tables, no descriptor.
    pub(crate) fn new(parts: KeeperParts) -> std::io::Result<Self> {
        let pages = |bytes: Bytes| bytes.pages_floor() as usize;
        let frames = pages(parts.memory_max);
        let space = Arc::new(GuestSpace::new(TABLE_PAGES, parts.arrivals));
        let engine = Arc::new(Engine::new(EngineParts {
            frames,
            table: PageTable::new(Table::private(TABLE_PAGES)?),
            space: Space::Moving(space.clone()),
            page_bytes: PAGE_SIZE,
            swaps: parts.swaps,
            arena: PageArena::new(Engine::staging_pages(frames))?,
            stats: parts.stats,
            report: parts.report,
            tuning: parts.tuning,
            cpus: Cpus::native(),
        }));
        let wakeup = Wakeup::new()?;
        Ok(Self {
            limit: Limit::new(pages(parts.memory), &engine),
            engine,
            space,
            guests: Mutex::new(LockClass::Control, BTreeMap::new()),
            forks: AtomicU64::new(0),
            out_of_memory: AtomicBool::new(false),
            shortage: Shortage::default(),
            readers: Readers::new(clock::cpu_count(), &wakeup)?,
            wakeup: Arc::new(wakeup),
            front: parts.front,
            stopping: AtomicBool::new(false),
            care: Call::new(),
            survey: Call::new(),
            growth: Call::new(),
            bell: Bell::new(),
        })
    }

    /// Changes the limit, at most to what was given as the most.
    pub(crate) fn set_limit(&self, memory: Bytes) {
        let pages = self.engine.frames().min(memory.pages_floor() as usize);
        self.limit.set(pages, &self.engine);
    }

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

    /// What all guests may hold.
    pub(crate) fn limit_pages(&self) -> usize {
        self.limit.pages()
    }

    /// Pages for which there is room without an eviction. Waits for nobody.
    pub(crate) fn room_pages(&self) -> u64 {
        self.engine.free_frames() as u64
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
