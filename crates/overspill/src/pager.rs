//! A complete pager: space, engine, areas, devices, threads.
//!
//! Owns: the order of construction.
//! Invariants: only the process that started it uses or ends it: threads, and the memory of
//! regions, are there alone.
//! Not here: where the settings come from.

use crate::error::Error;
use overspill_area::{AreaNo, SlotTable};
use overspill_base::clock::Cpus;
use overspill_base::secret::Maker;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_device::SwapDevice;
use overspill_device::checksum::{Checksummed, TableStore};
use overspill_device::large_pages::LargePages;
use overspill_engine::{Engine, EngineParts, PageTable, Space, Swap, Tuning, Worker};
use overspill_space::with_signals_blocked;
use overspill_space::words::Reach;
use overspill_space::{
    Handlers, InPlace, ManagedMemory, ManagedSpace, SignalFaults, SignalSetupError,
};
use std::sync::OnceLock;

/// A device with the table of its slots.
#[derive(Debug)]
pub struct PagerSwap {
    /// Where pages are written.
    pub device: Arc<dyn SwapDevice>,
    /// Made for it.
    pub slots: SlotTable,
    /// Higher is filled first.
    pub priority: i16,
}

impl PagerSwap {
    /// Makes a swap area of `device`, with slots of `page_bytes`. Large pages
    /// that are not encrypted have a checksum for every 4 KiB; these do not fit into the word of
    /// their slot.
    ///
    /// # Errors
    /// ENOMEM; a device without room for a page.
    pub(crate) fn new(
        device: Arc<dyn SwapDevice>,
        priority: i16,
        page_bytes: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        if page_bytes == PAGE_SIZE {
            let slots = slot_table(&*device)?;
            return Ok(Self { device, slots, priority });
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
        let slots = slot_table(&*device)?;
        Ok(Self { device, slots, priority })
    }
}

/// The parts of a pager.
pub struct PagerParts {
    /// Memory that pages may use.
    pub memory: Bytes,
    /// Size of a page, and of a slot of the swap areas, in bytes.
    pub page_bytes: usize,
    /// Address space to reserve, if the system grants it.
    pub reserve: Bytes,
    /// Which touches are served.
    pub reach: Reach,
    /// Swap areas, in the order of their numbers.
    pub swaps: Vec<PagerSwap>,
    /// Key of the checksums.
    pub checksum_seed: u64,
    /// Where events are counted.
    pub stats: Stats,
    /// The engine's switches and sizes.
    pub tuning: Tuning,
    /// Takes one line about an error.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
}

/// A running pager.
#[derive(Debug)]
pub struct Pager {
    engine: Arc<Engine>,
    memory: ManagedMemory,
    handlers: Mutex<Option<Handlers>>,
    /// Made for the first pin, or the first region with faults by signal.
    in_place: OnceLock<Arc<InPlace>>,
    /// Made for the first region with faults by signal.
    signals: OnceLock<SignalFaults>,
    /// Held while these two are made.
    starting: Mutex<()>,
    checksum_seed: u64,
    maker: Maker,
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
        let maker = Maker::new().map_err(memory)?;
        let page_bytes = parts.page_bytes;
        let frames = parts.memory.0 as usize / page_bytes;
        let space = Arc::new(ManagedSpace::reserve(parts.reserve, page_bytes, parts.reach)?);
        let staging = Engine::staging_pages_of(frames, page_bytes);
        let staging = PageArena::new(staging).map_err(memory)?;
        space.register_staging(&staging)?;
        let seed = parts.checksum_seed;
        let swaps = parts.swaps.into_iter().enumerate();
        let parts_of_engine = EngineParts {
            frames,
            table: PageTable::new(Table::private(space.pages()).map_err(memory)?),
            space: Space::Moving(space.clone()),
            page_bytes,
            swaps: swaps.map(|(n, swap)| join_area(AreaNo(n as u8), swap, seed)).collect(),
            arena: staging,
            stats: parts.stats,
            report: parts.report,
            tuning: parts.tuning,
            cpus: Cpus::native(),
        };
        let engine = Arc::new(Engine::new(parts_of_engine));
        let handlers = Handlers::start(engine.clone(), space.clone())
            .map_err(Error::system("start the pager's threads"))?;
        let pager = Self {
            memory: ManagedMemory::new(space, engine.clone()),
            engine,
            handlers: Mutex::new(LockClass::Pager, Some(handlers)),
            in_place: OnceLock::new(),
            signals: OnceLock::new(),
            starting: Mutex::new(LockClass::Pager, ()),
            checksum_seed: seed,
            maker,
        };
        if parts.reach.is_by_signal() {
            pager.start_signals()?;
        }
        Ok(pager)
    }

    /// Whether this is the process that started it, and no forked child.
    pub fn is_here(&self) -> bool {
        self.maker.is_here()
    }

    /// Refuses what a forked child asks for.
    pub(crate) fn check_maker(&self) -> Result<(), Error> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns the engine, for its counters.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the managed range.
    pub fn memory(&self) -> &ManagedMemory {
        &self.memory
    }

    /// Serves faults by signal from now on.
    ///
    /// # Errors
    /// [`Error::Signals`].
    pub fn start_signals(&self) -> Result<(), Error> {
        let _one = self.starting.lock();
        if self.signals.get().is_none() {
            let signals = SignalFaults::start(self.make_in_place()?)?;
            let _ = self.signals.set(signals);
        }
        Ok(())
    }

    /// Returns the server of faults on the threads that have them.
    ///
    /// # Errors
    /// [`Error::Signals`].
    pub fn in_place(&self) -> Result<&Arc<InPlace>, Error> {
        let _one = self.starting.lock();
        self.make_in_place()
    }

    /// As [`in_place`](Self::in_place). The caller has locked `starting`.
    fn make_in_place(&self) -> Result<&Arc<InPlace>, Error> {
        if let Some(made) = self.in_place.get() {
            return Ok(made);
        }
        let made = InPlace::new(self.engine.clone(), self.memory.space().clone());
        let made = made.map_err(SignalSetupError::from)?;
        Ok(self.in_place.get_or_init(|| made))
    }

    /// True if all faults are signals, whatever a region asks for.
    pub fn is_by_signal(&self) -> bool {
        self.memory.space().reach().is_by_signal()
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
        PagerSwap::new(device, priority, self.page_bytes(), self.checksum_seed)
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
        let join = |number| join_area(number, swap, self.checksum_seed);
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
        if let Some(in_place) = self.in_place.get() {
            self.undisturbed(|| in_place.drop_gone());
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        if let Some(handlers) = self.handlers.lock().take() {
            handlers.stop();
        }
    }
}

pub(crate) fn memory(errno: rustix::io::Errno) -> Error {
    Error::System { action: "reserve memory for the pager's tables", source: errno.into() }
}

pub(crate) fn join_area(number: AreaNo, swap: PagerSwap, seed: u64) -> Swap {
    Swap::new(number, swap.device, swap.slots, (swap.priority, seed))
}

fn slot_table(device: &dyn SwapDevice) -> Result<SlotTable, Error> {
    let slots = overspill_engine::slot_table(device);
    slots.map_err(Error::system("reserve memory for the pager's tables"))
}
