//! Building a pager inside one process.

use crate::error::Error;
use crate::pager::{Pager, PagerParts, PagerSwap, private_tables};
use crate::region::{Region, RegionOptions};
use crate::summary::Summary;
use crate::swaps::kind_name;
use overspill_area::{AreaNo, MemberNo};
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE};
use overspill_device::file::OpenOptions;
use overspill_device::{Device, SwapDevice, SwapSpec};
use overspill_space::HandlerOptions;

/// The least memory there is any sense in paging with: 1024 pages.
pub const MEMORY_MIN: Bytes = Bytes(1024 * PAGE_SIZE as u64);
/// The most: pages are counted in 32 bits, and one value is kept back.
const MEMORY_MAX: Bytes = Bytes((u32::MAX as u64 - 1) * PAGE_SIZE as u64);
/// Address space for regions. It costs nothing until it is touched.
const RESERVE: Bytes = Bytes(1 << 40);

/// Settings of an [`Overspill`].
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) memory: Bytes,
    swaps: Vec<SwapSpec>,
    options: OpenOptions,
}

/// What a [`Builder`] has opened.
pub(crate) struct OpenedSwap {
    pub(crate) device: Arc<dyn SwapDevice>,
    pub(crate) kind: &'static str,
    /// Higher is filled first.
    pub(crate) priority: i16,
}

impl Builder {
    /// Memory that all regions together may use. Needed.
    #[must_use]
    pub fn memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self
    }

    /// Adds a swap area. Without any, an unnamed file in `$TMPDIR` or `/var/tmp` is used.
    #[must_use]
    pub fn swap(mut self, spec: SwapSpec) -> Self {
        self.swaps.push(spec);
        self
    }

    /// The most that swap files without a size of their own may grow to.
    #[must_use]
    pub fn swap_size(mut self, size: Bytes) -> Self {
        self.options.swap_size = Some(size);
        self
    }

    /// A pager in this process with no swap area chosen and no memory allowed.
    pub(crate) fn new() -> Self {
        Self { memory: Bytes(0), swaps: Vec::new(), options: OpenOptions::default() }
    }

    pub(crate) fn open_swaps(&self) -> Result<Vec<OpenedSwap>, Error> {
        let specs = swaps_or_default(self.swaps.clone())?;
        let open = |(n, spec): (usize, &SwapSpec)| {
            let device = Device::open(spec, &self.options)?.shared();
            let kind = kind_name(&spec.kind);
            Ok(OpenedSwap { device, kind, priority: priority(spec, n) })
        };
        specs.iter().enumerate().map(open).collect()
    }

    /// Opens the devices and starts the pager's threads.
    ///
    /// # Errors
    /// See [`Error`]; every message says what to do.
    pub fn build(self) -> Result<Overspill, Error> {
        check_limit(self.memory)?;
        let opened = self.open_swaps()?;
        let kinds = opened.iter().map(|swap| swap.kind).collect();
        let mut swaps = Vec::with_capacity(opened.len());
        for OpenedSwap { device, priority, .. } in opened {
            let tables = private_tables(&*device)?;
            swaps.push(PagerSwap { device, tables, priority });
        }
        let pager = Pager::start(PagerParts {
            memory: self.memory,
            reserve: RESERVE,
            swaps,
            member: MemberNo(0),
            checksum_seed: random_seed()?,
            stats: Stats::on_heap(),
            salvage: Box::new(|_| false),
            report: report_to_stderr(),
            handlers: HandlerOptions::default(),
        })?;
        Ok(Overspill {
            pager: Arc::new(pager),
            memory: self.memory,
            options: self.options,
            kinds: Arc::new(Mutex::new(LockClass::Pager, kinds)),
        })
    }
}

/// Memory larger than RAM for one program.
///
/// Regions keep it alive. A process that forks keeps its regions; its children must not touch them:
/// what is out reads as zeros there.
#[derive(Debug, Clone)]
pub struct Overspill {
    pub(crate) pager: Arc<Pager>,
    memory: Bytes,
    pub(crate) options: OpenOptions,
    /// By area number.
    pub(crate) kinds: Arc<Mutex<Vec<&'static str>>>,
}

impl Overspill {
    /// Starts with no swap area chosen and no memory allowed.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Zeroed memory of `size`, rounded up to pages.
    ///
    /// # Errors
    /// [`Error::Memory`] when the reserved address space is used up.
    pub fn region(&self, size: Bytes) -> Result<Region, Error> {
        self.region_options().build(size)
    }

    /// As [`region`](Self::region), with choices.
    pub fn region_options(&self) -> RegionOptions {
        RegionOptions::new(self.pager.clone())
    }

    /// What happened so far.
    pub fn summary(&self) -> Summary {
        Summary::of(self.memory, std::slice::from_ref(self.pager.engine().stats()))
    }

    /// The last thing that went wrong, such as a full or failing device.
    pub fn last_trouble(&self) -> Option<String> {
        self.pager.engine().last_trouble()
    }
}

/// Refuses limits that cannot work.
///
/// # Errors
/// [`Error::LimitTooSmall`], [`Error::LimitTooLarge`].
pub(crate) fn check_limit(memory: Bytes) -> Result<(), Error> {
    if memory < MEMORY_MIN {
        return Err(Error::LimitTooSmall(memory, MEMORY_MIN));
    }
    if memory > MEMORY_MAX {
        return Err(Error::LimitTooLarge(memory, MEMORY_MAX));
    }
    Ok(())
}

pub(crate) fn swaps_or_default(mut specs: Vec<SwapSpec>) -> Result<Vec<SwapSpec>, Error> {
    if specs.len() > AreaNo::MAX {
        return Err(Error::TooManyAreas(specs.len(), AreaNo::MAX));
    }
    if specs.is_empty() {
        specs.push(SwapSpec::default());
    }
    Ok(specs)
}

/// Areas without a priority are used in the order they were given, after all that have one.
pub(crate) fn priority(spec: &SwapSpec, order: usize) -> i16 {
    spec.priority.unwrap_or(-1 - order as i16)
}

/// One line for the user on stderr, by a system call: who causes it may be printing the region it has
/// touched.
pub(crate) fn report_to_stderr() -> Box<dyn Fn(&str) + Send + Sync> {
    Box::new(|message| {
        let line = format!("overspill: {message}\n");
        // Nobody to tell if that fails.
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    })
}

pub(crate) fn random_seed() -> Result<u64, Error> {
    let mut seed = [0u8; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::system("get a random seed")(e.into()))?;
    Ok(u64::from_ne_bytes(seed))
}
