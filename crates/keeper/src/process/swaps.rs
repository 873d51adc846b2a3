//! The swap areas of a keeper.
//!
//! Owns: the areas of places that are open, their keys, and what is known of each.
//! Invariants: keys are nowhere but in this process, and in no core dump of it. An area that is
//! swapped off is known until nobody has its device open any more.
//! Not here: opening places (`places`), slots (`area`), devices (`device`).

use crate::wire::message::AreaState;
use crate::wire::places::{OpenBy, OpenPlace};
use overspill_area::{AreaNo, SwapArea, TooManyAreas};
use overspill_base::Bytes;
use overspill_base::shared::Table;
use overspill_base::sync::Arc;
use overspill_device::any::{self, Device};
use overspill_device::compressed::Usage;
use overspill_device::file::Attachment;
use overspill_device::seal::{Algorithm, Sealer, Seals};
use overspill_device::served::apart::{Apart, Report};
use overspill_device::{DeviceError, DeviceInfo, SwapDevice, SwapKind, SwapSpec};
use overspill_engine::{Engine, Swap, SwapoffError, SwaponError, slot_table};
use rustix::fd::OwnedFd;
use rustix::fs::ftruncate;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::rand::{GetRandomFlags, getrandom};
use std::path::Path;
use std::sync::Weak;

/// Why there is no swap.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SwapError {
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engine has no more.
    #[error(transparent)]
    Swapon(#[from] SwaponError),
    /// There is no room for what is out.
    #[error(transparent)]
    Swapoff(#[from] SwapoffError),
    /// Nothing has the name.
    #[error("no swap area is called `{0}`: there are {1}")]
    NoSuch(String, String),
    /// The kernel.
    #[error("cannot {0}: {1}; look at the limits of this session (`ulimit -a`)")]
    Kernel(&'static str, Errno),
    /// Memory.
    #[error("no memory for the tables of {0}: {1}; give less swap, or raise `ulimit -v`")]
    Tables(String, std::io::Error),
}

/// An open area.
#[derive(Debug)]
struct OpenSwap {
    spec: SwapSpec,
    place: Place,
    /// A file of the user's that was empty, and is to be so again.
    was_empty: Option<OwnedFd>,
    /// What the engine's threads have open.
    in_use: Weak<dyn SwapDevice>,
    is_leaving: bool,
}

/// Where an area is.
#[derive(Debug)]
enum Place {
    /// Open here.
    Here(Device),
    /// A process of its own has it open.
    Apart(Apart),
}

/// All areas.
#[derive(Debug)]
pub(crate) struct Swaps {
    /// By their numbers; none for those that are gone.
    open: Vec<Option<OpenSwap>>,
}

impl Swaps {
    /// Takes over the places. Returns them as the engine takes them, too.
    ///
    /// # Errors
    /// [`SwapError`].
    pub(crate) fn new(places: Vec<OpenPlace>) -> Result<(Self, Vec<Swap>), SwapError> {
        if places.len() > AreaNo::MAX {
            return Err(SwaponError::TooMany(TooManyAreas).into());
        }
        let (mut open, mut swaps) = (Vec::new(), Vec::new());
        for (number, place) in places.into_iter().enumerate() {
            let (opened, swap) = take(number, place)?;
            open.push(Some(opened));
            swaps.push(swap);
        }
        Ok((Self { open }, swaps))
    }

    /// Adds a place; returns its area. What is refused changes nothing.
    ///
    /// # Errors
    /// [`SwapError`].
    pub(crate) fn add(
        &mut self,
        place: OpenPlace,
        (engine, report): (&Engine, Report),
    ) -> Result<AreaState, SwapError> {
        let number = self.open.len();
        if number == AreaNo::MAX {
            return Err(SwaponError::TooMany(TooManyAreas).into());
        }
        let (mut opened, swap) = take(number, place)?;
        opened.place.attend(report)?;
        engine.swapon(|_| swap)?;
        let state = opened.state(number, Some(engine));
        self.open.push(Some(opened));
        Ok(state)
    }

    /// Attends to the processes that have places open, which takes a thread for each: before pages
    /// go there. `report` takes a line if one ends.
    ///
    /// # Errors
    /// No thread.
    pub(crate) fn attend(&mut self, report: impl Fn() -> Report) -> Result<(), DeviceError> {
        self.open.iter_mut().flatten().try_for_each(|open| open.place.attend(report()))
    }

    /// Has the pages of an area go elsewhere, of which `frames` may be in memory; returns it.
    ///
    /// # Errors
    /// [`SwapError::NoSuch`], [`SwapError::Swapoff`].
    pub(crate) fn remove(
        &mut self,
        name: &str,
        (engine, frames): (&Engine, usize),
    ) -> Result<AreaState, SwapError> {
        let number = self.number_of(name)?;
        self.check_room_without(number, (engine, frames))?;
        engine.start_swapoff(AreaNo(number as u8));
        let open = self.open[number].as_mut().expect("it was just found");
        open.is_leaving = true;
        Ok(open.state(number, Some(engine)))
    }

    fn number_of(&self, name: &str) -> Result<usize, SwapError> {
        let on = || self.on().filter(|(_, open)| !open.is_leaving);
        let named = on().filter(|&(number, open)| open.is_called(name, number)).last();
        let names = || on().map(|(_, open)| open.place.info().name).collect::<Vec<_>>();
        let found = named.map(|(number, _)| number);
        found.ok_or_else(|| SwapError::NoSuch(name.to_owned(), names().join(", ")))
    }

    /// Refuses a swapoff for which there is no room even if every page in memory has a copy in
    /// swap.
    fn check_room_without(
        &self,
        area: usize,
        (engine, frames): (&Engine, usize),
    ) -> Result<(), SwapoffError> {
        let (mut pages, mut room, mut name) = (0, frames, String::new());
        for (number, open) in self.on() {
            let used = area_of(engine, number).used_slots() as usize;
            if number == area {
                (pages, name) = (used, open.place.info().name);
            } else if !open.is_leaving {
                let all = open.place.info().capacity().pages_floor() as usize;
                room += all.saturating_sub(used);
            }
        }
        if pages <= room { Ok(()) } else { Err(SwapoffError::NoRoom { name, pages, room }) }
    }

    /// How many areas have queues with rings.
    pub(crate) fn with_rings(&self) -> usize {
        let has_rings =
            |open: &OpenSwap| matches!(&open.place, Place::Here(device) if device.has_rings());
        self.on().filter(|(_, open)| has_rings(open)).count()
    }

    /// True if areas are leaving.
    pub(crate) fn are_leaving(&self) -> bool {
        self.on().any(|(_, open)| open.is_leaving)
    }

    /// Closes the areas that have left, and of which no thread has the device any more.
    pub(crate) fn close_gone(&mut self) {
        for place in &mut self.open {
            place.take_if(|open| open.is_gone()).iter().for_each(OpenSwap::empty_file);
        }
    }

    fn on(&self) -> impl Iterator<Item = (usize, &OpenSwap)> {
        self.open.iter().enumerate().filter_map(|(number, open)| Some((number, open.as_ref()?)))
    }

    /// What is known of each. Before there is an engine, nothing is on them.
    pub(crate) fn states(&self, engine: Option<&Engine>) -> impl Iterator<Item = AreaState> {
        self.on().map(move |(number, open)| open.state(number, engine))
    }

    /// Empties the files that were empty. Nobody may swap to them any more.
    pub(crate) fn empty_files(&self) {
        self.on().for_each(|(_, open)| open.empty_file());
    }
}

impl OpenSwap {
    /// True if it is the area of a name, path or number.
    fn is_called(&self, name: &str, number: usize) -> bool {
        let is_there = match &self.spec.kind {
            SwapKind::File { path, .. } | SwapKind::Block { path } => path == Path::new(name),
            _ => false,
        };
        is_there || self.place.info().name == name || name.parse() == Ok(number)
    }

    fn is_gone(&self) -> bool {
        self.is_leaving && self.in_use.strong_count() == 0
    }

    fn empty_file(&self) {
        if let Some(file) = &self.was_empty {
            // It is the user's file: what cannot be taken away is left there.
            let _ = ftruncate(file, 0);
        }
    }

    fn state(&self, number: usize, engine: Option<&Engine>) -> AreaState {
        let area = engine.map(|engine| area_of(engine, number));
        let info = self.place.info();
        // Slots are counted before they are claimed: more than there are, for a moment.
        let bytes = |slots: Option<u32>| {
            Bytes::of_pages(slots.unwrap_or_default().into()).min(info.capacity())
        };
        AreaState {
            number,
            leaving: self.is_leaving,
            capacity: info.capacity(),
            used: bytes(area.map(SwapArea::used_slots)),
            used_most: bytes(area.map(SwapArea::used_most_slots)),
            compressed: self.place.usage(),
            name: info.name,
            notes: info.notes,
        }
    }
}

fn area_of(engine: &Engine, number: usize) -> &SwapArea {
    engine.areas().get(AreaNo(number as u8))
}

impl Place {
    fn of(by: OpenBy) -> Result<Self, DeviceError> {
        Ok(match by {
            OpenBy::Process(started) => Self::Apart(started.into()),
            OpenBy::Descriptor(descriptor, attachment) => {
                Self::Here(Device::attach(descriptor, attachment)?)
            }
        })
    }

    /// Attends to the process that has it open, if there is one.
    fn attend(&mut self, report: Report) -> Result<(), DeviceError> {
        match self {
            Self::Here(_) => Ok(()),
            Self::Apart(apart) => apart.attend(report),
        }
    }

    fn attachment(&self) -> &Attachment {
        match self {
            Self::Here(device) => device.attachment(),
            Self::Apart(apart) => apart.attachment(),
        }
    }

    fn info(&self) -> DeviceInfo {
        match self {
            Self::Here(device) => device.info().clone(),
            Self::Apart(apart) => apart.attachment().info(),
        }
    }

    fn usage(&self) -> Option<Usage> {
        match self {
            Self::Here(device) => device.usage(),
            Self::Apart(_) => None,
        }
    }

    /// Who has a file of the user's open apart empties it.
    fn kept_if_empty(&self) -> Result<Option<OwnedFd>, Errno> {
        match self {
            Self::Here(device) => device.kept_if_empty(),
            Self::Apart(_) => Ok(None),
        }
    }

    /// What the engine has it by.
    fn descriptor(&self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Here(device) => {
                fcntl_dupfd_cloexec(device.descriptor().expect("it is of this machine"), 3)
            }
            Self::Apart(apart) => apart.socket(),
        }
    }
}

/// The device is attached to twice: once for what is known of it, once for the engine.
fn take(number: usize, place: OpenPlace) -> Result<(OpenSwap, Swap), SwapError> {
    let cannot = |what| move |errno| SwapError::Kernel(what, errno);
    let OpenPlace { spec, by, .. } = place;
    let place = Place::of(by)?;
    let was_empty = place.kept_if_empty().map_err(cannot("keep a file open"))?;
    let descriptor = place.descriptor().map_err(cannot("keep a file open"))?;
    let attachment = place.attachment().clone();
    let no_tables = |error| SwapError::Tables(place.info().name, error);
    let sealer = match attachment.encrypted {
        true => Some(sealer(&attachment).map_err(no_tables)?),
        false => None,
    };
    let shared = any::attach(descriptor, attachment, sealer)?;
    let slots = slot_table(&*shared).map_err(no_tables)?;
    let seed = seed().map_err(cannot("get a random seed"))?;
    // Those without a priority are used in their order, after all that have one.
    let priority = spec.priority.unwrap_or(-1 - number as i16);
    let area = AreaNo(number as u8);
    let in_use = Arc::downgrade(&shared);
    let swap = Swap::new(area, shared, slots, (priority, seed));
    let open = OpenSwap { spec, place, was_empty, in_use, is_leaving: false };
    Ok((open, swap))
}

fn sealer(attachment: &Attachment) -> std::io::Result<Sealer> {
    let words = attachment.info().slots_max as usize * Seals::WORDS;
    let seals = Seals::new(Table::private(words)?);
    Ok(Sealer::new(Algorithm::of_this_machine(), seals)?)
}

fn seed() -> Result<u64, Errno> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(seed))
}
