//! The experiments: the two engines compared for each mechanism, and what was published.
//!
//! Owns: the table. Each mechanism is switched on over the state of the art in which its patch
//! landed: the parts of the 4.11 series one after another, in the order of the series.
//! Sources: the mails of the patches. If a claimed percentage and the published figures disagree,
//! both are given.
//! Not here: running them.

use crate::slots::DeviceState;
use crate::workload::Pattern;
use overspill_area::{Allocator, Preset, ScanBase};
use overspill_engine::Tuning;
use serde::Serialize;

/// A published figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    /// What was measured.
    pub what: &'static str,
    /// Without the patch, if published.
    pub before: &'static str,
    /// With it.
    pub after: &'static str,
    /// The change that the mail claims.
    pub claimed: &'static str,
    /// The change computed from its figures.
    pub recomputed: &'static str,
}

/// Two engines that differ in one mechanism.
#[derive(Clone, Debug)]
pub(crate) struct Mechanism {
    /// The name of its switch.
    pub(crate) name: &'static str,
    pub(crate) before: Side,
    pub(crate) after: Side,
    pub(crate) state: DeviceState,
    pub(crate) pattern: Pattern,
    /// Where its figures were published; empty if they were not.
    pub(crate) source: &'static str,
    pub(crate) published: &'static [Published],
}

/// An engine with its name.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) tuning: Tuning,
}

impl Side {
    fn preset(preset: Preset) -> Self {
        Self { name: preset.name().to_owned(), tuning: Tuning::of(preset) }
    }

    /// Returns this side with one more mechanism.
    fn with(&self, name: &str, change: impl FnOnce(&mut Tuning)) -> Self {
        let mut tuning = self.tuning;
        change(&mut tuning);
        Self { name: format!("{} + {name}", self.name), tuning }
    }
}

/// A part of the 4.11 series: its switch, and what it switches.
type Part = (&'static str, fn(&mut Tuning));

/// In the order of the series.
const SERIES: [Part; 6] = [
    ("cluster_locks", |t| t.area.cluster_locks = true),
    ("swap_cache_trunk", |t| t.swap_cache_trunk_shift = 14),
    ("readahead_skip_unreferenced", |t| t.readahead_skip_unreferenced = true),
    ("slot_batch", |t| t.area.slot_batch = 64),
    ("free_batch", |t| t.area.free_batch = 64),
    ("slot_cache", |t| t.area.slot_cache = true),
];

/// Returns every experiment, in the order of the releases.
pub(crate) fn all() -> Vec<Mechanism> {
    let mut all = vec![rotate_batch()];
    all.extend(series());
    all.extend([whole_series(), scan_more(), scan_base(), allocator()]);
    all
}

fn rotate_batch() -> Mechanism {
    let before = Side::preset(Preset::Linux2_6_23);
    let after = before.with("rotate_batch 14", |tuning| tuning.rotate_batch_pages = 14);
    Mechanism {
        published: ROTATE_PUBLISHED,
        source: "linux-mm, 18 Sep 2007: flood ping during memory pressure, 4 CPUs, 3000 packets",
        ..random("rotate_batch", before, after, DeviceState::Fresh)
    }
}

fn series() -> Vec<Mechanism> {
    let mut before = Side::preset(Preset::Linux4_8);
    let step = |&(name, change): &Part| {
        let after = before.with(name, change);
        let before = std::mem::replace(&mut before, after.clone());
        // The effect on readahead shows only if pages are read ahead.
        let ahead = name == "readahead_skip_unreferenced";
        let pattern = if ahead { Pattern::Sequential } else { Pattern::Random };
        Mechanism { pattern, ..random(name, before, after, DeviceState::Fresh) }
    };
    SERIES.iter().map(step).collect()
}

fn whole_series() -> Mechanism {
    let sides = [Preset::Linux4_8, Preset::Linux4_11].map(Side::preset);
    let [before, after] = sides;
    Mechanism {
        published: SERIES_PUBLISHED,
        source: "LKML, Sep 2016, swap scalability series: 8 threads, 2 sockets, swap in pmem",
        ..random("series_4_11", before, after, DeviceState::Fresh)
    }
}

fn scan_more() -> Mechanism {
    let before = Side::preset(Preset::Linux5_7);
    let after = before.with("scan_more", |tuning| tuning.area.scan_more = true);
    Mechanism {
        published: SCAN_MORE_PUBLISHED,
        source: "LKML, 27 Apr 2020: pmbench, 16 processes, 80/20, 2 sockets of 24 cores, ram disks",
        ..random("scan_more", before, after, DeviceState::HalfFull)
    }
}

fn scan_base() -> Mechanism {
    let old = Side::preset(Preset::Linux5_7);
    let before = old.with("scan_more", |tuning| tuning.area.scan_more = true);
    let after = before.with("scan_base per CPU", |t| t.area.scan_base = ScanBase::PerCpu);
    Mechanism {
        published: SCAN_BASE_PUBLISHED,
        source: "LKML, 20 May 2020 (v2): as scan_more, one ram disk per socket",
        ..random("scan_base", before, after, DeviceState::HalfFull)
    }
}

fn allocator() -> Mechanism {
    let before = Side::preset(Preset::Linux5_8);
    let after = before.with("cluster lists", |t| t.area.allocator = Allocator::Lists);
    random("allocator", before, after, DeviceState::HalfFull)
}

/// An experiment on the published workload without published figures.
fn random(name: &'static str, before: Side, after: Side, state: DeviceState) -> Mechanism {
    let pattern = Pattern::Random;
    Mechanism { name, before, after, state, pattern, source: "", published: &[] }
}

const fn published(
    what: &'static str,
    before: &'static str,
    after: &'static str,
    claimed: &'static str,
    recomputed: &'static str,
) -> Published {
    Published { what, before, after, claimed, recomputed }
}

const ROTATE_PUBLISHED: &[Published] = &[
    published("ping avg, ms", "0.652", "0.108", "", "6.0 times less"),
    published("ping max, ms", "172.228", "3.884", "", "44 times less"),
    published("ping mdev, ms", "7.176", "0.114", "", "63 times less"),
    published("ping max with a reference per page, ms", "172.228", "4.716", "", "37 times less"),
];

const SERIES_PUBLISHED: &[Published] = &[published(
    "fault latency added by the kernel, median, µs",
    "15",
    "4",
    "\"375 % reduction\"",
    "-73 %, 3.75 times faster",
)];

const SCAN_MORE_PUBLISHED: &[Published] = &[
    published("score", "", "", "+37.1 %", ""),
    published("swap-in, GB/s", "2.02", "2.94", "+45.7 %", "+45.5 %"),
    published("swap-out, GB/s", "2.04", "2.97", "+45.3 %", "+45.6 %"),
    published("device lock in get_swap_pages, % of cycles", "21.03", "gone", "", ""),
    published("LRU lock in shrink_inactive_list, % of cycles", "1.92", "4.89", "", ""),
    published("LRU lock in shrink_active_list, % of cycles", "1.72", "3.85", "", ""),
];

const SCAN_BASE_PUBLISHED: &[Published] = &[
    published("score", "", "", "+18.5 %", ""),
    published("swap-in, GB/s", "2.96", "3.51", "+18.7 %", "+18.6 %"),
    published("swap-out, GB/s", "2.99", "3.54", "+18.5 %", "+18.4 %"),
    published("swap cache lock in add_to_swap_cache, % of cycles", "7.91", "gone", "", ""),
    published("swap cache lock in __remove_mapping, % of cycles", "7.11", "gone", "", ""),
    published("device lock in swapcache_free_entries, % of cycles", "2.51", "3.58", "", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// All but the name: neither release changed a rule that has no switch.
    fn switches(tuning: Tuning) -> Tuning {
        Tuning { preset: Preset::Modern, ..tuning }
    }

    #[test]
    fn the_parts_of_the_series_add_up_to_it() {
        let last = series().pop().unwrap().after.tuning;
        assert_eq!(switches(last), switches(Tuning::of(Preset::Linux4_11)));
    }

    #[test]
    fn both_patches_of_5_8_make_5_8() {
        let after = scan_base().after.tuning;
        assert_eq!(switches(after), switches(Tuning::of(Preset::Linux5_8)));
    }

    #[test]
    fn the_two_sides_differ() {
        assert!(all().iter().all(|mechanism| mechanism.before.tuning != mechanism.after.tuning));
    }
}
