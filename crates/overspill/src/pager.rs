//! A pager put together: space, engine, areas, devices, threads.
//!
//! Owns: the order of construction and the life cycle across fork. Invariants: from
//! [`Pager::before_fork`] to the call after it no pager thread runs, no I/O is in flight and no
//! slot sits in a cache.
//! Not here: where the settings come from.

use crate::error::Error;
use overspill_area::{AreaConfig, AreaNo, AreaTables, MemberNo, SlotFreeNotify, SlotMap, SwapArea};
use overspill_area::{SwapAreas, TAG_BITS, TooManyHolders};
use overspill_base::clock::Cpus;
use overspill_base::history::History;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, AtomicU64, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE, PageNo, Slot};
use overspill_device::SwapDevice;
use overspill_device::checksum::{Checksum, ChecksumStore, Checksummed, TableStore};
use overspill_device::large_pages::LargePages;
use overspill_engine::{Engine, EngineParts, PageTable, Space, Swap, Tuning, Worker};
use overspill_space::with_signals_blocked;
use overspill_space::{HandlerOptions, Handlers, ManagedMemory, ManagedSpace, SignalFaults};
use std::sync::OnceLock;

/// A device with the shared tables of its slots.
#[derive(Debug)]
pub struct PagerSwap {
    /// Where pages go.
    pub device: Arc<dyn SwapDevice>,
    /// Formatted tables for it.
    pub tables: AreaTables,
    /// Higher is filled first.
    pub priority: i16,
    /// It verifies by itself what it returns.
    pub verifies: bool,
}

impl PagerSwap {
    /// `device` with tables for one process alone, in slots of `page_bytes`. Of large pages every 4
    /// KiB have a checksum, which finds no room in the word of their slot.
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
            return Ok(Self { device, tables, priority, verifies: false });
        }
        let sums = Table::<AtomicU64>::private(device.info().slots_max as usize).map_err(memory)?;
        let store = Arc::new(TableStore::new(sums));
        let plain: Arc<dyn SwapDevice> = Arc::new(Checksummed::new(device, store, seed));
        // SAFETY: the engine over this device has pages of `page_bytes`, as all who call this see
        // to, so its buffers have that size; each is a frame's own, or a worker's, while a request
        // has it.
        let device = unsafe { LargePages::new(plain, page_bytes / PAGE_SIZE) }?;
        let device: Arc<dyn SwapDevice> = Arc::new(device);
        let tables = private_tables(&*device)?;
        Ok(Self { device, tables, priority, verifies: true })
    }
}

/// What a pager is made of.
pub struct PagerParts {
    /// Memory it may use for pages.
    pub memory: Bytes,
    /// Bytes of a page, also of a slot of the swap areas.
    pub page_bytes: usize,
    /// Address space to reserve, if it is to be had.
    pub reserve: Bytes,
    /// Swap areas, in the order of their numbers.
    pub swaps: Vec<PagerSwap>,
    /// This process among those that share the areas.
    pub member: MemberNo,
    /// Key of the checksums; the same for all who share the areas.
    pub checksum_seed: u64,
    /// Where events are counted.
    pub stats: Stats,
    /// Where changes of pages' states are noted, if they are.
    pub history: Option<History>,
    /// See [`EngineParts::salvage`].
    pub salvage: Box<dyn Fn(&SwapAreas) -> bool + Send + Sync>,
    /// Takes one line about something that went wrong.
    pub report: Box<dyn Fn(&str) + Send + Sync>,
    /// How the threads behave.
    pub handlers: HandlerOptions,
}

/// A running pager.
#[derive(Debug)]
pub struct Pager {
    engine: Arc<Engine>,
    memory: ManagedMemory,
    handlers: Mutex<Option<Handlers>>,
    /// Once a region wanted its faults as signals.
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
    /// Reserves the range, starts the threads.
    ///
    /// # Errors
    /// Whatever the system refuses, in words for the user.
    pub fn start(parts: PagerParts) -> Result<Self, Error> {
        let page_size = rustix::param::page_size();
        if page_size != PAGE_SIZE {
            return Err(Error::PageSize(page_size));
        }
        let page_bytes = parts.page_bytes;
        let frames = parts.memory.0 as usize / page_bytes;
        let space = Arc::new(ManagedSpace::reserve(parts.reserve, page_bytes)?);
        let staging = Engine::staging_pages_of(frames, page_bytes);
        let staging = PageArena::new(staging).map_err(memory)?;
        space.register_staging(&staging)?;
        let (member, seed) = (parts.member, parts.checksum_seed);
        let base_address = space.address_of(PageNo(0));
        let history = parts.history.map(|history| history.based_at(base_address));
        let swaps = parts.swaps.into_iter().enumerate();
        let parts_of_engine = EngineParts {
            frames,
            table: PageTable::new(Table::private(space.pages()).map_err(memory)?)
                .with_history(history),
            space: Space::Moving(space.clone()),
            page_bytes,
            swaps: swaps.map(|(n, swap)| join_area(AreaNo(n as u8), swap, member, seed)).collect(),
            arena: staging,
            stats: parts.stats,
            salvage: parts.salvage,
            report: parts.report,
            tuning: Tuning::default(),
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

    /// This process among those that share the areas.
    pub fn member(&self) -> MemberNo {
        self.engine.areas().iter().next().map_or(self.member, |area| area.member())
    }

    /// The engine, for its counters.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The managed range.
    pub fn memory(&self) -> &ManagedMemory {
        &self.memory
    }

    /// Whoever serves faults by signal, started at the first call.
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

    /// A device to swap to, in slots as large as the pages.
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

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.memory.space().page_bytes()
    }

    /// Runs `f`, which may take locks that a fault needs, so that no handler of the program touches
    /// a region meanwhile.
    pub fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.signals.get().is_some() { with_signals_blocked(f) } else { f() }
    }

    /// Adds a swap area that no other process uses.
    ///
    /// # Errors
    /// [`Error::Swapon`]; then nothing was changed.
    pub fn swapon(&self, swap: PagerSwap) -> Result<(), Error> {
        let join = |number| join_area(number, swap, self.member, self.checksum_seed);
        self.undisturbed(|| self.engine.swapon(join)).map(drop).map_err(Error::Swapon)
    }

    /// Empties a swap area that no other process uses, on the calling thread, and closes its
    /// device.
    ///
    /// # Errors
    /// [`Error::Swapoff`]; the area is in use as before then.
    pub fn swapoff(&self, area: AreaNo) -> Result<(), Error> {
        let mut worker =
            Worker::new(&self.engine).map_err(Error::system("prepare to read the swap area"))?;
        self.undisturbed(|| self.engine.swapoff(&mut worker, area))?;
        // A thread lets go of the device when it finishes its work, at the latest now.
        if let Some(handlers) = &*self.handlers.lock() {
            handlers.park();
            handlers.unpark();
        }
        if let Some(signals) = self.signals.get() {
            self.undisturbed(|| signals.drop_gone());
        }
        Ok(())
    }

    /// Stops all paging. Threads that touch a missing page sleep until it goes on.
    pub fn before_fork(&self) {
        if let Some(handlers) = &*self.handlers.lock() {
            handlers.park();
        }
        self.engine.drain();
    }

    /// Makes `child`, about to be forked, a holder of every slot. Between
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

    /// Goes on paging, in the process that forked.
    pub fn after_fork_in_parent(&self) {
        if let Some(handlers) = &*self.handlers.lock() {
            handlers.unpark();
        }
    }

    /// Goes on paging in the child, as `member`: a userfaultfd of its own over the inherited range,
    /// threads of its own.
    ///
    /// # Errors
    /// As [`start`](Self::start). The child's swapped pages are out of reach then.
    pub fn after_fork_in_child(&self, member: MemberNo) -> Result<(), Error> {
        let mut handlers = self.handlers.lock();
        if let Some(old) = handlers.take() {
            old.forget();
        }
        self.engine.areas().iter().for_each(|area| area.become_member(member));
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
    let area = area_of(number, &swap.device, swap.tables, member);
    let device = match swap.verifies {
        true => swap.device,
        false => {
            let store = Arc::new(SlotTags(area.slot_map()));
            Arc::new(Checksummed::new(swap.device, store, seed))
        }
    };
    Swap { device, area, priority: swap.priority }
}

/// The area of a device's slots.
fn area_of(
    number: AreaNo,
    device: &Arc<dyn SwapDevice>,
    tables: AreaTables,
    member: MemberNo,
) -> SwapArea {
    let info = device.info();
    let config = AreaConfig {
        rotational: info.rotational,
        discard: info.page_discard,
        ..AreaConfig::native()
    };
    let mut area = SwapArea::new(number, tables, config, member);
    if info.slot_discard {
        area = area.notifying(Box::new(FreeNotify(device.clone())));
    }
    area
}

/// A device that is told of every slot nobody holds any more. Not by way of its checksum, which
/// vanishes with the hold.
#[derive(Debug)]
struct FreeNotify(Arc<dyn SwapDevice>);

impl SlotFreeNotify for FreeNotify {
    fn slot_free(&self, slot: Slot) {
        let forgotten = self.0.discard(slot, 1);
        debug_assert!(forgotten.is_ok(), "{forgotten:?}");
    }
}

/// Tables for one process alone.
///
/// # Errors
/// ENOMEM.
pub fn private_tables(device: &dyn SwapDevice) -> Result<AreaTables, Error> {
    let info = device.info();
    let cluster_slots = AreaConfig::native().tuning.cluster_slots;
    let clusters = info.slots_max.div_ceil(cluster_slots) as usize;
    let tables = AreaTables {
        slots_max: info.slots_max,
        slots: Table::<AtomicU64>::private(clusters * cluster_slots as usize).map_err(memory)?,
        owners: Table::private(clusters).map_err(memory)?,
        returned: Table::private(clusters).map_err(memory)?,
        counters: Table::private(AreaTables::COUNTERS).map_err(memory)?,
        holds: Vec::new(),
    };
    tables.format(&info.reserved);
    Ok(tables)
}

/// Checksums kept in the slots' own words, where they vanish with the slot's last holder.
#[derive(Debug)]
struct SlotTags(SlotMap);

const _: () = assert!(TAG_BITS == Checksum::BITS);

impl ChecksumStore for SlotTags {
    fn get(&self, slot: Slot) -> Checksum {
        Checksum(self.0.tag(slot))
    }

    fn set(&self, slot: Slot, checksum: Checksum) {
        self.0.set_tag(slot, checksum.0);
    }
}
