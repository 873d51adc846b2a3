//! A worker's queues to devices, and the inbox for queues to devices added later.

use overspill_area::AreaNo;
use overspill_base::sync::{Arc, Mutex};
use overspill_device::pace::Pace;
use overspill_device::{DeviceError, IoQueue, SwapDevice};

/// A device and one worker's queue to it.
pub(crate) struct DeviceQueue {
    pub(crate) device: Arc<dyn SwapDevice>,
    pub(crate) io: Box<dyn IoQueue>,
    pub(crate) synchronous: bool,
    /// The device's, as this worker finds it.
    pub(crate) pace: Pace,
}

impl DeviceQueue {
    fn open(device: &Arc<dyn SwapDevice>, depth: u32) -> Result<Self, DeviceError> {
        let synchronous = device.info().synchronous;
        let pace = Pace::unknown(depth as usize);
        Ok(Self { device: device.clone(), io: device.open_queue(depth)?, synchronous, pace })
    }
}

/// Queues that a worker has not taken over yet.
pub(crate) struct Inbox {
    pub(crate) queues: Mutex<Vec<(AreaNo, DeviceQueue)>>,
    pub(crate) queue_depth: u32,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

impl Inbox {
    /// Opens a queue to `device` with the worker's depth.
    pub(crate) fn open_queue(
        &self,
        device: &Arc<dyn SwapDevice>,
    ) -> Result<DeviceQueue, DeviceError> {
        DeviceQueue::open(device, self.queue_depth)
    }

    pub(crate) fn put(&self, area: AreaNo, queue: DeviceQueue) {
        self.queues.lock().push((area, queue));
    }
}
