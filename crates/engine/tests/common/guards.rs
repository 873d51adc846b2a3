//! The two ways to be sure of what a device returns.

use overspill_base::shared::Table;
use overspill_base::sync::{Arc, AtomicU64};
use overspill_device::SwapDevice;
use overspill_device::checksum::{Checksummed, TableStore};
use overspill_device::faulty::Faulty;
#[cfg(not(loom))]
use overspill_device::seal::{self, Keys, Sealed, Sealer, Seals};

pub(crate) fn checksummed(device: Arc<Faulty>) -> Arc<dyn SwapDevice> {
    let words = Table::on_heap(device.info().slots_max as usize, || AtomicU64::new(0));
    Arc::new(Checksummed::new(device, Arc::new(TableStore::new(words)), 7))
}

#[cfg(not(loom))]
pub(crate) fn sealed(device: Arc<Faulty>) -> Arc<dyn SwapDevice> {
    let words = device.info().slots_max as usize * Seals::WORDS;
    let seals = Seals::new(Table::on_heap(words, || AtomicU64::new(0)));
    let file = tempfile::tempfile().unwrap();
    file.set_len(Keys::FILE_BYTES as u64).unwrap();
    let keys = Keys::draw(&file).unwrap();
    let sealer = Sealer::new(seal::Algorithm::of_this_machine(), keys, 0, seals);
    Arc::new(Sealed::new(device, sealer))
}
