//! The two ways to be sure of what a device returns.

use overspill_area::{SlotFreeNotify, SwapArea};
use overspill_base::Slot;
use overspill_base::shared::Table;
use overspill_base::sync::{Arc, AtomicU64};
use overspill_device::checksum::{Checksummed, TableStore};
use overspill_device::faulty::Faulty;
#[cfg(not(loom))]
use overspill_device::seal::{self, Sealed, Sealer, Seals};
use overspill_device::{FreeNotify, SwapDevice};

pub(crate) fn checksummed(device: Arc<Faulty>) -> Arc<dyn SwapDevice> {
    let words = Table::on_heap(device.info().slots_max as usize, || AtomicU64::new(0));
    Arc::new(Checksummed::new(device, Arc::new(TableStore::new(words)), 7))
}

#[cfg(not(loom))]
pub(crate) fn sealed(device: Arc<Faulty>) -> Arc<dyn SwapDevice> {
    let words = device.info().slots_max as usize * Seals::WORDS;
    let seals = Seals::new(Table::on_heap(words, || AtomicU64::new(0)));
    let sealer = Sealer::new(seal::Algorithm::of_this_machine(), seals).unwrap();
    Arc::new(Sealed::new(device, sealer))
}

#[derive(Debug)]
struct Notify(Arc<dyn FreeNotify>);

impl SlotFreeNotify for Notify {
    fn slot_free(&self, slot: Slot) {
        self.0.slot_free(slot);
    }
}

/// The area, which notifies `device` if it wants that.
pub(crate) fn notifying(area: SwapArea, device: &dyn SwapDevice) -> SwapArea {
    match device.free_notify() {
        Some(notify) => area.notifying(Box::new(Notify(notify))),
        None => area,
    }
}
