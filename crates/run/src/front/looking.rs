//! Looking at what the processes of a run hold.
//!
//! Owns: when the limit is in sight, and who is to stop then.
//! Invariants: all that are large enough to matter are told at once. Where a crowd goes beyond the
//! limit nobody goes on, not even who only starts others, until the large ones are attached to.
//! Not here: attaching (`joining`), how they stop (`crate::stopping`).

use super::family::All;
use super::room::NEAR_PERCENT;
use super::{Front, NEAR_INTERVAL};
use overspill_base::clock::cpu_count;
use rustix::process::Pid;
use std::time::Duration;

/// How often processes are looked at if the limit is not in sight, or most of them are paged.
const FAR_INTERVAL: Duration = Duration::from_millis(5);
pub(super) const FARTHEST_INTERVAL: Duration = Duration::from_millis(20);
/// Pages that one CPU fills in a millisecond, by huge pages: 8 GiB/s.
const FILL_PAGES: u64 = 2048;
/// And at which the keeper gets ready: its tables take some time.
const PREPARE_PERCENT: u64 = 40;
/// Of the limit so large a part is much.
const MUCH_PART: u64 = 8;
/// And if it is not paged, though more than the limit is held, nobody may go on.
const CROWD_PART: u64 = 16;
/// Smaller processes are left alone, or yet smaller ones where all of them would have more than
/// such a part of the limit together; an agent has some memory of its own.
const SMALL_PAGES: u64 = 256;
const SMALL_LEAST_PAGES: u64 = 64;
const SMALL_PART: u64 = 4;

impl Front {
    /// Has forked children stop that have lived for a while: most execute another program before.
    /// True if there are some that have not.
    pub(super) fn stop_children(&mut self, all: &All) -> bool {
        self.family.note(all);
        let new = all.iter().filter(|(pid, _)| self.may_be_child(**pid));
        let open = new.filter(|(pid, process)| self.may_attach(**pid, process));
        let children = open.map(|(pid, _)| *pid).filter(|pid| self.guests.is_child(*pid));
        let (young, old): (Vec<Pid>, Vec<Pid>) =
            children.partition(|pid| self.family.is_young(*pid));
        self.stop_all(old);
        young.iter().for_each(|pid| self.family.note_young(*pid));
        !young.is_empty()
    }

    /// True if a guest may have forked it: the message of that may be on its way.
    fn may_be_child(&self, pid: Pid) -> bool {
        self.guests.have_children() || !self.guests.is_empty() && self.family.is_new(pid)
    }

    /// Looks at all processes, and has them stop if the limit is in sight. Returns when they are to
    /// be looked at next.
    pub(super) fn look(&mut self, all: &All) -> Duration {
        let held = self.room.sum(all, &self.family, &self.guests);
        if self.room.is_short(held) {
            self.keeper.say("memory is short: the run gives some back until it is not");
        }
        self.rest(held);
        let percent = self.room.percent(held);
        if percent >= PREPARE_PERCENT {
            self.keeper.prepare();
        }
        let small_pages = self.small_pages(all);
        let loose_pages = self.loose_pages(all, small_pages);
        self.room.note_apart(self.loose_pages(all, 0));
        self.leave_room();
        self.room.note_held(held);
        self.room.note_most(!self.guests.is_empty());
        self.note_excess(all.len());
        if percent < NEAR_PERCENT {
            return self.far_interval(held);
        }
        let open = all.iter().filter(|(pid, process)| {
            process.pages >= small_pages
                && self.may_attach(**pid, process)
                && !self.family.is_noted_young(**pid)
        });
        let open: Vec<Pid> = open.map(|(pid, _)| *pid).collect();
        let limit_pages = self.room.limit_pages();
        if held > limit_pages && loose_pages * CROWD_PART > limit_pages {
            self.stop_beside(all, &open);
        }
        self.stop_all(open);
        match loose_pages * MUCH_PART >= limit_pages {
            true => NEAR_INTERVAL,
            false => FAR_INTERVAL,
        }
    }

    /// Says once that a limit cannot be kept, and why.
    fn note_excess(&mut self, processes: usize) {
        if self.guests.is_empty() {
            return;
        }
        let unevictable = self.keeper.stats().unevictable_pages();
        if let Some(line) = self.room.note_excess(processes, unevictable) {
            self.keeper.say(&line);
        }
    }

    /// Until the limit is in sight: half of the time that all CPUs take to fill what is left, or
    /// less. Each look costs a process some microseconds at its end, too.
    fn far_interval(&self, held_pages: u64) -> Duration {
        if !self.guests.is_empty() {
            return FAR_INTERVAL;
        }
        let near_pages = self.room.limit_pages() * NEAR_PERCENT / 100;
        let fill_pages = FILL_PAGES * cpu_count() as u64;
        let left = Duration::from_millis(near_pages.saturating_sub(held_pages) / fill_pages);
        (left / 2).clamp(FAR_INTERVAL, FARTHEST_INTERVAL)
    }

    /// Has all others stand beside: some may grow, or start more.
    fn stop_beside(&mut self, all: &All, open: &[Pid]) {
        for (pid, process) in all {
            if !open.contains(pid) && self.may_attach(*pid, process) {
                self.stops.stopping.tell_beside(*pid);
            }
        }
    }

    /// The size from which on a process is not left alone.
    fn small_pages(&self, all: &All) -> u64 {
        let share = self.room.limit_pages() / SMALL_PART / all.len().max(1) as u64;
        share.clamp(SMALL_LEAST_PAGES, SMALL_PAGES)
    }

    /// What processes of at least `least_pages` have that are not paged. Children that guests have
    /// just forked have little of their own: what they have got since.
    fn loose_pages(&self, all: &All, least_pages: u64) -> u64 {
        let inherited_pages = |pid: Pid| match self.guests.have_children() {
            true if self.guests.is_child(pid) => self.family.first_pages(pid),
            _ => 0,
        };
        let loose = all
            .iter()
            .filter(|(pid, process)| process.pages >= least_pages && !self.guests.has(**pid));
        loose.map(|(pid, process)| process.pages.saturating_sub(inherited_pages(*pid))).sum()
    }

    /// Has guests leave room for what is not paged.
    pub(super) fn leave_room(&mut self) {
        if let Some(left) = self.room.left(&self.family, &self.guests) {
            self.keeper.set_memory(left);
        }
    }

    /// Tells processes to stop.
    fn stop_all(&mut self, open: Vec<Pid>) {
        for pid in open {
            if let Err(error) = self.stops.stopping.tell(pid) {
                self.refuse(pid, &error.into());
            }
        }
    }
}
