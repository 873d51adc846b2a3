//! Looking at what the processes of a run hold.
//!
//! Owns: when the limit is in sight, who is to stop then, and how much of the limit is left to what
//! is paged.
//! Invariants: all that are large enough to matter are told at once. Where a crowd goes beyond the
//! limit nobody goes on, not even who only starts others, until the large ones are attached to.
//! Not here: attaching (`front`), how they stop (`stopping`).

use super::{Front, NEAR_INTERVAL};
use crate::sharing::Sharing;
use crate::watch::{Watched, run_time, start_of};
use overspill_base::Bytes;
use overspill_base::clock::cpu_count;
use overspill_keeper::LEFT_PART;
use rustix::process::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a forked child may take to execute another program; longer if it hardly ran.
const CHILD_WAIT: Duration = Duration::from_millis(2);
const CHILD_WAIT_MOST: Duration = Duration::from_millis(20);
const CHILD_RUN: Duration = Duration::from_millis(1);
/// How often processes are looked at if the limit is not in sight, or most of them are paged.
const FAR_INTERVAL: Duration = Duration::from_millis(5);
pub(super) const FARTHEST_INTERVAL: Duration = Duration::from_millis(20);
/// Pages that one CPU fills in a millisecond, by huge pages: 8 GiB/s.
const FILL_PAGES: u64 = 2048;
/// Part of the limit at which processes are attached to, in percent.
const NEAR_PERCENT: u64 = 75;
/// And at which the keeper gets ready: its tables take some time.
const PREPARE_PERCENT: u64 = 40;
/// The limit of guests changes by such a part at least.
const ROOM_STEPS: u64 = 64;
/// Of the limit so large a part is much.
const MUCH_PART: u64 = 8;
/// And if it is not paged, though more than the limit is held, nobody may go on.
const CROWD_PART: u64 = 16;
/// Smaller processes are left alone, or yet smaller ones where all of them would have more than
/// such a part of the limit together; an agent has some memory of its own.
const SMALL_PAGES: u64 = 256;
const SMALL_LEAST_PAGES: u64 = 64;
const SMALL_PART: u64 = 4;

/// A process of the run, as it was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// What it had a turn ago.
    pub(super) last: Watched,
    /// When it was seen first, and what it had then, in pages.
    since: Instant,
    first_pages: u64,
    /// When it has started, as the kernel tells, where its parent's end may take it out of sight.
    started: Option<u64>,
    /// Whether it is a forked child that is not to be stopped yet.
    is_young: bool,
}

impl Seen {
    fn new(process: Watched, started: Option<u64>) -> Self {
        Self {
            last: process,
            since: Instant::now(),
            first_pages: process.pages,
            started,
            is_young: false,
        }
    }

    /// True if the process of this number is the one that was seen.
    pub(super) fn is_still(&self, pid: Pid) -> bool {
        self.started.is_some() && start_of(pid) == self.started
    }
}

impl Front {
    /// Has forked children stop that have lived for a while: most execute another program before.
    /// True if there are some that have not.
    pub(super) fn stop_children(&mut self, family: &HashMap<Pid, Watched>) -> bool {
        self.note(family);
        let new = family.iter().filter(|(pid, _)| self.may_be_child(**pid));
        let open = new.filter(|(pid, process)| self.may_attach(**pid, process));
        let children = open.map(|(pid, _)| *pid).filter(|pid| self.is_child(*pid));
        let (young, old): (Vec<Pid>, Vec<Pid>) = children.partition(|pid| self.is_young(*pid));
        self.stop_all(old);
        for pid in &young {
            self.seen.entry(*pid).and_modify(|seen| seen.is_young = true);
        }
        !young.is_empty()
    }

    /// Notes which processes there are, and since when.
    fn note(&mut self, family: &HashMap<Pid, Watched>) {
        let is_of_running = self.is_of_running();
        self.refusals.look(family);
        self.seen.retain(|pid, _| family.contains_key(pid));
        for (&pid, &process) in family {
            let seen = self.seen.entry(pid).or_insert_with(|| {
                // A run that this process has started gets all orphans of it.
                Seen::new(process, is_of_running.then(|| start_of(pid)).flatten())
            });
            (seen.last, seen.is_young) = (process, false);
        }
    }

    /// True if a guest may have forked it: the message of that may be on its way.
    fn may_be_child(&self, pid: Pid) -> bool {
        let is_new = self.seen[&pid].since.elapsed() < CHILD_WAIT_MOST;
        !self.forked.is_empty() || is_new && !self.guests.is_empty()
    }

    /// True if a child may be about to execute another program, or to ask its parent to trace it,
    /// which the kernel refuses while we do.
    fn is_young(&self, pid: Pid) -> bool {
        let age = self.seen[&pid].since.elapsed();
        age < CHILD_WAIT || age < CHILD_WAIT_MOST && run_time(pid).is_some_and(|t| t < CHILD_RUN)
    }

    /// Looks at all processes, and has them stop if the limit is in sight. Returns when they are to
    /// be looked at next.
    pub(super) fn look(&mut self, family: &HashMap<Pid, Watched>) -> Duration {
        let held = self.sum(family);
        self.look_at_others(held);
        self.rest(held);
        let percent = match self.is_early {
            true => NEAR_PERCENT,
            false => held * 100 / self.limit_pages().max(1),
        };
        if percent >= PREPARE_PERCENT {
            self.keeper.prepare();
        }
        let loose_pages = self.loose_pages(family, self.small_pages(family));
        self.apart_pages = self.loose_pages(family, 0);
        self.leave_room();
        self.held_pages = held.saturating_sub(self.sharing.twice_pages());
        if self.guests.is_empty() || self.sharing.is_fresh() {
            self.held_most_pages = self.held_most_pages.max(self.held_pages);
        }
        self.note_excess(family.len());
        if percent < NEAR_PERCENT {
            return self.far_interval(held);
        }
        let small_pages = self.small_pages(family);
        let is_open = |pid: Pid, process: &Watched| {
            process.pages >= small_pages
                && self.may_attach(pid, process)
                && !self.seen[&pid].is_young
        };
        let open = family.iter().filter(|(pid, process)| is_open(**pid, process));
        let open: Vec<Pid> = open.map(|(pid, _)| *pid).collect();
        let limit_pages = self.limit_pages();
        let is_crowd = held > limit_pages && loose_pages * CROWD_PART > limit_pages;
        if is_crowd {
            self.stop_beside(family, &open);
        }
        self.stop_all(open);
        match loose_pages * MUCH_PART >= limit_pages {
            true => NEAR_INTERVAL,
            false => FAR_INTERVAL,
        }
    }

    /// Says once that a limit cannot be kept, and why.
    fn note_excess(&mut self, processes: usize) {
        let stuck_pages = self.keeper.stats().unevictable_pages() + self.apart_pages;
        let (held_pages, limit_pages) = (self.held_pages, self.limit_pages());
        if self.guests.is_empty() || !self.excess.note(held_pages, stuck_pages, limit_pages) {
            return;
        }
        let [held, stuck, limit] = [held_pages, stuck_pages, limit_pages].map(Bytes::of_pages);
        let enough = Bytes((stuck.0 / (LEFT_PART - 1) * LEFT_PART).next_multiple_of(1 << 20));
        let who = if processes == 1 { "the process holds" } else { "its processes hold" };
        self.keeper.say(&format!(
            "{who} {held} in a limit of {limit}: {stuck} of it cannot leave memory, which is what \
             programs have written of their files' data, or lock; give --memory {enough:#} or more"
        ));
    }

    /// Notes what all processes hold, what relatives share once.
    pub(super) fn note_held(&mut self, family: &HashMap<Pid, Watched>) {
        self.held_pages = self.sum(family).saturating_sub(self.sharing.twice_pages());
    }

    /// What all processes hold: before any is paged what relatives share once, then for each.
    fn sum(&mut self, family: &HashMap<Pid, Watched>) -> u64 {
        if !self.guests.is_empty() {
            return family.values().map(|process| process.pages).sum();
        }
        let mark = self.limit_pages() * NEAR_PERCENT / 100;
        let seen = &self.seen;
        let first_pages = |pid| seen.get(&pid).map_or(0, |seen| seen.first_pages);
        self.together.pages(family, mark, first_pages)
    }

    /// What the run may use now.
    pub(super) fn limit_pages(&self) -> u64 {
        let all = self.memory.pages_floor();
        self.giving.as_ref().map_or(all, |giving| giving.most_pages(all))
    }

    fn look_at_others(&mut self, held_pages: u64) {
        let Some(giving) = &mut self.giving else { return };
        if giving.look(held_pages, self.memory.pages_floor()) {
            self.keeper.say("memory is short: the run gives some back until it is not");
        }
    }

    /// Until the limit is in sight: half of the time that all CPUs take to fill what is left, or
    /// less. Each look costs a process some microseconds at its end, too.
    fn far_interval(&self, held_pages: u64) -> Duration {
        if !self.guests.is_empty() {
            return FAR_INTERVAL;
        }
        let near_pages = self.limit_pages() * NEAR_PERCENT / 100;
        let fill_pages = FILL_PAGES * cpu_count() as u64;
        let left = Duration::from_millis(near_pages.saturating_sub(held_pages) / fill_pages);
        (left / 2).clamp(FAR_INTERVAL, FARTHEST_INTERVAL)
    }

    /// Has all others stand beside: some may grow, or start more.
    fn stop_beside(&mut self, family: &HashMap<Pid, Watched>, open: &[Pid]) {
        for (pid, process) in family {
            if !open.contains(pid) && self.may_attach(*pid, process) {
                self.stopping.tell_beside(*pid);
            }
        }
    }

    /// The size from which on a process is not left alone.
    fn small_pages(&self, family: &HashMap<Pid, Watched>) -> u64 {
        let share = self.limit_pages() / SMALL_PART / family.len().max(1) as u64;
        share.clamp(SMALL_LEAST_PAGES, SMALL_PAGES)
    }

    /// What processes of at least `least_pages` have that are not paged. Children that guests have
    /// just forked have little of their own: what they have got since.
    fn loose_pages(&self, family: &HashMap<Pid, Watched>, least_pages: u64) -> u64 {
        let inherited_pages = |pid: &Pid| match self.forked.is_empty() || !self.is_child(*pid) {
            true => 0,
            false => self.seen.get(pid).map_or(0, |seen| seen.first_pages),
        };
        let loose = family.iter().filter(|(pid, process)| {
            process.pages >= least_pages && !self.guests.contains_key(pid)
        });
        loose.map(|(pid, process)| process.pages.saturating_sub(inherited_pages(pid))).sum()
    }

    /// Has guests leave room for what is not paged, but for a quarter of the limit. What several
    /// have together counts once.
    pub(super) fn leave_room(&mut self) {
        if self.guests.is_empty() {
            self.sharing = Sharing::default();
            return;
        }
        let limit = self.limit_pages();
        let pages =
            limit.saturating_sub(self.apart_pages).max(limit / LEFT_PART) + self.shared_pages();
        // By steps, so that not every page of growth is a message.
        if pages.abs_diff(self.paged_most) * ROOM_STEPS >= limit || pages == limit {
            self.limit_guests(pages);
        }
    }

    fn shared_pages(&mut self) -> u64 {
        let guests: Vec<Pid> = self.guests.keys().copied().collect();
        let agents: Vec<Pid> = self.guests.values().map(|guest| guest.agent.pid).collect();
        let is_relative = |(pid, seen): &(&Pid, &Seen)| {
            !self.guests.contains_key(pid) && self.is_guest(seen.last.parent)
        };
        let others: Vec<Pid> = self.seen.iter().filter(is_relative).map(|(pid, _)| *pid).collect();
        self.sharing.pages(&guests, &others, &agents)
    }

    pub(super) fn limit_guests(&mut self, pages: u64) {
        if std::mem::replace(&mut self.paged_most, pages) != pages {
            self.keeper.set_memory(Bytes::of_pages(pages));
        }
    }

    /// Tells processes to stop.
    fn stop_all(&mut self, open: Vec<Pid>) {
        for pid in open {
            if let Err(error) = self.stopping.tell(pid) {
                self.refuse(pid, &error.into());
            }
        }
    }
}
