//! Ways to devices: a worker's own queue to each, and how it gets one to a device that comes later.

use overspill_area::AreaNo;
use overspill_base::sync::{Arc, Mutex};
use overspill_device::{DeviceError, IoQueue, SwapDevice};

/// A device and one worker's way to it.
pub(crate) struct Lane {
    pub(crate) device: Arc<dyn SwapDevice>,
    pub(crate) queue: Box<dyn IoQueue>,
    pub(crate) synchronous: bool,
}

impl Lane {
    fn open(device: &Arc<dyn SwapDevice>, depth: u32) -> Result<Self, DeviceError> {
        let synchronous = device.info().synchronous;
        Ok(Self { device: device.clone(), queue: device.open_queue(depth)?, synchronous })
    }
}

/// Lanes on their way to a worker.
pub(crate) struct Mail {
    pub(crate) lanes: Mutex<Vec<(AreaNo, Lane)>>,
    pub(crate) queue_depth: u32,
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mail")
    }
}

impl Mail {
    /// A way to `device` that suits the worker.
    pub(crate) fn open_lane(&self, device: &Arc<dyn SwapDevice>) -> Result<Lane, DeviceError> {
        Lane::open(device, self.queue_depth)
    }

    pub(crate) fn put(&self, area: AreaNo, lane: Lane) {
        self.lanes.lock().push((area, lane));
    }
}
