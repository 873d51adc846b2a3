//! Building a pool.
//!
//! Owns: the settings a pool has beside those of every [`Builder`], and how its devices are put in
//! front of an engine: with checksums, and in slots as large as the pages.

use super::Pool;
use super::core::{Core, CoreParts};
use super::runs::Runs;
use crate::builder::{Builder, MEMORY_MIN, OpenedSwap, check_limit, random_seed, report_to_stderr};
use crate::error::Error;
use crate::pager::{PagerSwap, area_of, join_area, memory, private_tables};
use overspill_area::{AreaNo, MemberNo};
use overspill_base::shared::Table;
use overspill_base::sync::{Arc, AtomicU64};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_device::checksum::{Checksummed, TableStore};
use overspill_device::large_pages::LargePages;
use overspill_device::{SwapDevice, SwapSpec};
use overspill_engine::Swap;
use overspill_space::FRAMES_MAX;

/// Bytes of pages a pool can name. The tables for them cost nothing until they are used.
const ROOM: Bytes = Bytes(1 << 40);
/// Fewest pages in memory there is any sense in.
const FRAMES_MIN: u64 = 16;
/// Largest page.
const PAGE_MAX: Bytes = Bytes(2 << 20);

/// Settings of a [`Pool`].
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    common: Builder,
    page_size: Bytes,
}

impl PoolBuilder {
    pub(crate) fn new() -> Self {
        Self { common: Builder::new(), page_size: Bytes(PAGE_SIZE as u64) }
    }

    /// Memory that the pool's pages may use. Needed; at least 16 pages and 4 MiB.
    #[must_use]
    pub fn memory(mut self, memory: Bytes) -> Self {
        self.common = self.common.memory(memory);
        self
    }

    /// Size of a page: a power of two from 4 KiB, which it is by default, to 2 MiB. Larger ones suit
    /// data that is used in large pieces; each is read and written as a whole.
    #[must_use]
    pub fn page_size(mut self, size: Bytes) -> Self {
        self.page_size = size;
        self
    }

    /// Adds a swap area. Without any, an unnamed file in `$TMPDIR` or `/var/tmp` is used.
    #[must_use]
    pub fn swap(mut self, spec: SwapSpec) -> Self {
        self.common = self.common.swap(spec);
        self
    }

    /// The most that swap files without a size of their own may grow to.
    #[must_use]
    pub fn swap_size(mut self, size: Bytes) -> Self {
        self.common = self.common.swap_size(size);
        self
    }

    /// Opens the devices.
    ///
    /// # Errors
    /// See [`Error`]; every message says what to do.
    pub fn build(self) -> Result<Pool, Error> {
        let swaps = self.common.open_swaps()?;
        self.build_over(swaps, report_to_stderr())
    }

    /// A pool over devices that are open.
    pub(crate) fn build_over(
        self,
        swaps: Vec<OpenedSwap>,
        report: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Pool, Error> {
        let (limit, page) = (self.common.memory, self.page_size);
        if !page.0.is_power_of_two() || page < Bytes(PAGE_SIZE as u64) || page > PAGE_MAX {
            return Err(Error::PoolPageSize(page, PAGE_MAX));
        }
        check_limit(limit)?;
        let frames = limit.0 / page.0;
        if frames < FRAMES_MIN {
            return Err(Error::LimitTooSmall(limit, MEMORY_MIN.max(Bytes(FRAMES_MIN * page.0))));
        }
        if frames > FRAMES_MAX as u64 {
            return Err(Error::LimitTooLarge(limit, Bytes(FRAMES_MAX as u64 * page.0)));
        }
        let (pages, page_bytes) = ((ROOM.0 / page.0) as usize, page.0 as usize);
        let seed = random_seed()?;
        let swaps = swaps.into_iter().enumerate();
        let swaps: Result<Vec<Swap>, Error> =
            swaps.map(|(n, swap)| join(AreaNo(n as u8), swap, page_bytes, seed)).collect();
        let parts = CoreParts { frames: frames as usize, pages, page_bytes, swaps: swaps?, report };
        let core = Core::start(parts)?;
        Ok(Pool { core: Arc::new(core), runs: Arc::new(Runs::new(pages)), memory: limit })
    }
}

fn join(number: AreaNo, swap: OpenedSwap, page_bytes: usize, seed: u64) -> Result<Swap, Error> {
    let OpenedSwap { device, priority, .. } = swap;
    if page_bytes == PAGE_SIZE {
        let tables = private_tables(&*device)?;
        return Ok(join_area(number, PagerSwap { device, tables, priority }, MemberNo(0), seed));
    }
    let sums = Table::<AtomicU64>::private(device.info().slots_max as usize).map_err(memory)?;
    let store = Arc::new(TableStore::new(sums));
    let plain: Arc<dyn SwapDevice> = Arc::new(Checksummed::new(device, store, seed));
    // SAFETY: the engine's buffers are homes of `page_bytes` (`Engine::with_homes` gets the same number),
    // each the frame's own while a request has it.
    let device = unsafe { LargePages::new(plain, page_bytes / PAGE_SIZE) }?;
    let device: Arc<dyn SwapDevice> = Arc::new(device);
    let area = area_of(number, &device, private_tables(&*device)?, MemberNo(0));
    Ok(Swap { device, area, priority })
}
