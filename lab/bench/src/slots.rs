//! All of the bench's use of swap areas.
//!
//! Owns: making an area, its state before a measurement, and the counted replay: the locks that
//! allocating and freeing takes, by one thread that plays every CPU in turn. That figure is the
//! same on every machine: it does not depend on the scheduler or the number of real CPUs.
//! Not here: threads, time.

use overspill_area::SwapEntry;
use overspill_area::{AreaConfig, AreaNo, AreaTuning, SlotTable, SwapArea, SwapAreas};
use overspill_base::Slot;
use overspill_base::sync::{LockClass, count_locks, lock_table};
use serde::Serialize;

/// State of a device before a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// Empty.
    Fresh,
    /// Filled, then a random half of the slots freed: no cluster is free.
    HalfFull,
    /// Filled, then a random tenth freed.
    NinetyPercentFull,
}

impl DeviceState {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::HalfFull => "half full, fragmented",
            Self::NinetyPercentFull => "90 % full, fragmented",
        }
    }

    /// Returns the share of the filled slots to free again.
    fn freed_share(self) -> f64 {
        match self {
            Self::Fresh => 1.0,
            Self::HalfFull => 0.5,
            Self::NinetyPercentFull => 0.1,
        }
    }
}

/// Slots of a 64 MiB trunk.
const TRUNK_SLOTS: u32 = 1 << 14;
/// Slots allocated at a time: SWAP_CLUSTER_MAX, what a round of reclaim needs.
pub(crate) const ASK_SLOTS: usize = 32;

/// Makes an area of `slots` slots, all of them usable except `reserved`.
pub(crate) fn area(slots: u32, reserved: &[Slot], tuning: AreaTuning, cpus: usize) -> SwapArea {
    let config = config(tuning, cpus);
    let area = SwapArea::new(AreaNo(0), SlotTable::on_heap(slots, config, reserved), config);
    area.set_capacity_slots(slots);
    area
}

/// Makes a single area, with slot 0 reserved as on a device.
pub(crate) fn single(slots: u32, tuning: AreaTuning, cpus: usize) -> SwapAreas {
    let areas = SwapAreas::new(config(tuning, cpus));
    areas.add(area(slots, &[Slot(0)], tuning, cpus), 0);
    areas
}

fn config(tuning: AreaTuning, cpus: usize) -> AreaConfig {
    AreaConfig { tuning, cpus, rotational: false, discard: false }
}

/// Appends up to `want` entries to `out`.
pub(crate) fn take(areas: &SwapAreas, cpu: usize, want: usize, out: &mut Vec<SwapEntry>) -> usize {
    areas.alloc(cpu, want, &(), out)
}

/// Frees an entry.
pub(crate) fn give(areas: &SwapAreas, cpu: usize, entry: SwapEntry) {
    areas.free(cpu, entry);
}

/// Brings empty areas into `state`.
pub(crate) fn prepare(areas: &SwapAreas, state: DeviceState, random: &mut fastrand::Rng) {
    if state == DeviceState::Fresh {
        return;
    }
    let mut filled = Vec::new();
    while take(areas, 0, ASK_SLOTS, &mut filled) > 0 {}
    random.shuffle(&mut filled);
    let freed = (filled.len() as f64 * state.freed_share()) as usize;
    filled.into_iter().take(freed).for_each(|entry| give(areas, 0, entry));
    areas.drain();
}

/// Allocates and frees `slots` slots, a few at a time, so that the area's own tables are allocated.
pub(crate) fn walk(areas: &SwapAreas, slots: u32) {
    let mut few = Vec::with_capacity(ASK_SLOTS);
    for _ in 0..slots as usize / ASK_SLOTS {
        take(areas, 0, ASK_SLOTS, &mut few);
        few.drain(..).for_each(|entry| give(areas, 0, entry));
    }
    areas.drain();
}

/// Returns the 64 MiB trunk of the device, and of the swap cache, that contains an entry.
pub(crate) fn trunk(entry: SwapEntry) -> u64 {
    entry.to_bits() / u64::from(TRUNK_SLOTS)
}

/// Returns the share of all pairs of CPUs whose latest slots lie in the same trunk.
pub(crate) fn same_trunk_share(trunks: &[u64]) -> f64 {
    let pairs =
        trunks.iter().enumerate().flat_map(|(n, a)| trunks[..n].iter().map(move |b| a == b));
    let (same, all) = pairs.fold((0, 0), |(same, all), hit| (same + usize::from(hit), all + 1));
    if all == 0 { 0.0 } else { f64::from(same as u32) / f64::from(all as u32) }
}

/// The acquisitions of their area's lock that slots cost, and where they lie.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CountedSlots {
    /// Slots allocated per acquisition of the area's lock; none if it was not taken.
    pub slots_per_lock: Option<f64>,
    /// Slots freed per acquisition of the area's lock.
    pub frees_per_lock: Option<f64>,
    /// Probability that the latest slots of two CPUs lie in the same 64 MiB trunk.
    pub same_trunk: f64,
}

/// Slots each CPU of the replay holds.
const HELD_SLOTS: usize = 512;
/// Times each CPU's slots are exchanged.
const TURNOVERS: usize = 4;

/// Replays allocation and freeing by `cpus` CPUs in turn over an area of `slots` slots: each holds
/// some slots, and exchanges random ones for new ones. The process must do nothing else meanwhile.
pub(crate) fn counted(
    tuning: AreaTuning,
    slots: u32,
    cpus: usize,
    state: DeviceState,
) -> CountedSlots {
    let mut random = fastrand::Rng::with_seed(u64::from(slots));
    let areas = single(slots, tuning, cpus);
    prepare(&areas, state, &mut random);
    let mut held: Vec<Vec<SwapEntry>> = vec![Vec::new(); cpus];
    for (cpu, held) in held.iter_mut().enumerate() {
        take(&areas, cpu, HELD_SLOTS, held);
    }
    let mut tally = Tally::default();
    count_locks(true);
    for _ in 0..TURNOVERS * HELD_SLOTS / ASK_SLOTS {
        for (cpu, held) in held.iter_mut().enumerate() {
            exchange(&areas, cpu, held, &mut random, &mut tally);
        }
        let latest: Vec<u64> =
            held.iter().filter_map(|held| held.last().copied().map(trunk)).collect();
        tally.same_trunk.push(same_trunk_share(&latest));
    }
    count_locks(false);
    tally.counted()
}

fn exchange(
    areas: &SwapAreas,
    cpu: usize,
    held: &mut Vec<SwapEntry>,
    random: &mut fastrand::Rng,
    tally: &mut Tally,
) {
    let before = area_locks();
    for _ in 0..ASK_SLOTS.min(held.len()) {
        give(areas, cpu, held.swap_remove(random.usize(..held.len())));
        tally.frees += 1;
    }
    let between = area_locks();
    tally.slots += take(areas, cpu, ASK_SLOTS, held) as u64;
    tally.free_locks += between - before;
    tally.slot_locks += area_locks() - between;
}

/// Returns the acquisitions of the area's lock so far.
fn area_locks() -> u64 {
    let table = lock_table().into_iter();
    table
        .filter(|(class, _)| matches!(class, LockClass::Area | LockClass::ClusterLists))
        .map(|(_, s)| s.acquisitions)
        .sum()
}

#[derive(Default)]
struct Tally {
    slots: u64,
    slot_locks: u64,
    frees: u64,
    free_locks: u64,
    same_trunk: Vec<f64>,
}

impl Tally {
    fn counted(&self) -> CountedSlots {
        let per = |n: u64, locks: u64| (locks > 0).then(|| n as f64 / locks as f64);
        CountedSlots {
            slots_per_lock: per(self.slots, self.slot_locks),
            frees_per_lock: per(self.frees, self.free_locks),
            same_trunk: self.same_trunk.iter().sum::<f64>() / self.same_trunk.len().max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_in_one_trunk_are_counted_once() {
        // Pairs of 1 1 2 2: six, of which two agree.
        assert_eq!(same_trunk_share(&[1, 1, 2, 2]), 2.0 / 6.0);
        assert_eq!(same_trunk_share(&[5]), 0.0);
    }

    #[test]
    fn a_fragmented_device_has_the_share_free_and_no_free_cluster() {
        let tuning = AreaTuning { cluster_slots: 16, ..AreaTuning::default() };
        let areas = single(4096, tuning, 1);
        prepare(&areas, DeviceState::HalfFull, &mut fastrand::Rng::with_seed(1));
        let mut free = Vec::new();
        while take(&areas, 0, ASK_SLOTS, &mut free) > 0 {}
        assert_eq!(free.len(), 4095 / 2);
        let runs = free.chunk_by(|a, b| a.precedes(*b)).map(<[_]>::len).max();
        assert!(runs < Some(16), "a run of {runs:?} free slots");
    }
}
