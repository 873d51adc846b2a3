//! Builds a pager inside one process.

use crate::error::Error;
use crate::pager::{Pager, PagerParts, PagerSwap, memory};
use crate::region::{Region, RegionOptions};
use crate::summary::Summary;
use crate::swaps::kind_name;
use overspill_area::AreaNo;
use overspill_base::shared::Table;
use overspill_base::stats::Stats;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_base::{Bytes, PAGE_SIZE, plain};
use overspill_device::file::OpenOptions;
use overspill_device::seal::{Algorithm, Sealer, Seals};
use overspill_device::{Device, DeviceError, DeviceInfo, SwapDevice, SwapKind, SwapSpec};
use overspill_engine::Tuning;
use overspill_space::probe::best_reach;
use overspill_space::shut_pages_max;
use overspill_space::words::Reach;
use std::collections::HashSet;

/// The least memory that is useful for paging: 1024 pages.
pub const MEMORY_MIN: Bytes = Bytes(1024 * PAGE_SIZE as u64);
/// Fewest useful pages in memory.
const PAGES_MIN: u64 = 16;
/// Most pages in memory: they are counted in 32 bits, and one value is reserved.
pub(crate) const PAGES_MAX: u64 = u32::MAX as u64 - 1;
/// Smallest page, and the usual one.
pub(crate) const PAGE_LEAST: Bytes = Bytes(PAGE_SIZE as u64);
/// Largest page.
const PAGE_SIZE_MAX: Bytes = Bytes(2 << 20);
/// Address space for regions. It costs nothing until it is touched.
const RESERVE: Bytes = Bytes(1 << 40);

/// Settings of an [`Overspill`].
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) memory: Bytes,
    pub(crate) page_size: Option<Bytes>,
    reach: Option<Reach>,
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
    /// Sets the memory that all regions together may use. Required; at least 16 pages and 4 MiB.
    #[must_use]
    pub fn memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self
    }

    /// Sets the size of a page of every region: a power of two from 4 KiB to 2 MiB. It is 4 KiB if
    /// nothing is said, or as much as [`Reach::Shut`] takes. A touch of a swapped-out page reads
    /// the whole page, and eviction writes whole pages. Larger ones suit data that is used in large
    /// pieces: there are fewer faults. Memory, statistics, the rounding of sizes and ranges, and
    /// pins are in whole pages.
    ///
    /// ```
    /// use overspill::{Bytes, Overspill};
    ///
    /// let builder = Overspill::builder().memory(Bytes(8 << 20)).page_size(Bytes(64 << 10));
    /// let overspill = builder.swap("ram:64M".parse()?).build()?;
    /// let mut region = overspill.region(Bytes(32 << 20))?;
    /// region.fill(7);
    /// assert!(region.iter().all(|&byte| byte == 7));
    /// // A half of 512 pages at least had to leave.
    /// assert!((256..2048).contains(&overspill.summary().pages_out));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn page_size(mut self, size: Bytes) -> Self {
        self.page_size = Some(size);
        self
    }

    /// Sets how touches are noticed. If nothing is said it is the best way that is permitted here.
    #[must_use]
    pub fn reach(mut self, reach: Reach) -> Self {
        self.reach = Some(reach);
        self
    }

    /// Adds a swap area. Without any, an unnamed file in `$TMPDIR` or `/var/tmp` is used.
    #[must_use]
    pub fn swap(mut self, spec: SwapSpec) -> Self {
        self.swaps.push(spec);
        self
    }

    /// Sets the maximum size of swap files without a size of their own.
    #[must_use]
    pub fn swap_size(mut self, size: Bytes) -> Self {
        self.options.swap_size = Some(size);
        self
    }

    /// A pager in this process without swap areas and memory.
    pub(crate) fn new() -> Self {
        let options = OpenOptions::default();
        Self { memory: Bytes(0), page_size: None, reach: None, swaps: Vec::new(), options }
    }

    pub(crate) fn open_swaps(&self) -> Result<Vec<OpenedSwap>, Error> {
        let specs = swaps_or_default(self.swaps.clone())?;
        let open = |(n, spec): (usize, &SwapSpec)| {
            let device = open_alone(spec, &self.options)?;
            let kind = kind_name(&spec.kind);
            Ok(OpenedSwap { device, kind, priority: priority(spec, n) })
        };
        specs.iter().enumerate().map(open).collect()
    }

    /// The size of a page of regions, which is checked.
    fn page_size_for(&self, reach: Reach) -> Result<Bytes, Error> {
        let chosen = self.page_size.unwrap_or(PAGE_LEAST);
        check_pages(self.memory, chosen, PAGES_MAX)?;
        if reach != Reach::Shut {
            return Ok(chosen);
        }
        let most = shut_pages_max();
        let fits = |size: &Bytes| (self.memory.0 / size.0) as usize <= most;
        let sizes = std::iter::successors(Some(chosen), |size| Some(Bytes(2 * size.0)));
        let least = sizes.take_while(|&size| size <= PAGE_SIZE_MAX).find(fits);
        match (least, self.page_size) {
            (Some(least), None) => Ok(least),
            (Some(least), Some(chosen)) if least == chosen => Ok(chosen),
            (least, _) => Err(Error::TooManyPages(most, least.unwrap_or(PAGE_SIZE_MAX))),
        }
    }

    /// Opens the devices and starts the pager's threads.
    ///
    /// # Errors
    /// See [`Error`]; every message says what to do.
    pub fn build(self) -> Result<Overspill, Error> {
        let reach = self.reach.map_or_else(best_reach, Ok)?;
        let page_size = self.page_size_for(reach)?;
        let page_bytes = page_size.0 as usize;
        let checksum_seed = random_seed()?;
        let opened = self.open_swaps()?;
        let kinds = opened.iter().map(|swap| swap.kind).collect();
        let mut swaps = Vec::with_capacity(opened.len());
        for OpenedSwap { device, priority, .. } in opened {
            swaps.push(PagerSwap::new(device, priority, page_bytes, checksum_seed)?);
        }
        let pager = Pager::start(PagerParts {
            memory: self.memory,
            page_bytes,
            reserve: RESERVE,
            reach,
            swaps,
            checksum_seed,
            tuning: Tuning::default(),
            stats: Stats::on_heap(),
            report: report_to_stderr(),
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
/// Regions keep it alive. A process that forks keeps its regions; its children do not have them,
/// and end with SIGSEGV if they touch one: swapped-out pages would read as zeros there.
#[derive(Debug, Clone)]
pub struct Overspill {
    pub(crate) pager: Arc<Pager>,
    memory: Bytes,
    pub(crate) options: OpenOptions,
    /// Indexed by area number.
    pub(crate) kinds: Arc<Mutex<Vec<&'static str>>>,
}

impl Overspill {
    /// Starts without swap areas and memory.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Size of a page in bytes.
    pub fn page_size(&self) -> usize {
        self.pager.page_bytes()
    }

    /// Makes zeroed memory of `size`, rounded up to pages.
    ///
    /// # Errors
    /// [`Error::Memory`] if the reserved address space is used up.
    pub fn region(&self, size: Bytes) -> Result<Region, Error> {
        self.region_options().build(size)
    }

    /// As [`region`](Self::region), with options.
    pub fn region_options(&self) -> RegionOptions {
        RegionOptions::new(self.pager.clone())
    }

    /// How touches are noticed.
    pub fn reach(&self) -> Reach {
        self.pager.memory().space().reach()
    }

    /// True if a system call on memory of a region fails with EFAULT unless that is
    /// [pinned](Region::pin): only touches by the program itself are [served](Self::reach).
    pub fn needs_pins(&self) -> bool {
        self.reach() != Reach::All
    }

    /// More than this cannot be filled now, with all swap areas: an upper bound.
    pub fn room(&self) -> Bytes {
        let left = self.swaps().iter().map(|swap| swap.size.0.saturating_sub(swap.used.0)).sum();
        Bytes(self.memory.0.saturating_add(left))
    }

    /// Everything counted so far.
    pub fn summary(&self) -> Summary {
        Summary::of(self.memory, std::slice::from_ref(self.pager.engine().stats()))
    }

    /// The last error, such as a full or failing device.
    pub fn last_error(&self) -> Option<String> {
        self.pager.engine().last_error()
    }
}

/// Refuses limits that cannot work with pages of 4 KiB.
///
/// # Errors
/// [`Error::LimitTooSmall`], [`Error::LimitTooLarge`].
pub fn check_limit(memory: Bytes) -> Result<(), Error> {
    check_pages(memory, PAGE_LEAST, PAGES_MAX)
}

/// Refuses page sizes that are not supported, and limits that are too small for them, or allow more
/// than `most` pages.
///
/// # Errors
/// [`Error::PageSizeChosen`], [`Error::LimitTooSmall`], [`Error::LimitTooLarge`].
pub(crate) fn check_pages(memory: Bytes, page: Bytes, most: u64) -> Result<(), Error> {
    if !page.0.is_power_of_two() || page < PAGE_LEAST || page > PAGE_SIZE_MAX {
        return Err(Error::PageSizeChosen(page, PAGE_SIZE_MAX));
    }
    let (least, most) = (MEMORY_MIN.max(Bytes(PAGES_MIN * page.0)), Bytes(most * page.0));
    if memory < least {
        return Err(Error::LimitTooSmall(memory, least));
    }
    if memory > most {
        return Err(Error::LimitTooLarge(memory, most));
    }
    Ok(())
}

/// What a run or a process swaps to: the default place, if none is given.
///
/// # Errors
/// [`Error::TooManyAreas`], [`Error::GivenTwice`].
pub fn swaps_or_default(mut specs: Vec<SwapSpec>) -> Result<Vec<SwapSpec>, Error> {
    if specs.len() > AreaNo::MAX {
        return Err(Error::TooManyAreas(specs.len(), AreaNo::MAX));
    }
    check_given_once(&specs)?;
    if specs.is_empty() {
        specs.push(SwapSpec::default());
    }
    Ok(specs)
}

/// Refuses places of which two are one file or device. Each that names a directory gets a file of
/// its own.
///
/// # Errors
/// [`Error::GivenTwice`].
pub fn check_given_once(specs: &[SwapSpec]) -> Result<(), Error> {
    let mut places = specs.iter().filter_map(|spec| match &spec.kind {
        SwapKind::File { path, .. } | SwapKind::Block { path } if !path.is_dir() => {
            Some(path.canonicalize().unwrap_or_else(|_| path.clone()))
        }
        _ => None,
    });
    let mut seen = HashSet::new();
    let twice = places.find(|path| !seen.insert(path.clone()));
    twice.map_or(Ok(()), |path| Err(Error::GivenTwice(path.display().to_string())))
}

/// Opens a device for this process alone.
pub(crate) fn open_alone(
    spec: &SwapSpec,
    options: &OpenOptions,
) -> Result<Arc<dyn SwapDevice>, Error> {
    if spec.is_served() {
        return Err(DeviceError::OnlyInRuns { name: spec.kind.to_string() }.into());
    }
    let device = Device::open(spec, options)?;
    let sealer = match device.attachment().encrypted {
        true => Some(sealer_alone(device.info())?),
        false => None,
    };
    Ok(device.shared(sealer))
}

fn sealer_alone(info: &DeviceInfo) -> Result<Sealer, Error> {
    let words = info.slots_max as usize * Seals::WORDS;
    let seals = Seals::new(Table::private(words).map_err(memory)?);
    let sealer = Sealer::new(Algorithm::of_this_machine(), seals);
    sealer.map_err(|errno| Error::system("make an encryption key")(errno.into()))
}

/// Areas without a priority are used in the order given, after all that have one.
pub(crate) fn priority(spec: &SwapSpec, order: usize) -> i16 {
    spec.priority.unwrap_or(-1 - order as i16)
}

/// Writes one line for the user to stderr, by a system call: the thread that causes it may be
/// printing the region it has touched.
pub(crate) fn report_to_stderr() -> Box<dyn Fn(&str) + Send + Sync> {
    Box::new(|message| {
        let line = format!("overspill: {}\n", plain(message));
        // If that fails, there is nowhere to report it.
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    })
}

pub(crate) fn random_seed() -> Result<u64, Error> {
    let mut seed = [0u8; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::system("get a random seed")(e.into()))?;
    Ok(u64::from_ne_bytes(seed))
}
