//! The budget that several processes lease their frames from, as an engine sees it.
//!
//! Owns: the interface, and what an engine remembers of its dealings.
//! Not here: when an engine leases, asks and gives back (`lease`).

use crate::workingset::RefaultCounts;
use overspill_area::MemberNo;
use overspill_base::sync::{Arc, AtomicU64, LockClass, Mutex};

/// What came of asking for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A process was asked.
    One,
    /// None has less pressure and something to give.
    Nobody,
    /// The one that should give has ended without giving back what it had: it is to be salvaged.
    Dead,
}

/// Frames of several processes.
pub trait FrameBudget: Send + Sync + std::fmt::Debug {
    /// Leases about `want` frames, at most `most`; fewer if there are not so many.
    fn lease(&self, want: usize, most: usize) -> usize;

    /// Returns how many frames all processes together may have now.
    fn limit(&self) -> usize;

    /// Takes back up to `most` frames; returns how many.
    fn give_back(&self, most: usize) -> usize;

    /// Returns the number of frames that others ask this process to give back.
    fn asked(&self) -> usize;

    /// Answers that this process cannot give back what it is asked for.
    fn decline(&self);

    /// Asks another process to give back about `frames`: the one with the least pressure, if it has
    /// less than this one, which has suffered `more` since it asked last. Whoever is `starving` is
    /// given frames in any case.
    fn ask(&self, frames: usize, more: &RefaultCounts, starving: bool) -> Asked;

    /// In a forked child that has become `member`, with `frames` in use by pages: these are leased,
    /// and a few to begin with, at most `most`, whose number is returned.
    fn become_member(&self, member: MemberNo, frames: usize, most: usize) -> usize;
}

/// The lease of one engine.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) budget: Arc<dyn FrameBudget>,
    /// When others were asked last.
    pub(crate) asked_ns: AtomicU64,
    /// What was told then.
    pub(crate) told: Mutex<RefaultCounts>,
    /// Held from a look at what is leased until that has changed.
    pub(crate) leasing: Mutex<()>,
}

impl Lease {
    pub(crate) fn new(budget: Arc<dyn FrameBudget>) -> Self {
        let leasing = Mutex::new(LockClass::Lease, ());
        let told = Mutex::new(LockClass::Control, RefaultCounts::default());
        Self { budget, asked_ns: AtomicU64::new(0), told, leasing }
    }
}
