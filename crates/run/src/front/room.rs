//! What a run may hold, and what it holds.
//!
//! Owns: the limit, how much of it is left to what is paged, and what the processes have together.
//! Invariants: what relatives share counts once. Guests leave room for what is not paged, but for a
//! quarter of the limit.
//! Not here: what each process has (`family`), keeping guests to what is left to them
//! (`overspill_keeper`).

use super::family::{All, Family};
use super::guests::Guests;
use crate::excess::Excess;
use crate::giving::{Giving, MemoryPressure};
use crate::sharing::Sharing;
use crate::together::Together;
use overspill_base::Bytes;
use overspill_keeper::LEFT_PART;
use rustix::process::Pid;

/// Part of the limit at which processes are attached to, in percent.
pub(super) const NEAR_PERCENT: u64 = 75;
/// What guests may have changes by such a part of the limit at least.
const STEPS: u64 = 64;

/// The room of a run, in pages if nothing is said.
pub(super) struct Room {
    memory: Bytes,
    /// If others are to have memory when it is short.
    giving: Option<Giving>,
    /// Whether processes are attached to before the limit is in sight.
    is_early: bool,
    /// What guests may have.
    paged_most: u64,
    /// What is not paged.
    apart: u64,
    held: u64,
    held_most: u64,
    /// What guests have together, and what all have before any is paged.
    sharing: Sharing,
    together: Together,
    excess: Excess,
}

impl Room {
    pub(super) fn new(memory: Bytes) -> Self {
        Self {
            memory,
            giving: None,
            is_early: false,
            paged_most: memory.pages_floor(),
            apart: 0,
            held: 0,
            held_most: 0,
            sharing: Sharing::default(),
            together: Together::default(),
            excess: Excess::default(),
        }
    }

    /// The limit.
    pub(super) fn memory(&self) -> Bytes {
        self.memory
    }

    /// Takes another limit; returns what guests may have if that is something else now.
    pub(super) fn set_memory(&mut self, memory: Bytes) -> Option<Bytes> {
        self.memory = memory;
        self.leave(self.limit_pages())
    }

    /// Has processes attached to as soon as they are large enough to matter.
    pub(super) fn attach_early(&mut self) {
        self.is_early = true;
    }

    /// Has the run use less than its limit while memory is short.
    pub(super) fn give_back(&mut self, pressure: MemoryPressure) {
        self.giving = Some(Giving::new(pressure));
    }

    /// Looks how short memory is, if it is given back; true if it has just become short.
    pub(super) fn is_short(&mut self, held: u64) -> bool {
        let limit = self.memory.pages_floor();
        self.giving.as_mut().is_some_and(|giving| giving.look(held, limit))
    }

    /// What the run may use now.
    pub(super) fn limit_pages(&self) -> u64 {
        let all = self.memory.pages_floor();
        self.giving.as_ref().map_or(all, |giving| giving.most_pages(all))
    }

    /// What part of that is used, in percent.
    pub(super) fn percent(&self, held: u64) -> u64 {
        if self.is_early { NEAR_PERCENT } else { held * 100 / self.limit_pages().max(1) }
    }

    /// What all processes hold: before any is paged what relatives share once, then for each.
    pub(super) fn sum(&mut self, all: &All, family: &Family, guests: &Guests) -> u64 {
        if !guests.is_empty() {
            return all.values().map(|process| process.pages).sum();
        }
        let mark = self.limit_pages() * NEAR_PERCENT / 100;
        self.together.pages(all, mark, |pid| family.first_pages(pid))
    }

    /// Notes what all processes hold by that sum.
    pub(super) fn note_held(&mut self, sum: u64) {
        self.held = sum.saturating_sub(self.sharing.twice_pages());
    }

    /// Notes that this was the most, if it was, and if what is shared is known.
    pub(super) fn note_most(&mut self, has_guests: bool) {
        if !has_guests || self.sharing.is_fresh() {
            self.held_most = self.held_most.max(self.held);
        }
    }

    /// What they have together of what the limit counts: pages that relatives share once.
    pub(super) fn held(&self) -> Bytes {
        Bytes::of_pages(self.held)
    }

    /// The most that that was.
    pub(super) fn held_most(&self) -> Bytes {
        Bytes::of_pages(self.held_most)
    }

    /// What they hold above the limit, for longer than a moment.
    pub(super) fn excess(&self) -> &Excess {
        &self.excess
    }

    /// Takes note of what of a run with guests is above the limit, `unevictable` of which cannot
    /// leave though it is paged; returns a line the first time that it lasts.
    pub(super) fn note_excess(&mut self, processes: usize, unevictable: u64) -> Option<String> {
        let (stuck, limit) = (unevictable + self.apart, self.limit_pages());
        if !self.excess.note(self.held, stuck, limit) {
            return None;
        }
        let [held, stuck, limit] = [self.held, stuck, limit].map(Bytes::of_pages);
        let enough = Bytes((stuck.0 / (LEFT_PART - 1) * LEFT_PART).next_multiple_of(1 << 20));
        let who = if processes == 1 { "the process holds" } else { "its processes hold" };
        Some(format!(
            "{who} {held} in a limit of {limit}: {stuck} of it cannot leave memory, which is what \
             programs have written of their files' data, or lock; give --memory {enough:#} or more"
        ))
    }

    /// Notes what is not paged.
    pub(super) fn note_apart(&mut self, apart: u64) {
        self.apart = apart;
    }

    /// What is left to guests, if that has changed. What several have together counts once.
    pub(super) fn left(&mut self, family: &Family, guests: &Guests) -> Option<Bytes> {
        if guests.is_empty() {
            self.sharing = Sharing::default();
            return None;
        }
        let limit = self.limit_pages();
        let shared = self.shared(family, guests);
        let pages = limit.saturating_sub(self.apart).max(limit / LEFT_PART) + shared;
        // By steps, so that not every page of growth is a message.
        let is_much = pages.abs_diff(self.paged_most) * STEPS >= limit || pages == limit;
        is_much.then(|| self.leave(pages)).flatten()
    }

    fn shared(&mut self, family: &Family, guests: &Guests) -> u64 {
        let agents: Vec<Pid> = guests.iter().map(|(_, guest)| guest.agent.pid).collect();
        let has_guest = |parent: Option<Pid>| parent.is_some_and(|parent| guests.has(parent));
        let others = family.seen();
        let others = others.filter(|(pid, it)| !guests.has(*pid) && has_guest(it.last.parent));
        let others: Vec<Pid> = others.map(|(pid, _)| pid).collect();
        self.sharing.pages(&guests.pids(), &others, &agents)
    }

    fn leave(&mut self, pages: u64) -> Option<Bytes> {
        let before = std::mem::replace(&mut self.paged_most, pages);
        (before != pages).then(|| Bytes::of_pages(pages))
    }
}
