//! Small areas for tests.

use overspill_area::{
    AreaConfig, AreaNo, AreaTuning, Preset, SlotReclaim, SlotTable, SwapArea, SwapAreas, SwapEntry,
};
use overspill_base::Slot;

pub(crate) const CPUS: usize = 2;
pub(crate) const SLOTS: u32 = 18;

/// Returns the switches of `preset` with clusters of 4, batches of 2, trunks of 8 and scans of 4
/// slots.
pub(crate) fn config(preset: Preset) -> AreaConfig {
    let tuning = AreaTuning::of(preset);
    let tuning = AreaTuning {
        slot_batch: tuning.slot_batch.min(2),
        free_batch: tuning.free_batch.min(2),
        cluster_slots: 4,
        trunk_slots: 8,
        scan_limit_slots: 4,
        ..tuning
    };
    AreaConfig { tuning, cpus: CPUS, rotational: false, discard: false }
}

/// Wraps a single area.
pub(crate) fn lone(config: AreaConfig, area: SwapArea) -> SwapAreas {
    let areas = SwapAreas::new(config);
    areas.add(area, 0);
    areas
}

/// Makes one area of [`SLOTS`] slots, `capacity` of them available, and 0 and 7 reserved.
pub(crate) fn areas(config: AreaConfig, capacity: u32) -> SwapAreas {
    let table = SlotTable::on_heap(SLOTS, config, &[Slot(0), Slot(7)]);
    let area = SwapArea::new(AreaNo(0), table, config);
    area.set_capacity_slots(capacity);
    lone(config, area)
}

/// Makes one area of `slots` slots, all available.
pub(crate) fn single(config: AreaConfig, slots: u32, reserved: &[Slot]) -> SwapAreas {
    let area = SwapArea::new(AreaNo(0), SlotTable::on_heap(slots, config, reserved), config);
    area.set_capacity_slots(slots);
    lone(config, area)
}

/// Discards at once, as the engine does, and checks that the slots are not in use.
pub(crate) struct Discarder<'a>(pub(crate) &'a SwapAreas);

impl SlotReclaim for Discarder<'_> {
    fn grow(&self, _: AreaNo) -> bool {
        false
    }

    fn reclaim_slot(&self, _: SwapEntry) -> bool {
        false
    }

    fn discard(&self, number: AreaNo) -> bool {
        let area = self.0.get(number);
        let taken = std::iter::from_fn(|| area.take_discard());
        taken
            .inspect(|&(first, slots)| {
                let map = area.slot_map();
                for slot in (0..slots as usize).map(|n| first.plus(n)) {
                    // E41: free, or reserved for the discard.
                    assert_ne!(map.holders(slot), Some(1), "slot {slot} in use is discarded");
                }
                area.discarded(first);
            })
            .count()
            > 0
    }
}
