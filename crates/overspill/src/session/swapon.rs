//! Swap that is added to a run that goes on, or taken away.
//!
//! Owns: the places that a run swaps to, as the user named them, and the files among them that were
//! empty.
//! Invariants: what is refused changes nothing, and leaves no file behind. What is taken away is
//! open until no process has a page there, however long that takes.
//! Not here: how the processes get to an area ([`areas`](super::areas)) and leave it
//! ([`leaving`](super::leaving)).

use super::allowed::check_added;
use super::offer::{Offer, Offers, Opened};
use super::{Session, SharedDevice};
use crate::builder::priority;
use crate::error::Error;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_device::file::OpenOptions;
use overspill_device::served::apart;
use overspill_device::{Device, SwapKind, SwapSpec};
use overspill_engine::SwapoffError;
use overspill_space::with_signals_blocked;
use rustix::fd::OwnedFd;
use rustix::fs::ftruncate;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How places are opened for a run.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    /// The program that opens places which no process of the run may have open.
    pub(super) server: PathBuf,
    pub(super) options: OpenOptions,
    /// Takes lines about what happens to connections.
    pub(super) report: fn(&str),
}

impl Opening {
    /// Opens a place. Blocks on the file system or the network.
    pub(super) fn open(&self, spec: &SwapSpec) -> Result<Opened, Error> {
        if spec.is_served() {
            return Ok(Opened::Apart(apart::start(&self.server, spec, &self.options)?));
        }
        Ok(Opened::Here(Box::new(Device::open(spec, &self.options)?)))
    }
}

/// The swap of a run.
#[derive(Debug)]
pub struct RunSwaps {
    opening: Opening,
    /// What the run was started with.
    started_with: Vec<SwapSpec>,
    session: Arc<Session>,
    offers: Arc<Offers>,
    /// By the numbers of their areas; none for those that are gone.
    places: Mutex<Vec<Option<Place>>>,
}

#[derive(Debug)]
struct Place {
    spec: SwapSpec,
    /// The user's file, if it was empty.
    was_empty: Option<OwnedFd>,
}

impl Place {
    /// True if it is at a path.
    fn is_at(&self, name: &str) -> bool {
        match &self.spec.kind {
            SwapKind::File { path, .. } | SwapKind::Block { path } => path == Path::new(name),
            _ => false,
        }
    }

    /// Empties its file, if it was empty, when nobody swaps to it.
    fn empty_again(self) {
        self.was_empty.iter().for_each(|file| {
            let _ = ftruncate(file, 0);
        });
    }
}

/// Between two looks whether all processes have left an area.
const GLANCE: Duration = Duration::from_millis(20);

impl RunSwaps {
    pub(super) fn new(
        opening: Opening,
        session: Arc<Session>,
        offers: Arc<Offers>,
        specs: Vec<SwapSpec>,
        were_empty: Vec<Option<OwnedFd>>,
    ) -> Self {
        // What was forced at the start were other places.
        let options = OpenOptions { force: false, ..opening.options };
        let opening = Opening { options, ..opening };
        let started_with = specs.clone();
        let places = specs.into_iter().zip(were_empty);
        let places = places.map(|(spec, was_empty)| Some(Place { spec, was_empty })).collect();
        Self {
            opening,
            started_with,
            session,
            offers,
            places: Mutex::new(LockClass::Pager, places),
        }
    }

    /// Adds a swap area, which the processes of the run use soon. Without a priority it is used
    /// after all areas added before. Blocks for opening it. Returns its name.
    ///
    /// # Errors
    /// [`Error::NotAllowed`], [`Error::GivenTwice`], [`Error::Device`], [`Error::TooManyAdded`],
    /// [`Error::Session`]; then nothing was changed.
    pub fn add(&self, spec: &SwapSpec) -> Result<String, Error> {
        let mut places = self.places.lock();
        let on = places.iter().flatten().map(|place| &place.spec);
        check_added(spec, &self.started_with, on)?;
        self.session.check_room_for_area()?;
        let opened = self.opening.open(spec)?;
        let was_empty = opened.kept_if_empty()?;
        let attachment = opened.attachment().clone();
        let (priority, name) = (priority(spec, places.len()), attachment.name.clone());
        let offer = Offer::new(opened, &self.session, self.opening.report)?;
        let annex = self.session.add_area(&SharedDevice { attachment, priority })?;
        self.offers.push(offer);
        self.session.announce(annex);
        places.push(Some(Place { spec: spec.clone(), was_empty }));
        Ok(name)
    }

    /// Has all processes move what they have on a place elsewhere, after which it is closed;
    /// returns the number of its area. `name` is the device's, or its path, or the number; if
    /// several have it, the one added last is meant. Does not wait: it goes on as there is room.
    ///
    /// # Errors
    /// [`Error::NoSuchSwap`], [`Error::Swapoff`] if there is no room now; nothing was changed.
    pub fn remove(self: &Arc<Self>, name: &str) -> Result<usize, Error> {
        let number = self.number_of(name)?;
        self.check_room_without(number)?;
        self.session.set_leaving(number);
        let swaps = self.clone();
        let builder = std::thread::Builder::new().name("ovs-swapoff".into());
        with_signals_blocked(|| builder.spawn(move || swaps.close_when_left(number)))
            .map_err(Error::system("start the thread that waits for the swapoff"))?;
        Ok(number)
    }

    fn number_of(&self, name: &str) -> Result<usize, Error> {
        let places = self.places.lock();
        let stay = |number: &usize| !self.session.is_leaving(*number);
        let open: Vec<_> = self.offers.open().filter(|(number, _)| stay(number)).collect();
        let is_called = |&(number, offer): &(usize, &str)| {
            let is_there = places[number].as_ref().is_some_and(|place| place.is_at(name));
            offer == name || name.parse() == Ok(number) || is_there
        };
        let named: Vec<_> = open.iter().map(|(n, offer)| (*n, offer.info().name)).collect();
        let named = named.iter().map(|(number, name)| (*number, &**name));
        let names = || named.clone().map(|(_, name)| name).collect::<Vec<_>>().join(", ");
        let found = named.clone().rev().find(is_called).map(|(number, _)| number);
        found.ok_or_else(|| Error::NoSuchSwap(name.to_owned(), names()))
    }

    /// Refuses a swapoff for which there is no room even if every page in memory has a copy in
    /// swap.
    fn check_room_without(&self, area: usize) -> Result<(), Error> {
        let (mut pages, mut room, mut name) = (0, 0, String::new());
        for (number, offer) in self.offers.open() {
            let used = self.session.area(number)?.tables().used() as usize;
            if number == area {
                (pages, name) = (used, offer.info().name.clone());
            } else if !self.session.is_leaving(number) {
                let all = offer.info().capacity().pages_floor() as usize;
                room += all.saturating_sub(used);
            }
        }
        room += self.session.book().limit();
        let fits = pages <= room;
        if fits { Ok(()) } else { Err(SwapoffError::NoRoom { name, pages, room }.into()) }
    }

    fn close_when_left(&self, number: usize) {
        while !self.session.have_all_left(number) {
            std::thread::sleep(GLANCE);
        }
        let offer = self.offers.all()[number].clone();
        while offer.as_ref().is_some_and(|offer| !offer.wait_unused(GLANCE)) {}
        drop(offer);
        self.offers.close(number);
        let gone = self.places.lock()[number].take();
        gone.into_iter().for_each(Place::empty_again);
    }

    /// Empties files that were empty, when nobody swaps to them.
    pub(super) fn empty_files(&self) {
        self.places.lock().drain(..).flatten().for_each(Place::empty_again);
    }

    /// True if there are files to be emptied.
    pub(super) fn has_files_to_empty(&self) -> bool {
        self.places.lock().iter().flatten().any(|place| place.was_empty.is_some())
    }
}
