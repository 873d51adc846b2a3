//! A complete pager: space, engine, areas, devices, threads.
//!
//! Owns: the order of construction and the life cycle across fork.
//! Invariants: from [`Pager::before_fork`] to the matching call after the fork no pager thread
//! runs, no I/O is in flight and no slot is in a cache.
//! Not here: where the settings come from.

use crate::error::Error;
use overspill_area::{AreaNo, AreaTables, MemberNo, SwapArea, SwapAreas, TooManyHolders};
use overspill_base::clock::Cpus;
use overspill_base::history::History;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE, PageNo};
use overspill_device::SwapDevice;
use overspill_device::checksum::{Checksummed, TableStore};
use overspill_device::large_pages::LargePages;
use overspill_engine::{Engine, EngineParts, FrameBudget, PageTable, Space, Swap, Tuning, Worker};
use overspill_space::with_signals_blocked;
use overspill_space::words::Reach;
use overspill_space::{HandlerOptions, Handlers, ManagedMemory, ManagedSpace, SignalFaults};
use std::sync::OnceLock;

/// A device with the shared tables of its slots.
#[derive(Debug)]
pub struct PagerSwap {
    /// Where pages are written.
    pub device: Arc<dyn SwapDevice>,
    /// Formatted slot tables for it.
    pub tables: AreaTables,
    /// Higher is filled first.
    pub priority: i16,
}

impl PagerSwap {
    /// Makes a swap area of `device` for one process, with slots of `page_bytes`. Large pages
    /// that are not encrypted have a checksum for every 4 KiB; these do not fit into the word of
    /// their slot.
    ///
    /// # Errors
    /// ENOMEM; a device without room for a page.
    pub(crate) fn private(
        device: Arc<dyn SwapDevice>,
        priority: i16,
        page_bytes: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        if page_bytes == PAGE_SIZE {
            let tables = private_tables(&*device)?;
            return Ok(Self { device, tables, priority });
        }
        let plain: Arc<dyn SwapDevice> = if device.info().verifies {
            device
        } else {
            let sums = Table::private(device.info().slots_max as usize).map_err(memory)?;
            Arc::new(Checksummed::new(device, Arc::new(TableStore::new(sums)), seed))
        };
        // SAFETY: the engine over this device has pages of `page_bytes`, as all callers ensure, so
        // its buffers have that size; while a request uses one, it belongs to a frame or to a
        // worker.
        let device = unsafe { LargePages::new(plain, page_bytes / PAGE_SIZE) }?;
        let device: Arc<dyn SwapDevice> = Arc::new(device);
        let tables = private_tables(&*device)?;
        Ok(Self { device, tables, priority })
    }
}

/// The parts of a pager.
pub struct PagerParts {
    /// Memory that pages may use, or the most that the budget's limit may become.
    pub memory: Bytes,
    /// Where it is leased from, if other processes use the same.
    pub budget: Option<Arc<dyn FrameBudget>>,
    /// Size of a page, and of a slot of the swap areas, in bytes.
    pub page_bytes: usize,
    /// Address space to reserve, if the system grants it.
    pub reserve: Bytes,
    /// Which touches the kernel reports.
    pub reach: Reach,
    /// Swap areas, in the order of their numbers.
    pub swaps: Vec<PagerSwap>,
    /// This process's member number among those that share the areas.
    pub member: MemberNo,
    /// Key of the checksums; the same for all processes that share the areas.
    pub checksum_seed: u64,
    /// Where events are counted.
    pub stats: Stats,
    /// Where changes of page state are recorded, if they are.
    pub history: Option<History>,
    /// The engine's switches and sizes.
    pub tuning: Tuning,
    /// See [`EngineParts::salvage`].
    pub salvage: Box<dyn Fn(&SwapAreas) -> bool + Send + Sync>,
    /// Takes one line about an error.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
    /// Settings of the threads.
    pub handlers: HandlerOptions,
}

/// A running pager.
#[derive(Debug)]
pub struct Pager {
    engine: Arc<Engine>,
    memory: ManagedMemory,
    handlers: Mutex<Option<Handlers>>,
    /// Set when the first region with faults by signal is made.
    signals: OnceLock<Arc<SignalFaults>>,
    /// Held while `signals` is made.
    starting_signals: Mutex<()>,
    options: PagerThreads,
    member: MemberNo,
    checksum_seed: u64,
}

struct PagerThreads(HandlerOptions);

impl std::fmt::Debug for PagerThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} handlers", self.0.handlers)
    }
}

impl Pager {
    /// Reserves the range and starts the threads.
    ///
    /// # Errors
    /// Any refusal by the system, worded for the user.
    pub fn start(parts: PagerParts) -> Result<Self, Error> {
        let page_size = rustix::param::page_size();
        if page_size != PAGE_SIZE {
            return Err(Error::PageSize(page_size));
        }
        let page_bytes = parts.page_bytes;
        let frames = parts.memory.0 as usize / page_bytes;
        let space = Arc::new(ManagedSpace::reserve(parts.reserve, page_bytes, parts.reach)?);
        let limit = parts.budget.as_ref().map_or(frames, |budget| budget.limit());
        let staging = Engine::staging_pages_of(limit, page_bytes);
        let staging = PageArena::new(staging).map_err(memory)?;
        space.register_staging(&staging)?;
        let (member, seed) = (parts.member, parts.checksum_seed);
        let base_address = space.address_of(PageNo(0));
        let history = parts.history.map(|history| history.based_at(base_address));
        let swaps = parts.swaps.into_iter().enumerate();
        let parts_of_engine = EngineParts {
            frames,
            budget: parts.budget,
            table: PageTable::new(Table::private(space.pages()).map_err(memory)?)
                .with_history(history),
            space: Space::Moving(space.clone()),
            page_bytes,
            swaps: swaps.map(|(n, swap)| join_area(AreaNo(n as u8), swap, member, seed)).collect(),
            arena: staging,
            stats: parts.stats,
            salvage: parts.salvage,
            report: parts.report,
            tuning: parts.tuning,
            cpus: Cpus::native(),
        };
        let engine = Arc::new(Engine::new(parts_of_engine));
        let handlers = Handlers::start(engine.clone(), space.clone(), parts.handlers.clone())
            .map_err(Error::system("start the pager's threads"))?;
        Ok(Self {
            memory: ManagedMemory::new(space, engine.clone()),
            engine,
            handlers: Mutex::new(LockClass::Pager, Some(handlers)),
            signals: OnceLock::new(),
            starting_signals: Mutex::new(LockClass::Pager, ()),
            options: PagerThreads(parts.handlers),
            member,
            checksum_seed: seed,
        })
    }

    /// Returns this process's member number among those that share the areas.
    pub fn member(&self) -> MemberNo {
        self.engine.areas().iter().next().map_or(self.member, |area| area.member())
    }

    /// Returns the engine, for its counters.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the managed range.
    pub fn memory(&self) -> &ManagedMemory {
        &self.memory
    }

    /// Returns the server of faults by signal, started at the first call.
    ///
    /// # Errors
    /// [`Error::Signals`].
    pub fn signals(&self) -> Result<&Arc<SignalFaults>, Error> {
        let _one = self.starting_signals.lock();
        if let Some(signals) = self.signals.get() {
            return Ok(signals);
        }
        let space = self.memory.space().clone();
        let signals = SignalFaults::start(self.engine.clone(), space)?;
        Ok(self.signals.get_or_init(|| signals))
    }

    /// Prepares a device for swapping, with slots as large as the pages.
    ///
    /// # Errors
    /// ENOMEM; a device without room for a page.
    pub(crate) fn swap_of(
        &self,
        device: Arc<dyn SwapDevice>,
        priority: i16,
    ) -> Result<PagerSwap, Error> {
        PagerSwap::private(device, priority, self.page_bytes(), self.checksum_seed)
    }

    /// Size of a page in bytes.
    pub fn page_bytes(&self) -> usize {
        self.memory.space().page_bytes()
    }

    /// Runs `f`, which may take locks that a fault needs, so that no signal handler of the program
    /// touches a region meanwhile.
    pub fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.signals.get().is_some() { with_signals_blocked(f) } else { f() }
    }

    /// Adds a swap area.
    ///
    /// # Errors
    /// [`Error::Swapon`], and nothing was changed.
    pub fn swapon(&self, swap: PagerSwap) -> Result<(), Error> {
        let join = |number| join_area(number, swap, self.member(), self.checksum_seed);
        self.undisturbed(|| self.engine.swapon(join)).map(drop).map_err(Error::Swapon)
    }

    /// Empties a swap area that no other process uses, on the calling thread, and closes its
    /// device.
    ///
    /// # Errors
    /// [`Error::Swapoff`]; the area is then in use as before.
    pub fn swapoff(&self, area: AreaNo) -> Result<(), Error> {
        let mut worker =
            Worker::new(&self.engine).map_err(Error::system("prepare to read the swap area"))?;
        self.undisturbed(|| self.engine.swapoff(&mut worker, area))?;
        self.release_gone();
        Ok(())
    }

    /// Has all threads release the devices of areas that were swapped off: each does when it
    /// finishes its work, at the latest when it parks.
    pub fn release_gone(&self) {
        if let Some(handlers) = &*self.handlers.lock() {
            handlers.park();
            handlers.unpark();
        }
        if let Some(signals) = self.signals.get() {
            self.undisturbed(|| signals.drop_gone());
        }
    }

    /// Stops all paging. Threads that touch a missing page sleep until it resumes.
    pub fn before_fork(&self) {
        if let Some(handlers) = &*self.handlers.lock() {
            handlers.park();
        }
        self.engine.drain();
    }

    /// Makes `child`, about to be forked, a holder of every slot. Call between
    /// [`before_fork`](Self::before_fork) and the fork.
    ///
    /// # Errors
    /// [`TooManyHolders`], and nothing was changed.
    pub fn share_with(&self, child: MemberNo) -> Result<(), TooManyHolders> {
        let areas: Vec<&SwapArea> = self.engine.areas().iter().collect();
        for (n, area) in areas.iter().enumerate() {
            if let Err(error) = area.share_with(child) {
                areas[..n].iter().for_each(|area| area.release_member(child));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Resumes paging in the process that forked.
    pub fn after_fork_in_parent(&self) {
        if let Some(handlers) = &*self.handlers.lock() {
            handlers.unpark();
        }
    }

    /// Resumes paging in the child, as `member`: with a new userfaultfd over the inherited range,
    /// and new threads.
    ///
    /// # Errors
    /// As [`start`](Self::start). The child's swapped pages are then unreachable.
    pub fn after_fork_in_child(&self, member: MemberNo) -> Result<(), Error> {
        let mut handlers = self.handlers.lock();
        if let Some(old) = handlers.take() {
            old.forget();
        }
        self.engine.become_member(member);
        self.engine.history().into_iter().for_each(|history| history.become_member(member.0));
        let space = self.memory.space().clone();
        space.reopen_in_child()?;
        let started = Handlers::start(self.engine.clone(), space, self.options.0.clone())
            .map_err(Error::system("start the pager's threads"))?;
        *handlers = Some(started);
        Ok(())
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        if let Some(handlers) = self.handlers.lock().take() {
            handlers.stop();
        }
    }
}

pub(crate) fn memory(errno: rustix::io::Errno) -> Error {
    Error::System { action: "reserve memory for the pager's tables", source: errno.into() }
}

pub(crate) fn join_area(number: AreaNo, swap: PagerSwap, member: MemberNo, seed: u64) -> Swap {
    Swap::join(number, swap.device, swap.tables, (swap.priority, member, seed))
}

/// Allocates tables for one process.
///
/// # Errors
/// ENOMEM.
pub fn private_tables(device: &dyn SwapDevice) -> Result<AreaTables, Error> {
    let tables = overspill_engine::private_tables(device);
    tables.map_err(Error::system("reserve memory for the pager's tables"))
}
