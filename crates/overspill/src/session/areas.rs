//! The swap areas of a run: those that it began with, and those added since.
//!
//! Owns: what every process must know of an area, and where its tables are: for the first ones in
//! the layout of the session's file, for others in an *annex* at its end, one for each. And the
//! numbers of the descriptors by which they are reached.
//! Invariants: areas come in one order for all processes, so an area has the same number in each,
//! and a process that cannot take one takes none after it. An area is announced when its annex and
//! its device can be had. What a fork copies is not changed meanwhile: a process takes areas under
//! its gate.
//!
//! ```text
//! annex: length of the JSON, JSON of a SharedDevice; the area's tables, on pages of their own
//! ```
//!
//! Orderings: an annex's place is stored last (Release) and read first (Acquire).
//! Not here: who opens devices (`supervisor`).
//! Rejected: sending descriptors to the processes, which would have to be read from a socket that
//! they only write to, in order with what a fork is given. They ask for them as a forked child
//! does.

use super::channel::{Address, Channel, Secret};
use super::layout::AreaLayout;
use super::{Session, SharedDevice, read_json, write_json};
use crate::error::Error;
use crate::pager::{Pager, PagerSwap};
use overspill_area::{AreaNo, AreaTables, MEMBERS_MAX, MemberNo};
use overspill_base::shared::{Mapping, Table};
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use overspill_base::sync::{Arc, AtomicU32, AtomicU64, LockClass, Mutex};
use overspill_device::file::{Attachment, FileDevice};
use overspill_device::seal::{Algorithm, Sealer, Seals};
use overspill_device::{SwapDevice, any};
use rustix::fd::OwnedFd;
use rustix::io::DupFlags;
use std::sync::OnceLock;

/// Areas that can be added to a run.
pub(super) const ADDED_MAX: usize = 8;

/// An area, as far as this process has looked at it.
#[derive(Debug)]
pub(super) struct RunArea {
    mapping: Arc<Mapping>,
    layout: AreaLayout,
    pub(super) device: SharedDevice,
}

/// All that this process knows of areas.
#[derive(Debug)]
pub(super) struct RunAreas {
    /// By number.
    known: Box<[OnceLock<RunArea>]>,
    /// Those that this process swaps to: the lowest numbers.
    taken: AtomicU32,
    /// Those that it has left: a bit for each.
    pub(super) left: AtomicU32,
    /// The number of areas there were when one could not be taken.
    given_up: AtomicU32,
    /// For areas to come, descriptors that keep their numbers free.
    reserved: Mutex<Vec<Option<OwnedFd>>>,
    /// The devices of areas that were taken and not left: as long as one is here, its descriptor's
    /// number is no other's, whoever else has dropped it.
    devices: Mutex<Vec<(usize, Arc<dyn SwapDevice>)>>,
}

/// Tables that no process knows of yet.
#[derive(Debug)]
pub(super) struct Annex {
    number: usize,
    start: usize,
}

impl RunAreas {
    pub(super) fn new(mapping: &Arc<Mapping>, first: &[AreaLayout], of: &[SharedDevice]) -> Self {
        let known: Box<[_]> = (0..AreaNo::MAX).map(|_| OnceLock::new()).collect();
        for (place, (layout, device)) in known.iter().zip(first.iter().zip(of)) {
            let (mapping, layout, device) = (mapping.clone(), layout.clone(), device.clone());
            place.set(RunArea { mapping, layout, device }).expect("it is new");
        }
        Self {
            known,
            taken: AtomicU32::new(0),
            left: AtomicU32::new(0),
            given_up: AtomicU32::new(0),
            reserved: Mutex::new(LockClass::Control, Vec::new()),
            devices: Mutex::new(LockClass::Control, Vec::new()),
        }
    }

    fn keep(&self, number: usize, device: &Arc<dyn SwapDevice>) {
        self.devices.lock().push((number, device.clone()));
    }

    /// Drops the device of an area, of which the descriptor leads nowhere by now.
    pub(super) fn drop_device(&self, number: usize) {
        let mut devices = self.devices.lock();
        let at = devices.iter().position(|&(of, _)| of == number);
        let gone = at.map(|at| devices.swap_remove(at));
        drop(devices);
        drop(gone);
    }

    pub(super) fn reserve(&self, descriptors: Vec<OwnedFd>) {
        *self.reserved.lock() = descriptors.into_iter().map(Some).collect();
    }
}

impl RunArea {
    pub(super) fn tables(&self) -> AreaTables {
        let area = &self.layout;
        let holds = |member: usize| {
            let offset = area.holds + member * area.hold_words() * 8;
            Table::within(&self.mapping, offset, area.hold_words())
        };
        AreaTables {
            slots_max: area.slots_max,
            slots: Table::within(&self.mapping, area.slots, area.slot_words()),
            owners: Table::within(&self.mapping, area.owners, area.clusters()),
            returned: Table::within(&self.mapping, area.returned, area.clusters()),
            counters: Table::within(&self.mapping, area.counters, AreaTables::COUNTERS),
            holds: (0..MEMBERS_MAX).map(holds).collect(),
        }
    }

    /// Makes its tables those of an empty area.
    pub(super) fn format(&self) {
        let reserved = &self.device.attachment.reserved;
        let reserved: Vec<_> = reserved.iter().map(|&slot| overspill_base::Slot(slot)).collect();
        self.tables().format(&reserved);
    }
}

impl Session {
    /// Where the annexes are, in the order of the areas that were added; 0 for those to come.
    fn annexes(&self) -> Table<AtomicU64> {
        self.table(self.layout.annexes, ADDED_MAX)
    }

    fn first_areas(&self) -> usize {
        self.settings.devices.len()
    }

    /// The number of areas the run has by now.
    pub(super) fn areas(&self) -> usize {
        let annexes = self.annexes();
        let added = annexes.iter().take_while(|annex| annex.load(Acquire) != 0).count();
        self.first_areas() + added
    }

    /// An area that the run has.
    ///
    /// # Errors
    /// [`Error::Session`] if it was added and its tables cannot be mapped.
    pub(super) fn area(&self, number: usize) -> Result<&RunArea, Error> {
        let place = &self.run_areas.known[number];
        if let Some(area) = place.get() {
            return Ok(area);
        }
        let start = self.annexes()[number - self.first_areas()].load(Acquire) as usize;
        let device: SharedDevice = read_json(&self.file, start)?;
        let (layout, end) = AreaLayout::in_annex(&device, start);
        let mapping = Arc::new(self.map_up_to(end)?);
        // Another thread may have been faster.
        Ok(place.get_or_init(|| RunArea { mapping, layout, device }))
    }

    /// Refuses an area that no process could take.
    pub(super) fn check_room_for_area(&self) -> Result<(), Error> {
        let number = self.areas();
        let fits = number - self.first_areas() < ADDED_MAX && number < AreaNo::MAX;
        if fits { Ok(()) } else { Err(Error::TooManyAdded) }
    }

    /// Makes the tables of another area, which is to be [announced](Self::announce). Only the
    /// supervisor, one at a time.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub(super) fn add_area(&self, device: &SharedDevice) -> Result<Annex, Error> {
        let number = self.areas();
        let stat = rustix::fs::fstat(&self.file).map_err(Error::session("look at"))?;
        let start = stat.st_size as usize;
        let (layout, end) = AreaLayout::in_annex(device, start);
        rustix::fs::ftruncate(&self.file, end as u64).map_err(Error::session("enlarge"))?;
        write_json(&self.file, start, device)?;
        let mapping = Arc::new(self.map_up_to(end)?);
        let area = RunArea { mapping, layout, device: device.clone() };
        area.format();
        self.run_areas.known[number].set(area).expect("areas come in order, once");
        Ok(Annex { number, start })
    }

    /// Tells all processes of an area that was added: they take it soon.
    pub(super) fn announce(&self, Annex { number, start }: Annex) {
        self.annexes()[number - self.first_areas()].store(start as u64, Release);
        self.tell_of_areas();
    }

    /// Wakes all processes, so that they look what there is to take or to leave.
    pub(super) fn tell_of_areas(&self) {
        let book = self.book();
        self.pagers().for_each(|(member, _)| book.ring(member));
    }

    /// What encrypts the pages of an area, if they are.
    fn sealer(&self, number: usize, area: &RunArea) -> Option<Sealer> {
        let words = area.layout.seal_words;
        (words > 0).then(|| {
            let seals = Seals::new(Table::within(&area.mapping, area.layout.seals, words));
            Sealer::new(Algorithm::of_this_machine(), self.keys.keys.clone(), number, seals)
        })
    }

    /// The device of an area for this process, reached through `descriptor`.
    pub(super) fn attach(
        self: &Arc<Self>,
        number: usize,
        descriptor: OwnedFd,
    ) -> Result<PagerSwap, Error> {
        let (area, session) = (self.area(number)?, self.clone());
        let attachment = area.device.attachment.clone();
        let (tables, priority) = (area.tables(), area.device.priority);
        let device = if self.is_leaving(number) {
            // It keeps its number, and nothing is ever read or written: the descriptor may be any.
            let nothing =
                Attachment { algorithm: None, encrypted: false, served: false, ..attachment };
            Arc::new(FileDevice::attach(descriptor, nothing)?)
        } else {
            let identity = Arc::new(move || session.own.load(Acquire));
            any::attach(descriptor, attachment, self.sealer(number, area), identity)?
        };
        self.run_areas.keep(number, &device);
        Ok(PagerSwap { device, tables, priority })
    }

    /// For each member the number of areas that it has taken.
    fn taken(&self) -> Table<AtomicU32> {
        self.table(self.layout.areas_taken, MEMBERS_MAX)
    }

    pub(super) fn taken_by(&self, member: MemberNo) -> usize {
        self.taken()[member.0 as usize].load(SeqCst) as usize
    }

    /// Notes that `member` takes so many areas: before it looks whether they are leaving.
    pub(super) fn note_taking(&self, member: MemberNo, areas: usize) {
        self.taken()[member.0 as usize].store(areas as u32, SeqCst);
    }

    /// Notes that this process, which is `member`, has taken so many areas.
    pub(super) fn note_taken(&self, member: MemberNo, areas: usize) {
        self.note_taking(member, areas);
        self.run_areas.taken.store(areas as u32, Release);
    }

    /// True if this process has areas to take.
    pub(super) fn has_new_areas(&self) -> bool {
        let own = &self.run_areas;
        let seen = own.taken.load(Acquire).max(own.given_up.load(Relaxed));
        self.areas() > seen as usize
    }

    /// The number of areas this process swaps to.
    pub fn areas_taken(&self) -> u32 {
        self.run_areas.taken.load(Acquire)
    }

    /// Has this process swap to the areas that were added. Not during a fork.
    ///
    /// # Errors
    /// [`Error::Session`], [`Error::Device`], [`Error::Swapon`]: it does without them from now on.
    pub fn take_areas(self: &Arc<Self>, pager: &Pager, address: &Address) -> Result<(), Error> {
        let areas = self.areas();
        let taken = (self.areas_taken() as usize..areas)
            .try_for_each(|number| self.take_area(number, pager, address));
        if taken.is_err() {
            self.run_areas.given_up.store(areas as u32, Relaxed);
        }
        taken
    }

    fn take_area(
        self: &Arc<Self>,
        number: usize,
        pager: &Pager,
        address: &Address,
    ) -> Result<(), Error> {
        let member = MemberNo(self.own.load(Acquire));
        self.note_taking(member, number + 1);
        let descriptor = self.descriptor_of(number, address);
        let taken = descriptor
            .and_then(|descriptor| self.attach(number, descriptor))
            .and_then(|swap| pager.swapon(swap));
        self.note_taken(member, number + usize::from(taken.is_ok()));
        taken
    }

    /// Asks the supervisor for an area's descriptor, and gives it the number that it has in every
    /// process.
    fn descriptor_of(&self, number: usize, address: &Address) -> Result<OwnedFd, Error> {
        let devices = Channel::devices(address, Secret(self.settings.fork_secret))?;
        let fresh = devices.into_iter().nth(number);
        let mut reserved = self.run_areas.reserved.lock();
        let place = reserved.get_mut(number - self.first_areas()).and_then(Option::take);
        let (fresh, mut place) = fresh.zip(place).ok_or_else(|| Error::Session {
            action: "receive",
            reason: "no descriptor came".into(),
        })?;
        rustix::io::dup3(&fresh, &mut place, DupFlags::CLOEXEC)
            .map_err(Error::session("number the descriptors of"))?;
        Ok(place)
    }

    fn map_up_to(&self, end: usize) -> Result<Mapping, Error> {
        Mapping::shared(&self.file, end).map_err(|errno| Error::Session {
            action: "map",
            reason: format!("{} of it: {errno}", overspill_base::Bytes(end as u64)),
        })
    }
}
