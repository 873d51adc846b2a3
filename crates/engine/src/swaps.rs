//! The engine's state of each swap area beside its slots, and the workers' queues to its device.
//!
//! Owns: the devices, the readahead state of their areas, and the delivery of a queue to each of
//! them to every worker's inbox.
//! Invariants: an area's number is never reused, so a stale entry never names another area. A
//! worker never lacks a queue: workers are registered and areas attached under one lock, and the
//! later of the two opens the queues.
//! Not here: slots (`area`); reading pages back (`swapoff`).
//! Rejected: opening a queue when a worker first needs it. That can fail in the middle of a fault,
//! for lack of a descriptor, and lose the page.

use crate::known_pace::KnownPace;
use crate::queues::Inbox;
use crate::readahead::past::by_slot::BySlot;
use overspill_area::{AreaNo, SwapArea};
use overspill_base::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use overspill_base::sync::{Arc, AtomicBool, AtomicU32, AtomicUsize, LockClass, Mutex};
use overspill_device::{DeviceError, DeviceInfo, SwapDevice};
use std::sync::{OnceLock, Weak};

/// A device and the area that allocates its slots.
#[derive(Debug)]
pub struct Swap {
    /// The device that pages are written to.
    pub device: Arc<dyn SwapDevice>,
    /// Its slots.
    pub area: SwapArea,
    /// Higher is used first; equals take turns.
    pub priority: i16,
}

/// One area's state.
#[derive(Debug)]
pub(crate) struct SwapState {
    /// False if the tuning has no readahead on a device as fast as memory.
    pub(crate) reads_ahead: bool,
    /// The device is as fast as memory, and seeks cost nothing.
    pub(crate) synchronous: bool,
    /// Most pages in a write.
    pub(crate) write_pages_max: usize,
    /// The state of readahead by slot.
    pub(crate) by_slot: Option<BySlot>,
    /// How fast the device is found to be.
    pub(crate) pace: KnownPace,
    /// Higher is used first.
    pub(crate) priority: i16,
    /// Being swapped off, or swapped off: no page may stay on its slots.
    leaving: AtomicBool,
}

impl SwapState {
    /// Makes the state of a new area.
    pub(crate) fn new(
        priority: i16,
        reads_ahead: bool,
        device: &DeviceInfo,
        by_slot: Option<BySlot>,
    ) -> Self {
        let write_pages_max = device.write_pages_usual.unwrap_or(usize::MAX);
        let (synchronous, leaving) = (device.synchronous, AtomicBool::new(false));
        let pace = KnownPace::default();
        Self { priority, reads_ahead, synchronous, write_pages_max, by_slot, pace, leaving }
    }

    /// True once no page may stay on the area's slots.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Acquire)
    }

    /// Starts or cancels a swapoff; true if that is a change.
    pub(crate) fn set_leaving(&self, leaving: bool) -> bool {
        self.leaving.swap(leaving, AcqRel) != leaving
    }
}

/// All areas' states, devices and workers.
#[derive(Debug)]
pub(crate) struct Swaps {
    states: Box<[OnceLock<SwapState>]>,
    /// Counts attaches and detaches, so that workers notice them.
    version: AtomicUsize,
    /// A bit for each area that is emptied beside the program.
    emptying: AtomicU32,
    attached: Mutex<Attached>,
}

#[derive(Debug, Default)]
struct Attached {
    /// By area number; `None` once swapped off.
    devices: Vec<Option<Arc<dyn SwapDevice>>>,
    workers: Vec<Weak<Inbox>>,
}

impl Swaps {
    pub(crate) fn new() -> Self {
        Self {
            states: (0..AreaNo::MAX).map(|_| OnceLock::new()).collect(),
            version: AtomicUsize::new(0),
            emptying: AtomicU32::new(0),
            attached: Mutex::new(LockClass::Devices, Attached::default()),
        }
    }

    /// Returns the state of an area that was ever attached.
    pub(crate) fn get(&self, area: AreaNo) -> &SwapState {
        self.states[area.0 as usize].get().expect("an entry names an area that was attached")
    }

    /// Returns the device of an area, unless it was swapped off.
    pub(crate) fn device(&self, area: AreaNo) -> Option<Arc<dyn SwapDevice>> {
        self.attached.lock().devices.get(area.0 as usize).cloned().flatten()
    }

    /// Gives every worker a queue to `device`; `area` is the next number.
    ///
    /// # Errors
    /// The error of opening a queue; then nothing has changed.
    pub(crate) fn attach(
        &self,
        area: AreaNo,
        device: &Arc<dyn SwapDevice>,
        state: SwapState,
    ) -> Result<(), DeviceError> {
        let mut attached = self.attached.lock();
        attached.workers.retain(|worker| worker.strong_count() > 0);
        let workers: Vec<_> = attached.workers.iter().filter_map(Weak::upgrade).collect();
        let queues = workers.iter().map(|worker| worker.open_queue(device));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        for (worker, queue) in workers.iter().zip(queues) {
            worker.put(area, queue);
        }
        let fresh = self.states[area.0 as usize].set(state).is_ok();
        assert!(fresh && attached.devices.len() == area.0 as usize, "areas come in order, once");
        attached.devices.push(Some(device.clone()));
        self.version.fetch_add(1, Release);
        Ok(())
    }

    /// Has the reclaim thread empty an area.
    pub(crate) fn start_emptying(&self, area: AreaNo) {
        self.emptying.fetch_or(1 << area.0, Relaxed);
    }

    /// The areas that the reclaim thread is to empty.
    pub(crate) fn emptying(&self) -> impl Iterator<Item = AreaNo> {
        let areas = self.emptying.load(Relaxed);
        (0..AreaNo::MAX as u8).filter(move |area| areas & (1 << area) != 0).map(AreaNo)
    }

    /// Drops an area's device, which closes when all workers have dropped theirs.
    pub(crate) fn detach(&self, area: AreaNo) {
        self.emptying.fetch_and(!(1 << area.0), Relaxed);
        self.attached.lock().devices[area.0 as usize] = None;
        self.version.fetch_add(1, Release);
    }

    /// Registers a worker, with a queue to every device in its `inbox`.
    ///
    /// # Errors
    /// The error of opening a queue.
    pub(crate) fn register(&self, inbox: &Arc<Inbox>) -> Result<(), DeviceError> {
        let mut attached = self.attached.lock();
        for (number, device) in attached.devices.iter().enumerate() {
            if let Some(device) = device {
                inbox.put(AreaNo(number as u8), inbox.open_queue(device)?);
            }
        }
        attached.workers.push(Arc::downgrade(inbox));
        Ok(())
    }

    /// Returns a number that changes with every attach and detach.
    pub(crate) fn version(&self) -> usize {
        self.version.load(Acquire)
    }
}
