//! Swap areas that are taken away from a run that goes on.
//!
//! Owns: which areas are leaving, and which processes have left them.
//! Invariants: an area that is leaving never comes back. Its device stays open until no process has
//! a page on it. A process says that it takes an area before it looks whether
//! that is leaving, and who has an area taken away marks it before looking who has taken it: so one
//! of the two sees the other (SeqCst). A forked child has left what its parent has, and is waited
//! for from the moment in which its place is reserved.
//! A descriptor's number is closed while its device has an owner, and free only when that is
//! dropped: else another descriptor could have the number, and be closed in its place.
//! Not here: moving the pages (`engine::swapoff`).

use super::Session;
use crate::pager::Pager;
use overspill_area::{AreaNo, MEMBERS_MAX, MemberNo};
use overspill_base::shared::Table;
use overspill_base::sync::AtomicU32;
use overspill_base::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The areas of a set, a bit for each.
fn areas_of(set: u32) -> impl Iterator<Item = usize> {
    (0..AreaNo::MAX).filter(move |&number| set & (1 << number) != 0)
}

impl Session {
    /// One word, the set of areas that are leaving.
    fn leaving(&self) -> Table<AtomicU32> {
        self.table(self.layout.leaving, 1)
    }

    /// For each member the set of areas that it has left.
    fn left(&self) -> Table<AtomicU32> {
        self.table(self.layout.areas_left, MEMBERS_MAX)
    }

    pub(super) fn is_leaving(&self, number: usize) -> bool {
        self.leaving()[0].load(SeqCst) & (1 << number) != 0
    }

    /// Has all processes leave an area.
    pub(super) fn set_leaving(&self, number: usize) {
        self.leaving()[0].fetch_or(1 << number, SeqCst);
        self.tell_of_areas();
    }

    /// True if no process has a page on an area that is leaving, or will have one.
    pub(super) fn have_all_left(&self, number: usize) -> bool {
        let has_left = |member: MemberNo| {
            let left = self.left()[member.0 as usize].load(Acquire);
            self.taken_by(member) <= number || left & (1 << number) != 0
        };
        !self.is_any_starting() && self.living().all(has_left)
    }

    /// Notes what `member` has left: nothing, if it is new; what its parent has, if it was forked.
    pub(super) fn note_left(&self, member: MemberNo, areas: u32) {
        self.left()[member.0 as usize].store(areas, Release);
    }

    /// The areas that this process has still to leave.
    fn to_leave(&self) -> u32 {
        let taken = (1u64 << self.areas_taken()) - 1;
        self.leaving()[0].load(SeqCst) & taken as u32 & !self.run_areas.left.load(Relaxed)
    }

    /// True if areas are to be taken or left by this process.
    pub fn has_area_changes(&self) -> bool {
        self.has_new_areas() || self.to_leave() != 0
    }

    /// Starts to leave areas, and ends with those that have no page of this process any more:
    /// `close` closes their descriptors. Not during a fork.
    pub fn leave_areas(&self, pager: &Pager, close: impl Fn(usize)) {
        let to_leave = self.to_leave();
        areas_of(to_leave).for_each(|area| pager.engine().start_swapoff(AreaNo(area as u8)));
        let has_left = |area: &usize| pager.engine().has_left(AreaNo(*area as u8));
        let gone: Vec<usize> = areas_of(to_leave).filter(has_left).collect();
        if gone.is_empty() {
            return;
        }
        pager.release_gone();
        for &area in &gone {
            close(area);
            self.run_areas.drop_device(area);
        }
        let left = gone.iter().fold(0, |set, area| set | 1 << area);
        let left = self.run_areas.left.fetch_or(left, Relaxed) | left;
        self.note_left(MemberNo(self.own.load(Acquire)), left);
    }

    /// The areas that this process has left, or its parent before a fork.
    pub fn areas_left(&self) -> impl Iterator<Item = usize> {
        areas_of(self.run_areas.left.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;

    #[test]
    fn an_area_has_left_when_every_process_has_left_it() {
        let session = Session::create(Settings::of_a_test()).unwrap();
        let me = rustix::process::getpid();
        session.set_leaving(0);
        assert!(session.is_leaving(0) && !session.is_leaving(1));
        assert!(session.have_all_left(0), "there is no process");
        let place = session.reserve_member().unwrap();
        assert!(!session.have_all_left(0), "one is starting, and may be a child");
        session.confirm_member(place, me).unwrap();
        // To its own process a member looks dead: locks are a process's.
        assert!(session.have_all_left(0));
        session.note_taken(place.member, 1);
        assert_eq!(session.to_leave(), 1);
        session.note_taken(place.member, 2);
        assert_eq!(session.to_leave(), 1, "the other area stays");
    }
}
