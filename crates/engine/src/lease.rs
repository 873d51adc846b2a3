//! Frames leased from a budget that several processes share.
//!
//! Owns: when this process leases more frames, asks others for some, and gives some back. It leases
//! a batch when it runs low, before it reclaims. When nobody has any left it reclaims, and asks a
//! process that needs its frames less. One that is asked reclaims in the background, in its own
//! order.
//!
//! What a process needs is measured by its *pressure*: the refaults that a frame more would have
//! saved, if it got the number of frames, up to an eighth of all, of which each saves most; and to
//! a sixteenth every eviction. A process that reads more than would ever fit has few of the former,
//! an idle one neither; a process whose pages just do not fit has many. (Linux counts refaults for
//! the same end, `mm/workingset.c`, but scans all groups in proportion to their size.)
//!
//! Invariants: the frames of an engine are those it has leased. No thread waits for another
//! process, except for lack of anything to reclaim.
//! Not here: the budget, and who is asked ([`FrameBudget`](crate::FrameBudget)).

use crate::budget::{Asked, Lease};
use crate::engine::Engine;
use crate::frames::Frames;
use crate::worker::Worker;
use overspill_area::MemberNo;
use overspill_base::clock;
use overspill_base::sync::Ordering::Relaxed;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Frames leased at a time, and given back at a time: an eighth of those there are.
const BATCH_FRAMES: RangeInclusive<usize> = 16..=1024;

/// Rounds of reclaim in vain after which a process that is asked declines.
const FRUITLESS_ROUNDS: u32 = 10;

/// Time between two questions.
const ASK_NS: u64 = 1_000_000;

fn batch(frames: &Frames) -> usize {
    (frames.leased_itself() / 8).clamp(*BATCH_FRAMES.start(), *BATCH_FRAMES.end())
}

impl Engine {
    /// Leases a batch of frames; false if there are none.
    pub(crate) fn lease_more(&self) -> bool {
        let Some(lease) = &self.lease else { return false };
        let _leasing = lease.leasing.lock();
        let most = self.frames.count() - self.frames.leased();
        let more = if most > 0 { lease.budget.lease(batch(&self.frames), most) } else { 0 };
        self.frames.add_leased(more);
        more > 0
    }

    /// Asks a process with less pressure for a batch, now and then. Returns whether there is hope
    /// of one.
    pub(crate) fn ask_for_more(&self, starving: bool) -> bool {
        let Some(lease) = &self.lease else { return false };
        let (now, last) = (clock::now_ns(), lease.asked_ns.load(Relaxed));
        if now.saturating_sub(last) < ASK_NS
            || lease.asked_ns.compare_exchange(last, now, Relaxed, Relaxed).is_err()
        {
            return false;
        }
        let refaults = self.workingset.refaults();
        let told = std::mem::replace(&mut *lease.told.lock(), refaults);
        match lease.budget.ask(batch(&self.frames), &refaults.since(&told), starving) {
            Asked::One => true,
            Asked::Nobody => false,
            Asked::Dead => (self.salvage)(&self.areas),
        }
    }

    /// True if other processes wait for frames of this one.
    pub(crate) fn is_asked(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.budget.asked() > 0)
    }

    /// True if this process is asked for more than a quarter of what it has, which happens when the
    /// limit is lowered. Its faults then help to reclaim, or would use up what is freed. (Linux
    /// does the same above `memory.high`.)
    pub(crate) fn is_asked_for_much(&self) -> bool {
        let much = self.frames.leased() / 4;
        self.lease.as_ref().is_some_and(|lease| lease.budget.asked() > much)
    }

    /// Wakes background reclaim if other processes wait for frames of this one. False if a lock is
    /// held, perhaps by a thread that has been killed: try again.
    pub fn attend(&self) -> bool {
        !self.is_asked() || self.low.try_notify()
    }

    /// Gives back what other processes ask for, by reclaiming it, until `wanted` for something
    /// else.
    pub(crate) fn give_what_is_asked(&self, worker: &mut Worker, wanted: impl Fn() -> bool) {
        let Some(lease) = &self.lease else { return };
        let mut fruitless = 0;
        while lease.budget.asked() > 0 && !wanted() {
            let high = self.frames.watermarks().high;
            let given = self.give_back(lease, high, lease.budget.asked());
            if given > 0 || self.reclaim_round(worker, false) {
                fruitless = 0;
            } else if fruitless == FRUITLESS_ROUNDS {
                return lease.budget.decline();
            } else {
                fruitless += 1;
                self.freed.wait(self.freed.count(), Some(Duration::from_millis(2)));
            }
        }
    }

    /// Gives back frames that pages have left, if they are more than will soon be used again.
    pub(crate) fn give_spare(&self) {
        let Some(lease) = &self.lease else { return };
        let keep = self.frames.watermarks().high + batch(&self.frames);
        if self.frames.free_count() > 2 * keep {
            self.give_back(lease, keep, usize::MAX);
        }
    }

    /// Gives back up to `most` free frames, but keeps `keep`; returns how many.
    fn give_back(&self, lease: &Lease, keep: usize, most: usize) -> usize {
        let _leasing = lease.leasing.lock();
        let taken = self.frames.take_leased(keep, most);
        let given = lease.budget.give_back(taken);
        self.frames.add_leased(taken - given);
        given
    }

    /// Makes the engine of a forked child `member`'s. The parent's free frames stay the parent's.
    pub fn become_member(&self, member: MemberNo) {
        self.areas.iter().for_each(|area| area.become_member(member));
        if let Some(lease) = &self.lease {
            let used = self.frames.inherit();
            let more = lease.budget.become_member(member, used, self.frames.count() - used);
            self.frames.add_leased(more);
        }
    }
}
