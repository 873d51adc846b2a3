//! How a device becomes a swap area of an engine.
//!
//! Owns: the memory of the area's slots, where their checksums are, and whom a slot without holders
//! is told of.
//! Not here: the device.

use crate::swaps::Swap;
use overspill_area::TAG_BITS;
use overspill_area::{AreaConfig, AreaNo, SlotFreeNotify, SlotMap, SlotTable, SwapArea};
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::Arc;
use overspill_device::checksum::{Checksum, ChecksumStore, Checksummed};
use overspill_device::{FreeNotify, SwapDevice};

impl Swap {
    /// Makes a swap area of `device` and the [`slot_table`] made for it, with checksums keyed by
    /// `seed` unless the device verifies what it reads.
    pub fn new(
        number: AreaNo,
        device: Arc<dyn SwapDevice>,
        slots: SlotTable,
        (priority, seed): (i16, u64),
    ) -> Self {
        let area = area_of(number, &device, slots);
        let device: Arc<dyn SwapDevice> = if device.info().verifies {
            device
        } else {
            Arc::new(Checksummed::new(device, Arc::new(SlotTags(area.slot_map())), seed))
        };
        Self { device, area, priority }
    }
}

/// Makes the area of a device's slots.
fn area_of(number: AreaNo, device: &Arc<dyn SwapDevice>, slots: SlotTable) -> SwapArea {
    let info = device.info();
    let config = AreaConfig {
        rotational: info.rotational,
        discard: info.page_discard,
        ..AreaConfig::native()
    };
    let area = SwapArea::new(number, slots, config);
    match device.free_notify() {
        Some(notify) => area.notifying(Box::new(DeviceNotify(notify))),
        None => area,
    }
}

/// Makes a table of a device's slots, in memory that becomes resident only where it is touched.
///
/// # Errors
/// ENOMEM.
pub fn slot_table(device: &dyn SwapDevice) -> std::io::Result<SlotTable> {
    let (info, config) = (device.info(), AreaConfig::native());
    let slots_max = config.slots_used(info.slots_max);
    let words = Table::private(SlotTable::words(slots_max, config))?;
    let reserved = info.reserved.iter().copied().filter(|slot| slot.0 < slots_max);
    Ok(SlotTable::new(words, slots_max, &reserved.collect::<Vec<_>>()))
}

/// Notifies a device of every slot that has lost its last holder. The slot's checksum vanishes with
/// the hold.
#[derive(Debug)]
struct DeviceNotify(Arc<dyn FreeNotify>);

impl SlotFreeNotify for DeviceNotify {
    fn slot_free(&self, slot: Slot) {
        self.0.slot_free(slot);
    }
}

/// Checksums kept in the slots' words, where they vanish with the slot's last holder.
#[derive(Debug)]
struct SlotTags(SlotMap);

const _: () = assert!(TAG_BITS == Checksum::BITS);

impl ChecksumStore for SlotTags {
    fn get(&self, slot: Slot) -> Checksum {
        Checksum(self.0.tag(slot))
    }

    fn set(&self, slot: Slot, checksum: Checksum) {
        self.0.set_tag(slot, checksum.0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use overspill_device::{DeviceError, DeviceInfo, IoQueue};

    /// All that is asked of a device of which a server on the network says so.
    #[derive(Debug)]
    struct Largest(DeviceInfo);

    impl SwapDevice for Largest {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }

        fn grow(&self, _: u32) -> Result<u32, DeviceError> {
            Ok(u32::MAX)
        }

        fn open_queue(&self, _: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
            unreachable!("nothing is read or written")
        }

        fn discard(&self, _: Slot, _: u32) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    /// Slots beyond the last whole cluster are not used: the number after them is none.
    #[test]
    fn the_largest_device_there_can_be_has_room() {
        for slots_max in [u32::MAX, u32::MAX - 1, u32::MAX - 511, u32::MAX - 512] {
            let reserved = vec![Slot(0), Slot(slots_max - 1)];
            let info = DeviceInfo { slots_max, reserved, verifies: true, ..DeviceInfo::default() };
            let device = Arc::new(Largest(info));
            let slots = slot_table(&*device).unwrap();
            let swap = Swap::new(AreaNo(0), device, slots, (0, 7));
            swap.area.set_capacity_slots(slots_max);
            let mut slots = Vec::new();
            assert_eq!(swap.area.alloc(0, 3, &(), &mut slots), 3);
            assert!(swap.area.free_slots() > slots_max - 2000, "{}", swap.area.free_slots());
        }
    }
}
