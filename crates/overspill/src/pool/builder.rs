//! Builds a pool.
//!
//! Owns: the settings a pool has in addition to those of every [`Builder`], and how its devices are
//! attached to an engine: verified, and with slots as large as the pages.

use super::Pool;
use super::core::{Core, CoreParts};
use super::runs::Runs;
use crate::builder::{Builder, OpenedSwap, PAGE_LEAST, check_pages, random_seed, report_to_stderr};
use crate::error::Error;
use crate::pager::{PagerSwap, join_area};
use overspill_area::AreaNo;
use overspill_base::Bytes;
use overspill_base::sync::Arc;
use overspill_device::SwapSpec;
use overspill_engine::Swap;
use overspill_space::FRAMES_MAX;

/// Total size of the pages a pool can number. Their tables cost nothing until they are used.
const ROOM: Bytes = Bytes(1 << 40);
/// Settings of a [`Pool`].
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    common: Builder,
}

/// A pool with the settings that a limit for regions would have.
impl From<Builder> for PoolBuilder {
    fn from(common: Builder) -> Self {
        Self { common }
    }
}

impl PoolBuilder {
    pub(crate) fn new() -> Self {
        Self { common: Builder::new() }
    }

    /// Sets the memory that the pool's pages may use. Required; at least 16 pages and 4 MiB.
    #[must_use]
    pub fn memory(mut self, memory: Bytes) -> Self {
        self.common = self.common.memory(memory);
        self
    }

    /// Sets the size of a page: a power of two from 4 KiB, the default, to 2 MiB. Larger ones suit
    /// data that is used in large pieces; each is read and written as a whole.
    #[must_use]
    pub fn page_size(mut self, size: Bytes) -> Self {
        self.common = self.common.page_size(size);
        self
    }

    /// Adds a swap area. Without any, an unnamed file in `$TMPDIR` or `/var/tmp` is used.
    #[must_use]
    pub fn swap(mut self, spec: SwapSpec) -> Self {
        self.common = self.common.swap(spec);
        self
    }

    /// Sets the maximum size of swap files without a size of their own.
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

    /// Makes a pool over open devices.
    pub(crate) fn build_over(
        self,
        swaps: Vec<OpenedSwap>,
        report: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Pool, Error> {
        let (limit, page) = (self.common.memory, self.common.page_size.unwrap_or(PAGE_LEAST));
        check_pages(limit, page, FRAMES_MAX as u64)?;
        let frames = limit.0 / page.0;
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
    let swap = PagerSwap::new(swap.device, swap.priority, page_bytes, seed)?;
    Ok(join_area(number, swap, seed))
}
