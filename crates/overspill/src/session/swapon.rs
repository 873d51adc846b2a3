//! Adding swap to a run that goes on.
//!
//! Owns: the places that a run swaps to, as the user named them, and the files among them that were
//! empty.
//! Invariants: what is refused changes nothing, and leaves no file behind.
//! Not here: how the processes get to an area ([`areas`](super::areas)).

use super::offer::{Offer, Offers};
use super::supervisor::Opener;
use super::{Session, SharedDevice};
use crate::builder::{given_twice, priority};
use crate::error::Error;
use overspill_base::sync::{Arc, LockClass, Mutex};
use overspill_device::file::OpenOptions;
use overspill_device::{Device, SwapSpec};
use rustix::fd::OwnedFd;
use rustix::fs::ftruncate;
use rustix::io::fcntl_dupfd_cloexec;

/// How places are opened for a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) open: Opener,
    pub(super) options: OpenOptions,
    /// Takes lines about what happens to connections.
    pub(super) report: fn(&str),
}

/// The swap of a run.
#[derive(Debug)]
pub struct RunSwaps {
    opening: Opening,
    session: Arc<Session>,
    offers: Arc<Offers>,
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    specs: Vec<SwapSpec>,
    /// Files of the user's that were empty.
    were_empty: Vec<OwnedFd>,
}

/// Another descriptor of a file that is to be empty again afterwards.
pub(super) fn kept_if_empty(device: &Device) -> Result<Option<OwnedFd>, Error> {
    let file = device.descriptor().filter(|_| device.attachment().was_empty);
    let kept = file.map(|file| fcntl_dupfd_cloexec(file, 0)).transpose();
    kept.map_err(Error::session("share"))
}

impl RunSwaps {
    pub(super) fn new(
        opening: Opening,
        session: Arc<Session>,
        offers: Arc<Offers>,
        specs: Vec<SwapSpec>,
        were_empty: Vec<OwnedFd>,
    ) -> Self {
        let places = Mutex::new(LockClass::Pager, Places { specs, were_empty });
        Self { opening, session, offers, places }
    }

    /// Adds a swap area, which the processes of the run use soon. Without a priority it is used
    /// after all areas added before. Blocks for opening it. Returns its name.
    ///
    /// # Errors
    /// [`Error::GivenTwice`], [`Error::Device`], [`Error::TooManyAdded`], [`Error::Session`]; then
    /// nothing was changed.
    pub fn add(&self, spec: &SwapSpec) -> Result<String, Error> {
        let mut places = self.places.lock();
        let specs = [&places.specs[..], std::slice::from_ref(spec)].concat();
        if let Some(name) = given_twice(&specs) {
            return Err(Error::GivenTwice(name));
        }
        self.session.check_room_for_area()?;
        let Opening { open, options, report } = self.opening;
        // What was forced at the start was another place.
        let options = OpenOptions { force: false, ..options };
        let device = open(spec, &options, report)?;
        let were_empty = kept_if_empty(&device)?;
        let (attachment, name) = (device.attachment().clone(), device.info().name.clone());
        let priority = priority(spec, places.specs.len());
        let offer = Offer::new(device, &self.session)?;
        let annex = self.session.add_area(&SharedDevice { attachment, priority })?;
        self.offers.push(offer);
        self.session.announce(annex);
        places.were_empty.extend(were_empty);
        places.specs = specs;
        Ok(name)
    }

    /// Empties files that were empty, when nobody swaps to them.
    pub(super) fn empty_files(&self) {
        self.places.lock().were_empty.drain(..).for_each(|file| {
            let _ = ftruncate(file, 0);
        });
    }

    /// True if there are files to be emptied.
    pub(super) fn has_files_to_empty(&self) -> bool {
        !self.places.lock().were_empty.is_empty()
    }
}
