//! Where everything is in the session's file.
//!
//! Owns: the offsets. Everything starts on a page. Areas that are added lie behind it
//! ([`areas`](super::areas)).
//! Not here: what the parts mean.

use super::areas::ADDED_MAX;
use super::budget::BudgetLayout;
use super::{Settings, SharedDevice};
use overspill_area::{AreaConfig, AreaTables, MEMBERS_MAX};
use overspill_base::PAGE_SIZE;
use overspill_base::history::History;
use overspill_base::stats::stats_len;
use overspill_device::seal::Seals;

/// Space for the settings at the start of the file.
pub(super) const SETTINGS_BYTES: usize = 256 << 10;

/// The layout of the file.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) members: usize,
    pub(super) processes: usize,
    pub(super) under_way: usize,
    pub(super) budget: BudgetLayout,
    pub(super) shares: usize,
    pub(super) totals: usize,
    pub(super) accounts: usize,
    pub(super) verdict: usize,
    pub(super) stats: usize,
    pub(super) history: usize,
    pub(super) annexes: usize,
    pub(super) areas_taken: usize,
    pub(super) areas_left: usize,
    pub(super) leaving: usize,
    pub(super) areas: Vec<AreaLayout>,
    pub(super) len_bytes: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct AreaLayout {
    pub(super) slots_max: u32,
    pub(super) slots: usize,
    pub(super) owners: usize,
    pub(super) returned: usize,
    pub(super) counters: usize,
    pub(super) holds: usize,
    pub(super) seals: usize,
    pub(super) seal_words: usize,
}

/// Takes space, on pages of its own.
struct Places {
    end: usize,
}

impl Places {
    fn take(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end += bytes.next_multiple_of(PAGE_SIZE);
        start
    }
}

impl AreaLayout {
    fn new(device: &SharedDevice, places: &mut Places) -> Self {
        let slots_max = device.attachment.slots_max;
        let encrypted = device.attachment.encrypted;
        let mut area = Self { slots_max, ..Self::default() };
        area.slots = places.take(area.slot_words() * 8);
        area.owners = places.take(area.clusters() * 4);
        area.returned = places.take(area.clusters() * 4);
        area.counters = places.take(AreaTables::COUNTERS * 4);
        area.holds = places.take(MEMBERS_MAX * area.hold_words() * 8);
        area.seal_words = if encrypted { slots_max as usize * Seals::WORDS } else { 0 };
        area.seals = places.take(area.seal_words * 8);
        area
    }

    /// The tables in an annex that begins at `start`, and its end.
    pub(super) fn in_annex(device: &SharedDevice, start: usize) -> (Self, usize) {
        let mut places = Places { end: start + SETTINGS_BYTES };
        let area = Self::new(device, &mut places);
        (area, places.end)
    }

    pub(super) fn clusters(&self) -> usize {
        self.slots_max.div_ceil(AreaConfig::native().tuning.cluster_slots) as usize
    }

    pub(super) fn slot_words(&self) -> usize {
        self.clusters() * AreaConfig::native().tuning.cluster_slots as usize
    }

    pub(super) fn hold_words(&self) -> usize {
        self.slot_words().div_ceil(64)
    }
}

impl Layout {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut places = Places { end: SETTINGS_BYTES };
        let mut place = |bytes| places.take(bytes);
        let members = place(MEMBERS_MAX * 8);
        let processes = place(MEMBERS_MAX * 8);
        let under_way = place(MEMBERS_MAX * 4);
        let budget = BudgetLayout::of(settings.frames_max());
        let shares = place(budget.owner_bytes());
        let totals = place(BudgetLayout::TOTAL_BYTES);
        let accounts = place(BudgetLayout::ACCOUNT_BYTES);
        let verdict = place(4);
        let stats = place(MEMBERS_MAX * stats_len() * 8);
        let history = place(History::words(settings.history_entries) * 8);
        let annexes = place(ADDED_MAX * 8);
        let areas_taken = place(MEMBERS_MAX * 4);
        let areas_left = place(MEMBERS_MAX * 4);
        let leaving = place(4);
        let areas = settings.devices.iter().map(|device| AreaLayout::new(device, &mut places));
        let areas = areas.collect();
        Self {
            members,
            processes,
            under_way,
            budget,
            shares,
            totals,
            accounts,
            verdict,
            stats,
            history,
            annexes,
            areas_taken,
            areas_left,
            leaving,
            areas,
            len_bytes: places.end,
        }
    }
}
