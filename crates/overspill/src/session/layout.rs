//! Where everything is in the session's file.
//!
//! Owns: the offsets. Everything starts on a page.
//! Not here: what the parts mean.

use super::Settings;
use super::budget::BudgetLayout;
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

impl AreaLayout {
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
        let mut end = SETTINGS_BYTES;
        let mut place = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(PAGE_SIZE);
            start
        };
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
        let areas = settings.devices.iter().map(|device| {
            let slots_max = device.attachment.slots_max;
            let encrypted = device.attachment.encrypted;
            let mut area = AreaLayout { slots_max, ..AreaLayout::default() };
            area.slots = place(area.slot_words() * 8);
            area.owners = place(area.clusters() * 4);
            area.returned = place(area.clusters() * 4);
            area.counters = place(AreaTables::COUNTERS * 4);
            area.holds = place(MEMBERS_MAX * area.hold_words() * 8);
            area.seal_words = if encrypted { slots_max as usize * Seals::WORDS } else { 0 };
            area.seals = place(area.seal_words * 8);
            area
        });
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
            areas,
            len_bytes: end,
        }
    }
}
