//! The swap areas of a keeper.
//!
//! Owns: opening what the user named, its keys, and what is known of each area.
//! Invariant: keys are nowhere but in this process, and in no core dump of it.
//! Not here: slots (`area`), devices (`device`).

use crate::words::AreaState;
use overspill_area::{AreaNo, AreaTables, MemberNo};
use overspill_base::Bytes;
use overspill_base::shared::Table;
use overspill_base::sync::Arc;
use overspill_device::any::{self, Device};
use overspill_device::file::OpenOptions;
use overspill_device::seal::{Algorithm, Keys, Sealer, Seals};
use overspill_device::{DeviceError, SwapKind, SwapSpec};
use overspill_engine::{Swap, private_tables};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::rand::{GetRandomFlags, getrandom};

/// Why there is no swap.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SwapError {
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What this way cannot do yet.
    #[error(
        "{0}: a place on another machine, with serve=apart or with a mirror cannot be had with \
         --way keeper yet; give file:, block:, compressed: or ram:"
    )]
    Served(String),
    /// More than there can be.
    #[error("--swap is given {0} times; {max} are the most", max = AreaNo::MAX)]
    TooMany(usize),
    /// The kernel.
    #[error("cannot {0}: {1}; look at the limits of this session (`ulimit -a`)")]
    Kernel(&'static str, Errno),
    /// Memory.
    #[error("no memory for the tables of {0}: {1}; give less swap")]
    Tables(String, std::io::Error),
}

/// An open area.
#[derive(Debug)]
struct OpenSwap {
    device: Device,
    tables: AreaTables,
    /// A file of the user's that was empty, and is to be so again.
    was_empty: Option<OwnedFd>,
}

/// All areas.
#[derive(Debug)]
pub(crate) struct Swaps(Vec<OpenSwap>);

impl Swaps {
    /// Opens the places; without any the default one. Returns them as the engine takes them, too.
    ///
    /// # Errors
    /// [`SwapError`].
    pub(crate) fn open(
        specs: &[SwapSpec],
        options: &OpenOptions,
    ) -> Result<(Self, Vec<Swap>), SwapError> {
        let default = [SwapSpec::from(SwapKind::Default)];
        let specs = if specs.is_empty() { &default } else { specs };
        if specs.len() > AreaNo::MAX {
            return Err(SwapError::TooMany(specs.len()));
        }
        let keys = new_keys().map_err(|errno| SwapError::Kernel("make encryption keys", errno))?;
        let (mut opened, mut swaps) = (Vec::new(), Vec::new());
        for (number, spec) in specs.iter().enumerate() {
            let (open, swap) = open(number, spec, options, &keys)?;
            opened.push(open);
            swaps.push(swap);
        }
        Ok((Self(opened), swaps))
    }

    /// What is known of each.
    pub(crate) fn states(&self) -> impl Iterator<Item = AreaState> {
        self.0.iter().map(OpenSwap::state)
    }

    /// Empties the files that were empty. Nobody may swap to them any more.
    pub(crate) fn empty_files(&self) {
        for file in self.0.iter().filter_map(|open| open.was_empty.as_ref()) {
            // It is the user's file: what cannot be taken away is left there.
            let _ = ftruncate(file, 0);
        }
    }
}

impl OpenSwap {
    fn state(&self) -> AreaState {
        let info = self.device.info();
        // Slots are counted before they are claimed: more than there are, for a moment.
        let bytes = |slots: u32| Bytes::of_pages(slots.into()).min(info.capacity());
        AreaState {
            name: info.name.clone(),
            notes: info.notes.clone(),
            capacity: info.capacity(),
            used: bytes(self.tables.used()),
            used_most: bytes(self.tables.used_most()),
            compressed: self.device.usage(),
        }
    }
}

/// The device is opened twice: once for what is known of it, once for the engine.
fn open(
    number: usize,
    spec: &SwapSpec,
    options: &OpenOptions,
    keys: &Keys,
) -> Result<(OpenSwap, Swap), SwapError> {
    let cannot = |what| move |errno| SwapError::Kernel(what, errno);
    if spec.is_served() || spec.mirror.is_some() {
        return Err(SwapError::Served(spec.kind.to_string()));
    }
    let device = Device::open(spec, options)?;
    let was_empty = device.kept_if_empty().map_err(cannot("keep a file open"))?;
    let descriptor = device.descriptor().expect("it is of this machine");
    let descriptor = fcntl_dupfd_cloexec(descriptor, 3).map_err(cannot("keep a file open"))?;
    let name = || device.info().name.clone();
    let sealer = match device.attachment().encrypted {
        true => Some(sealer(number, &device, keys).map_err(|e| SwapError::Tables(name(), e))?),
        false => None,
    };
    let attachment = device.attachment().clone();
    let shared = any::attach(descriptor, attachment, sealer, Arc::new(|| 0))?;
    let tables = private_tables(&*shared).map_err(|error| SwapError::Tables(name(), error))?;
    let seed = seed().map_err(cannot("get a random seed"))?;
    // Those without a priority are used in their order, after all that have one.
    let priority = spec.priority.unwrap_or(-1 - number as i16);
    let area = AreaNo(number as u8);
    let swap = Swap::join(area, shared, tables.clone(), (priority, MemberNo(0), seed));
    Ok((OpenSwap { device, tables, was_empty }, swap))
}

fn sealer(number: usize, device: &Device, keys: &Keys) -> std::io::Result<Sealer> {
    let words = device.info().slots_max as usize * Seals::WORDS;
    let seals = Seals::new(Table::private(words)?);
    Ok(Sealer::new(Algorithm::of_this_machine(), keys.clone(), number, seals))
}

/// The keys live as long as this process.
fn new_keys() -> Result<Keys, Errno> {
    let file = memfd_create("overspill-keys", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, Keys::FILE_BYTES as u64)?;
    Keys::draw(&file)
}

fn seed() -> Result<u64, Errno> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(seed))
}
