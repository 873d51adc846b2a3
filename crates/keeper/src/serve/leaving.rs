//! Letting a guest go: it becomes a process like others again.
//!
//! Owns: bringing back what is out of a guest, most of it while the guest goes on and the rest when
//! it stands still, and forgetting the guest.
//! Invariants: from when the rest is brought on nothing goes out any more. A guest of which
//! something does not come back is paged as before: the engine takes again what it gave up. That
//! nothing is out is seen and the guest ended under one hold of it; when this returns nobody here
//! has its userfaultfd, so that its agent's end ends the registrations. The front waits for this,
//! so nothing here waits for what the front has to do first.
//! Rejected: `Engine::prefetch`, which reads into frames, and here these are only counts; faults in
//! order are read ahead as everybody's.
//! Not here: holding its threads and the agent's farewell (`run`); whether memory has room (`run`).

use crate::guest::events::{Ended, pause};
use crate::guest::handles::Handles;
use crate::guest::state::Guest;
use crate::guest::state::Owned;
use crate::serve::shared::Shared;
use overspill_base::sync::Arc;
use overspill_base::{PageNo, clock};
use overspill_engine::{FaultOutcome, Worker};
use overspill_guest::Vpn;
use overspill_guest::map::AtAddress;
use overspill_guest::pagemap::Entry;
use rangemap::RangeSet;
use std::time::{Duration, Instant};

/// Pages that are brought at a time: so many frames are needed.
const BATCH_PAGES: usize = 64;
/// Pages of which the page table is looked at together.
const CHUNK_PAGES: u64 = 512;
/// How long a guest that goes on is served at a time.
const SLICE: Duration = Duration::from_millis(10);
/// How long a page may take to be read, and what a guest has begun to end. Meanwhile the front
/// does nothing, which may be needed for both.
const READ_WAIT: Duration = Duration::from_millis(500);
const SETTLE_WAIT: Duration = Duration::from_millis(100);

/// Why a guest stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Stays {
    /// It has ended.
    #[error("it has ended")]
    Ended,
    /// It is a forked child that nobody has attached to.
    #[error("it is not attached to yet")]
    Unknown,
    /// A page is poisoned, or nobody knows what it held.
    #[error("a page of it is lost, and would read as zeros")]
    Lost,
    /// It changes its mappings.
    #[error("where its pages are is in doubt")]
    InDoubt,
}

/// What came of an attempt to bring pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Brought {
    /// They are there.
    All,
    /// There are no frames now, a device is slow, or the guest is in the middle of something, such
    /// as a fork.
    NotNow,
}

impl From<Ended> for Stays {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

impl Shared {
    /// Brings some pages of a guest back that goes on, from an address on; returns where there may
    /// be more, which is there if none can come now. They are given up: nobody here knows of them
    /// until it stays.
    pub(crate) fn bring_some(
        &self,
        worker: &mut Worker,
        number: u64,
        from: Vpn,
    ) -> Result<Option<Vpn>, Stays> {
        let guest = self.guest(number).ok_or(Stays::Ended)?;
        let handles = guest.handles().ok_or(Stays::Unknown)?;
        if from == Vpn(0) {
            self.give_frames_back(&guest);
        }
        let (begun, mut from) = (Instant::now(), from);
        while begun.elapsed() < SLICE {
            let mut owned = guest.hold();
            guest.catch_up(&mut owned);
            let batch = next_out(&guest, handles, &owned, from)?;
            let Some((first, last)) = batch.first().zip(batch.last()) else { return Ok(None) };
            // What is in doubt now is brought with the rest.
            let pages = batch.iter().filter_map(|at| page_at(&owned, *at).ok()).collect::<Vec<_>>();
            drop(owned);
            if self.bring_batch(worker, &guest, &pages)? == Brought::NotNow {
                return Ok(Some(*first));
            }
            from = last.plus(1);
        }
        Ok(Some(from))
    }

    /// Has the engine take what it gave up.
    pub(crate) fn stay(&self, guest: &Guest) {
        let mut owned = guest.hold();
        owned.is_leaving = false;
        let believed: Vec<_> = owned.map.believed().cloned().collect();
        if let Some(handles) = guest.handles()
            && owned.add_new(&*handles.process, &believed).is_err()
        {
            guest.ended();
        }
        drop(owned);
        self.survey.call();
        self.call_care();
    }

    /// Brings all pages of a guest back that stands still, and forgets it. Waits for that, but not
    /// for what only the front can do: false then, and it is paged as before.
    ///
    /// # Errors
    /// [`Stays`]: it is paged as before.
    pub(crate) fn let_go(&self, worker: &mut Worker, number: u64) -> Result<bool, Stays> {
        let guest = self.guest(number).ok_or(Stays::Ended)?;
        guest.handles().ok_or(Stays::Unknown)?;
        guest.hold().is_leaving = true;
        let came_back = self.bring_back(worker, &guest);
        match came_back {
            Ok(Brought::All) => self.forget(worker, &guest),
            Ok(Brought::NotNow) | Err(_) => self.stay(&guest),
        }
        Ok(came_back? == Brought::All)
    }

    fn bring_back(&self, worker: &mut Worker, guest: &Arc<Guest>) -> Result<Brought, Stays> {
        let handles = guest.handles().ok_or(Stays::Unknown)?;
        self.give_frames_back(guest);
        let (mut since, mut from) = (Instant::now(), Vpn(0));
        while since.elapsed() < SETTLE_WAIT {
            self.take_children(worker, guest);
            let mut owned = guest.hold();
            guest.catch_up(&mut owned);
            if !guest.is_quiescent(&owned) {
                drop(owned);
                pause();
                continue;
            }
            let batch = next_out(guest, handles, &owned, from)?;
            match batch.last() {
                Some(last) => {
                    let pages = batch.iter().map(|at| page_at(&owned, *at));
                    let pages = pages.collect::<Result<Vec<_>, _>>()?;
                    drop(owned);
                    match self.bring_batch(worker, guest, &pages)? {
                        Brought::All => (since, from) = (Instant::now(), last.plus(1)),
                        Brought::NotNow => return Ok(Brought::NotNow),
                    }
                }
                None if from == Vpn(0) => {
                    guest.source.open_all().map_err(|_| Stays::Ended)?;
                    guest.ended();
                    return Ok(Brought::All);
                }
                None => from = Vpn(0),
            }
        }
        Ok(Brought::NotNow)
    }

    /// Has the engine give up what is in memory.
    fn give_frames_back(&self, guest: &Guest) {
        let all: Vec<_> = guest.hold().map.bound(Vpn(0)..Vpn(u64::MAX)).collect();
        all.iter().for_each(|extent| self.engine.give_up(extent.first, extent.pages as usize));
    }

    /// Brings pages, and gives up those that came.
    fn bring_batch(
        &self,
        worker: &mut Worker,
        guest: &Guest,
        pages: &[PageNo],
    ) -> Result<Brought, Stays> {
        let (mut came, mut brought) = (0, Ok(Brought::All));
        for page in pages {
            brought = self.bring(worker, guest, *page);
            if brought != Ok(Brought::All) {
                break;
            }
            came += 1;
        }
        // Also what it reads ahead: others wait for that.
        worker.finish(&self.engine);
        pages[..came].iter().for_each(|page| self.engine.give_up(*page, 1));
        brought
    }

    fn bring(&self, worker: &mut Worker, guest: &Guest, page: PageNo) -> Result<Brought, Stays> {
        let start = Instant::now();
        while start.elapsed() < READ_WAIT {
            match self.engine.fault(worker, page, clock::now_ns()) {
                FaultOutcome::Mapped | FaultOutcome::Stray => return Ok(Brought::All),
                FaultOutcome::Poisoned => return Err(Stays::Lost),
                // A forked child may have all frames, which none leaves before it is attached to.
                FaultOutcome::OutOfMemory => return Ok(Brought::NotNow),
                FaultOutcome::Pending => {}
            }
            worker.finish(&self.engine);
            if self.engine.is_mapped(page) {
                return Ok(Brought::All);
            }
            if !guest.is_quiescent(&guest.hold()) {
                return Ok(Brought::NotNow);
            }
            pause();
        }
        Ok(Brought::NotNow)
    }

    /// Forgets a guest that counts as ended, and waits until all others have.
    fn forget(&self, worker: &mut Worker, guest: &Arc<Guest>) {
        guest.hold().map.end();
        self.discard_forgotten(worker, guest);
        self.remove(guest);
        while Arc::strong_count(guest) > 1 {
            pause();
        }
    }
}

/// The next addresses from one on of which the content is out, not more than are brought at a time;
/// none if there are no more. Only what is bound can be out.
fn next_out(guest: &Guest, handles: &Handles, owned: &Owned, from: Vpn) -> Result<Vec<Vpn>, Ended> {
    let extents = owned.map.bound(from..Vpn(u64::MAX));
    let chunks = extents.flat_map(|extent| Vpn::parts(extent.place(), CHUNK_PAGES));
    for chunk in chunks {
        let mut out: RangeSet<Vpn> = owned.map.unmarked(&chunk).collect();
        let looked = guest.entries(handles, &chunk, |run, entry| {
            if entry == Entry::Marked {
                out.insert(run);
            }
        });
        if looked.is_err() {
            guest.ended();
            return Err(Ended);
        }
        if !out.is_empty() {
            let addresses = out.iter().flat_map(Vpn::each);
            return Ok(addresses.take(BATCH_PAGES).collect());
        }
    }
    Ok(Vec::new())
}

/// The page at an address of which the content is out.
fn page_at(owned: &Owned, at: Vpn) -> Result<PageNo, Stays> {
    match owned.map.at(at) {
        AtAddress::Page(page) => Ok(page),
        AtAddress::Later => Err(Stays::InDoubt),
        AtAddress::Unbound | AtAddress::Unknown => Err(Stays::Lost),
    }
}
