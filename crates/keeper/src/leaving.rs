//! Letting a guest go: it becomes a process like others again.
//!
//! Owns: bringing back all that is out of a guest that stands still, and forgetting the guest.
//! Invariants: its agent is taken first, so that nothing goes out any more. A guest of which
//! something does not come back gets its agent again, and is paged as before. That nothing is out
//! is seen and the guest ended under one hold of it; when this returns nobody here has its
//! userfaultfd, so that its agent's end ends the registrations.
//! Rejected: `Engine::prefetch`, which reads into frames, and here these are only counts; faults in
//! order are read ahead as everybody's.
//! Not here: holding its threads and the agent's farewell (`run`); whether memory has room (`run`).

use crate::guest::{Ended, Guest, pause};
use crate::keeper::Shared;
use crate::known::Known;
use crate::owned::Owned;
use overspill_base::PageNo;
use overspill_base::sync::Arc;
use overspill_engine::{FaultOutcome, Worker};
use overspill_guest::Vpn;
use overspill_guest::map::AtAddress;
use overspill_guest::pagemap::Entry;
use rangemap::RangeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Pages that are brought at a time: so many frames are needed.
const BATCH_PAGES: u64 = 64;
/// How long nothing may come back before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// Frames or reads do not come.
    #[error("its pages do not come back: there is no room, or its swap does not answer")]
    Slow,
}

impl From<Ended> for Stays {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

impl Shared {
    /// Brings all pages of a guest back that stands still, and forgets it. Waits for that.
    ///
    /// # Errors
    /// [`Stays`]: it is paged as before.
    pub(crate) fn let_go(&self, worker: &mut Worker, number: u64) -> Result<(), Stays> {
        let guest = self.guests.lock().get(&number).cloned().ok_or(Stays::Ended)?;
        let agent = guest.agent().take().ok_or(Stays::Unknown)?;
        guest.hold().is_leaving = true;
        let came_back = self.bring_back(worker, &guest);
        match came_back {
            Ok(()) => self.forget(worker, &guest),
            Err(_) => {
                *guest.agent() = Some(agent);
                guest.hold().is_leaving = false;
                self.survey.call();
            }
        }
        came_back
    }

    fn bring_back(&self, worker: &mut Worker, guest: &Arc<Guest>) -> Result<(), Stays> {
        let known = guest.known().ok_or(Stays::Unknown)?;
        self.give_frames_back(guest);
        let mut since = Instant::now();
        while since.elapsed() < PATIENCE {
            self.take_children(worker, guest);
            let mut owned = guest.hold();
            guest.catch_up(&mut owned);
            if !guest.is_quiescent(&owned) {
                drop(owned);
                pause();
                continue;
            }
            let out = out(guest, known, &owned)?;
            if out.is_empty() {
                guest.ended();
                return Ok(());
            }
            drop(owned);
            for run in out {
                self.bring_run(worker, guest, run)?;
                since = Instant::now();
            }
        }
        Err(Stays::Slow)
    }

    /// Has the engine give up what is in memory.
    fn give_frames_back(&self, guest: &Guest) {
        let all: Vec<_> = guest.hold().map.bound(Vpn(0)..Vpn(u64::MAX)).collect();
        all.iter().for_each(|extent| self.engine.give_up(extent.first, extent.pages as usize));
    }

    fn bring_run(&self, worker: &mut Worker, guest: &Guest, run: Range<Vpn>) -> Result<(), Stays> {
        let mut at = run.start;
        while at < run.end {
            let batch = at..run.end.min(at.plus(BATCH_PAGES));
            at = batch.end;
            let pages = numbers(guest, batch)?;
            for page in &pages {
                self.bring(worker, *page)?;
            }
            worker.finish(&self.engine);
            pages.into_iter().for_each(|page| self.engine.give_up(page, 1));
        }
        Ok(())
    }

    fn bring(&self, worker: &mut Worker, page: PageNo) -> Result<(), Stays> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.engine.fault_in_place(worker, page) {
                FaultOutcome::Mapped | FaultOutcome::Stray => return Ok(()),
                FaultOutcome::Poisoned => return Err(Stays::Lost),
                FaultOutcome::Pending | FaultOutcome::OutOfMemory => pause(),
            }
        }
        Err(Stays::Slow)
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

/// The runs of which the content is out.
fn out(guest: &Guest, known: &Known, owned: &Owned) -> Result<RangeSet<Vpn>, Ended> {
    let all = Vpn(0)..Vpn(u64::MAX);
    let mut out: RangeSet<Vpn> = owned.map.unmarked(&all).collect();
    for place in owned.map.believed() {
        let looked = known.pagemap.runs(place, |run, entry| {
            if entry == Entry::Marked {
                out.insert(run);
            }
        });
        if looked.is_err() {
            guest.ended();
            return Err(Ended);
        }
    }
    Ok(out)
}

/// The pages of a run that is out.
fn numbers(guest: &Guest, run: Range<Vpn>) -> Result<Vec<PageNo>, Stays> {
    let owned = guest.hold();
    let number = |at: u64| match owned.map.at(Vpn(at)) {
        AtAddress::Page(page) => Ok(page),
        AtAddress::Later => Err(Stays::Slow),
        AtAddress::Unbound | AtAddress::Unknown => Err(Stays::Lost),
    };
    (run.start.0..run.end.0).map(number).collect()
}
