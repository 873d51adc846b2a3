//! A whole engine over memory: a device in RAM as in the product, and replayed pages.
//!
//! Owns: building it, and touching a page by a thread that serves its own faults.
//! Not here: which pages are touched, and by which thread ([`crate::workload`]).

use crate::cpus::virtual_cpus;
use crate::error::BenchError;
use crate::replay::{Look, ReplaySpace};
use crate::slots::{self, DeviceState};
use overspill_area::SlotMap;
use overspill_base::shared::{PageArena, Table};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, AtomicU64};
use overspill_base::{Bytes, PAGE_SIZE, PageNo, Slot, clock};
use overspill_device::checksum::{Checksum, ChecksumStore, Checksummed};
use overspill_device::file::{FileDevice, OpenOptions};
use overspill_device::{DeviceError, SwapDevice, SwapKind};
use overspill_engine::{
    AddressSpace, Engine, EngineParts, FaultOutcome, MovingSpace, PageTable, Space, Swap, Tuning,
    Worker,
};
use serde::Serialize;

/// Sizes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Pages that may be in memory.
    pub frames: usize,
    /// Pages the threads touch.
    pub working_set_pages: usize,
    /// Slots of the device.
    pub device_slots: u32,
}

impl Default for Shape {
    /// 32 MiB of memory for 128 MiB of pages, on a device of 1 GiB: 16 trunks.
    fn default() -> Self {
        Self { frames: 8192, working_set_pages: 32768, device_slots: 1 << 18 }
    }
}

/// An engine and the pages it manages.
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    pub(crate) space: Arc<ReplaySpace>,
}

/// A completed touch: the result of `f` on the page, and how long the page was missing.
pub(crate) struct Touched<R> {
    pub(crate) result: R,
    pub(crate) missing_ns: Option<u64>,
}

/// Memory of the pages: their places in the replayed space, and staging for their writes.
pub(crate) struct Memory {
    space: Arc<ReplaySpace>,
    staging: PageArena,
}

impl Memory {
    /// Reserves memory for an engine of `shape` with `cpus` CPUs.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(crate) fn new(shape: Shape, cpus: usize) -> Result<Self, BenchError> {
        let action = "reserve memory for pages";
        let space =
            ReplaySpace::new(shape.working_set_pages).map_err(BenchError::system(action))?;
        // Every CPU may evict one chunk while another of its chunks is being written.
        let pages = Engine::staging_pages(shape.frames).max(2 * cpus * Tuning::CHUNK_PAGES);
        let staging = PageArena::new(pages).map_err(|e| BenchError::system(action)(e.into()))?;
        Ok(Self { space: Arc::new(space), staging })
    }

    /// Makes all of it resident.
    pub(crate) fn touch(&self) {
        let pages = self.space.len();
        self.space.map_zeros(PageNo(0), pages);
        for n in 0..self.staging.pages() {
            self.space.unmap(PageNo(n as u32), &self.staging, n..n + 1);
        }
        self.space.zap(PageNo(0), pages);
    }
}

impl Machine {
    /// Makes an engine of `shape` for `cpus` CPUs, with its device in `state`.
    ///
    /// # Errors
    /// [`BenchError::System`], [`BenchError::Engine`] if the device cannot be made.
    pub(crate) fn new(
        shape: Shape,
        tuning: Tuning,
        cpus: usize,
        state: DeviceState,
    ) -> Result<Self, BenchError> {
        Self::over(Memory::new(shape, cpus)?, shape, tuning, cpus, state)
    }

    /// As [`new`](Self::new), over existing memory.
    pub(crate) fn over(
        memory: Memory,
        shape: Shape,
        tuning: Tuning,
        cpus: usize,
        state: DeviceState,
    ) -> Result<Self, BenchError> {
        let Memory { space, staging } = memory;
        let engine = Engine::new(EngineParts {
            frames: shape.frames,
            table: PageTable::new(Table::on_heap(shape.working_set_pages, || AtomicU64::new(0))),
            space: Space::Moving(space.clone()),
            page_bytes: PAGE_SIZE,
            swaps: vec![ram_swap(shape.device_slots, tuning, cpus).map_err(|e| engine_error(&e))?],
            arena: staging,
            stats: Stats::on_heap(),
            report: Box::new(|_| {}),
            tuning,
            cpus: virtual_cpus(cpus),
        });
        slots::prepare(engine.areas(), state, &mut fastrand::Rng::with_seed(SEED));
        Ok(Self { engine, space })
    }

    /// Returns a worker for the calling thread.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(crate) fn worker(&self) -> Result<Worker, BenchError> {
        Worker::new(&self.engine).map_err(BenchError::system("open a queue for a thread"))
    }

    /// Touches `page` as a program would: faults until it is present, then runs `f` on it.
    ///
    /// # Errors
    /// [`BenchError::Engine`] if the page cannot be brought in.
    pub(crate) fn touch<R>(
        &self,
        worker: &mut Worker,
        page: PageNo,
        mut f: impl FnMut(&mut [u8]) -> R,
    ) -> Result<Touched<R>, BenchError> {
        let mut missing_since = None;
        loop {
            match self.space.look(page, &mut f) {
                Look::Present(result) => {
                    let missing_ns = missing_since.map(|since| clock::now_ns() - since);
                    return Ok(Touched { result, missing_ns });
                }
                Look::Missing => {}
                Look::Poisoned => return Err(self.engine_error()),
            }
            let since = *missing_since.get_or_insert_with(clock::now_ns);
            self.fault(worker, page, since)?;
        }
    }

    fn fault(&self, worker: &mut Worker, page: PageNo, since: u64) -> Result<(), BenchError> {
        match self.engine.fault(worker, page, since) {
            FaultOutcome::Mapped => Ok(()),
            FaultOutcome::Pending => {
                if worker.poll(&self.engine) == 0 {
                    // Another thread is moving the page.
                    std::thread::yield_now();
                }
                Ok(())
            }
            FaultOutcome::OutOfMemory | FaultOutcome::Poisoned | FaultOutcome::Stray => {
                Err(self.engine_error())
            }
        }
    }

    fn engine_error(&self) -> BenchError {
        let reason = self.engine.last_error();
        BenchError::Engine(reason.unwrap_or_else(|| "no page could be evicted".into()))
    }
}

/// Seed of the random device states, the same every time.
const SEED: u64 = 48;

fn engine_error(error: &DeviceError) -> BenchError {
    BenchError::Engine(error.to_string())
}

/// Makes a swap area on a device in memory, checksummed as in the product.
fn ram_swap(slots: u32, tuning: Tuning, cpus: usize) -> Result<Swap, DeviceError> {
    let kind = SwapKind::Ram { size: Bytes::of_pages(slots.into()) };
    let ram = FileDevice::open(&kind.into(), &OpenOptions::default())?;
    let usable = ram.grow(slots)?;
    let area = slots::area(usable, &ram.info().reserved, tuning.area, cpus);
    let store = Arc::new(SlotTags(area.slot_map()));
    let device = Arc::new(Checksummed::new(Arc::new(ram), store, SEED));
    Ok(Swap { device, area, priority: 0 })
}

/// Checksums stored in the slots' own words.
#[derive(Debug)]
struct SlotTags(SlotMap);

impl ChecksumStore for SlotTags {
    fn get(&self, slot: Slot) -> Checksum {
        Checksum(self.0.tag(slot))
    }

    fn set(&self, slot: Slot, checksum: Checksum) {
        self.0.set_tag(slot, checksum.0);
    }
}
