//! How a device becomes a swap area of an engine.
//!
//! Owns: the tables of an area that one process has for itself, where the checksums of its slots
//! are, and whom a slot without holders is told of.
//! Not here: tables that processes share, which they make themselves; the device.

use crate::swaps::Swap;
use overspill_area::TAG_BITS;
use overspill_area::{AreaConfig, AreaNo, AreaTables, MemberNo, SlotFreeNotify, SlotMap, SwapArea};
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::Arc;
use overspill_device::checksum::{Checksum, ChecksumStore, Checksummed};
use overspill_device::{FreeNotify, SwapDevice};

impl Swap {
    /// Makes a swap area of `device`, with checksums keyed by `seed` unless the device verifies
    /// what it reads, for one of the processes that share `tables`.
    pub fn join(
        number: AreaNo,
        device: Arc<dyn SwapDevice>,
        tables: AreaTables,
        (priority, member, seed): (i16, MemberNo, u64),
    ) -> Self {
        let area = area_of(number, &device, tables, member);
        let device: Arc<dyn SwapDevice> = if device.info().verifies {
            device
        } else {
            Arc::new(Checksummed::new(device, Arc::new(SlotTags(area.slot_map())), seed))
        };
        Self { device, area, priority }
    }

    /// As [`join`](Self::join), for one process alone.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn private(
        number: AreaNo,
        device: Arc<dyn SwapDevice>,
        priority: i16,
        seed: u64,
    ) -> std::io::Result<Self> {
        let tables = private_tables(&*device)?;
        Ok(Self::join(number, device, tables, (priority, MemberNo(0), seed)))
    }
}

/// Allocates tables for one process.
///
/// # Errors
/// ENOMEM.
pub fn private_tables(device: &dyn SwapDevice) -> std::io::Result<AreaTables> {
    let info = device.info();
    let cluster_slots = AreaConfig::native().tuning.cluster_slots;
    let clusters = info.slots_max.div_ceil(cluster_slots) as usize;
    let tables = AreaTables {
        slots_max: info.slots_max,
        slots: Table::private(clusters * cluster_slots as usize)?,
        owners: Table::private(clusters)?,
        returned: Table::private(clusters)?,
        counters: Table::private(AreaTables::COUNTERS)?,
        holds: Vec::new(),
    };
    tables.format(&info.reserved);
    Ok(tables)
}

/// Makes the area of a device's slots.
fn area_of(
    number: AreaNo,
    device: &Arc<dyn SwapDevice>,
    tables: AreaTables,
    member: MemberNo,
) -> SwapArea {
    let info = device.info();
    let config = AreaConfig {
        rotational: info.rotational,
        discard: info.page_discard,
        ..AreaConfig::native()
    };
    let mut area = SwapArea::new(number, tables, config, member);
    if let Some(notify) = device.free_notify() {
        area = area.notifying(Box::new(DeviceNotify(notify)));
    }
    area
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
