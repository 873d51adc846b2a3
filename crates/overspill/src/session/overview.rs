//! What can be seen of a run, while it goes on and at its end.
//!
//! Invariants: looking changes nothing. Figures are read one after the other: between two of them
//! the run goes on.

use super::Session;
use super::limit::RunLimit;
use super::offer::Offers;
use super::stalls::{StallTime, Stalls};
use crate::summary::Summary;
use overspill_area::MemberNo;
use overspill_base::Bytes;
use overspill_base::stats::Stats;
use overspill_base::sync::Arc;
use overspill_base::sync::Ordering::Acquire;
use overspill_device::DeviceInfo;
use overspill_device::compressed::Usage;

/// A device of a run.
#[derive(Debug)]
pub struct DeviceState {
    /// The number of its area in the run, which is no other's later.
    pub number: usize,
    /// True if it is being swapped off.
    pub leaving: bool,
    /// Its name, size and notes.
    pub info: DeviceInfo,
    /// What is in use of it, including slots that are held in reserve.
    pub used: Bytes,
    /// The most that ever was at a time.
    pub used_most: Bytes,
    /// What compressed memory holds.
    pub compressed: Option<Usage>,
}

/// A process of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessState {
    /// Its number.
    pub process: i32,
    /// What it has of the run's memory.
    pub memory: Bytes,
    /// The devices that it swaps to: all, or those that were there before it last looked.
    pub devices: usize,
}

/// A view of a run.
#[derive(Clone, Debug)]
pub struct Overview {
    session: Arc<Session>,
    offers: Arc<Offers>,
    stalls: Arc<Stalls>,
}

impl Overview {
    pub(super) fn new(session: Arc<Session>, offers: Arc<Offers>, stalls: Arc<Stalls>) -> Self {
        Self { session, offers, stalls }
    }

    /// The devices, in the order of their specifications, and then those added since.
    pub fn devices(&self) -> impl Iterator<Item = DeviceState> {
        self.offers.open().filter_map(|(number, offer)| {
            let (tables, info) = (self.session.area(number).ok()?.tables(), offer.info().clone());
            // Slots are counted before they are claimed: more than there are, for a moment.
            let bytes = |slots: u32| Bytes::of_pages(slots.into()).min(info.capacity());
            let (used, used_most) = (bytes(tables.used()), bytes(tables.used_most()));
            let leaving = self.session.is_leaving(number);
            Some(DeviceState { number, leaving, used, used_most, compressed: offer.usage(), info })
        })
    }

    /// Everything counted by all processes of the run.
    pub fn summary(&self) -> Summary {
        let used = self.session.members_used();
        let stats: Vec<Stats> = (0..used).map(|m| self.session.stats(MemberNo(m))).collect();
        Summary::of(RunLimit::new(self.session.clone()).get(), &stats)
    }

    /// How long it has waited for pages.
    pub fn stall_time(&self) -> StallTime {
        self.stalls.get()
    }

    /// The processes that are alive.
    pub fn processes(&self) -> impl Iterator<Item = ProcessState> {
        let book = self.session.book();
        self.session.programs().map(move |(member, process)| {
            let (frames, _) = book.leased(member);
            let devices = self.session.taken_by(member);
            ProcessState { process, memory: Bytes::of_pages(frames as u64), devices }
        })
    }

    /// The [`verdict`](super::verdict) bits.
    pub fn verdict(&self) -> u32 {
        self.session.verdict().load(Acquire)
    }
}
