//! Swap devices in virtual time.
//!
//! Owns: the content of each slot, and when a transfer ends. A device has channels; a transfer
//! occupies the first free one for the time its bandwidth requires, and ends after the latency at
//! the earliest. A synchronous device is memory: the CPU copies, and nothing waits. One on a
//! network takes the time that its servers and the way to them take (`network`).
//! Invariants: every request completes once, in the order of completion times.
//! Not here: errors. Failing devices are simulated in the engine's own tests, in real time.

use crate::network::Client;
use crate::shootdown::Shootdown;
use crate::stamp::Stamp;
use overspill_base::{PAGE_SIZE, Slot};
use overspill_device::{Completion, DeviceError, DeviceInfo, IoOp, IoQueue, IoRequest, SwapDevice};
use serde::Serialize;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// The performance of a kind of device.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeviceModel {
    /// Its name.
    pub name: &'static str,
    /// The source of its figures.
    pub source: &'static str,
    /// True for memory: the costs are then the CPU's, and the figures of time below are 0, as they
    /// are for servers.
    pub synchronous: bool,
    /// Nanoseconds from request to completion of a single page.
    pub read_latency_ns: u64,
    /// As above.
    pub write_latency_ns: u64,
    /// Random pages read per second, with many in flight.
    pub read_pages_per_s: u64,
    /// Random pages written per second, with many in flight, sustained.
    pub write_pages_per_s: u64,
    /// Concurrent transfers; connections of a machine to servers.
    pub channels: usize,
    /// Most pages of one transfer as the device sees it: the block layer merges requests up to this
    /// size, and one interrupt completes them all. 1 if requests are not merged.
    pub merged_pages: u64,
    /// True if reclaim waits for its writes when it can take nothing else. If false it goes on
    /// scanning the lists, as Linux did before reclaim was throttled.
    pub throttles: bool,
}

/// DRAM used as persistent memory (`memmap=`), driven by `pmem`.
pub const PMEM: DeviceModel = DeviceModel {
    name: "DRAM-backed pmem",
    source: "a page is copied by the CPU: `copy_page_ns`",
    synchronous: true,
    read_latency_ns: 0,
    write_latency_ns: 0,
    read_pages_per_s: 0,
    write_pages_per_s: 0,
    channels: 1,
    merged_pages: 1,
    throttles: true,
};

/// A flash drive of the published experiment.
pub const NVME: DeviceModel = DeviceModel {
    name: "Intel SSD DC P3600 1.6 TB",
    source: "data sheet: random 4 KiB 450 000 reads/s, 56 000 writes/s; latency 85 / 15 µs",
    synchronous: false,
    read_latency_ns: 85_000,
    write_latency_ns: 15_000,
    read_pages_per_s: 450_000,
    write_pages_per_s: 56_000,
    channels: 32,
    merged_pages: 1,
    throttles: true,
};

/// The other drive of that experiment.
pub const OPTANE: DeviceModel = DeviceModel {
    name: "Intel Optane SSD DC P4800X 375 GB",
    source: "data sheet: random 4 KiB 550 000 reads/s, 500 000 writes/s; latency 10 / 10 µs",
    synchronous: false,
    read_latency_ns: 10_000,
    write_latency_ns: 10_000,
    read_pages_per_s: 550_000,
    write_pages_per_s: 500_000,
    channels: 7,
    merged_pages: 1,
    throttles: true,
};

/// A disk of 2007.
pub const DISK: DeviceModel = DeviceModel {
    name: "SATA disk, 7200 turns a minute",
    source: "60 MB/s in order; 8 ms to seek and turn; requests merged up to 512 KiB, Linux's max_sectors_kb",
    synchronous: false,
    read_latency_ns: 8_000_000,
    write_latency_ns: 8_000_000,
    read_pages_per_s: 15_000,
    write_pages_per_s: 15_000,
    channels: 1,
    merged_pages: 128,
    throttles: false,
};

/// A cluster of servers; what they are like is their network's.
pub const REDIS: DeviceModel = DeviceModel {
    name: "Redis cluster",
    source: "connections of `redis+cluster:` to each server",
    synchronous: false,
    read_latency_ns: 0,
    write_latency_ns: 0,
    read_pages_per_s: 0,
    write_pages_per_s: 0,
    channels: 4,
    merged_pages: 1,
    throttles: true,
};

/// Slots whose stamps are stored together.
const CHUNK: usize = 1 << 14;

/// A device with its slots.
#[derive(Debug)]
pub(crate) struct SimDevice {
    info: DeviceInfo,
    model: DeviceModel,
    shared: Arc<Mutex<Shared>>,
    shootdown: Arc<Shootdown>,
    /// The way to where it is, if that is not this machine.
    client: Option<Arc<Client>>,
}

#[derive(Debug)]
struct Shared {
    /// By slot, in chunks allocated at the first write.
    holds: Vec<Option<Box<[Stamp]>>>,
    /// When each channel becomes free.
    channels: Vec<u64>,
}

impl Shared {
    fn stamp(&mut self, slot: Slot) -> &mut Stamp {
        let chunk = self.holds[slot.index() / CHUNK]
            .get_or_insert_with(|| vec![Stamp::ZEROS; CHUNK].into_boxed_slice());
        &mut chunk[slot.index() % CHUNK]
    }

    fn transfer(&mut self, request: &mut IoRequest) {
        for (n, page) in request.pages.iter_mut().enumerate() {
            let stamp = self.stamp(request.slot.plus(n));
            match request.op {
                IoOp::Read => stamp.put(page),
                IoOp::Write => *stamp = Stamp::of(page),
            }
        }
    }

    /// Returns when a request of `pages` pages that begins at `now_ns` ends.
    fn occupy(&mut self, model: &DeviceModel, op: IoOp, pages: usize, now_ns: u64) -> u64 {
        let (latency_ns, pages_per_s) = match op {
            IoOp::Read => (model.read_latency_ns, model.read_pages_per_s),
            IoOp::Write => (model.write_latency_ns, model.write_pages_per_s),
        };
        let busy_ns = (pages * model.channels) as u64 * 1_000_000_000 / pages_per_s;
        let channel = self.channels.iter_mut().min().expect("a device has a channel");
        let start_ns = now_ns.max(*channel);
        *channel = start_ns + busy_ns;
        let over_ns = start_ns + busy_ns.max(latency_ns);
        let transfer_ns = model.merged_pages * 1_000_000_000 / pages_per_s;
        if model.merged_pages > 1 { over_ns.next_multiple_of(transfer_ns) } else { over_ns }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().expect("nobody panics with it")
}

impl SimDevice {
    /// Makes a device of `slots` slots, the first reserved.
    pub(crate) fn new(
        model: DeviceModel,
        slots: u32,
        shootdown: Arc<Shootdown>,
        client: Option<Client>,
    ) -> Self {
        let info = DeviceInfo {
            name: model.name.to_owned(),
            slots_max: slots,
            reserved: vec![Slot(0)],
            synchronous: model.synchronous,
            ..DeviceInfo::default()
        };
        let holds = (0..(slots as usize).div_ceil(CHUNK)).map(|_| None).collect();
        let shared = Shared { holds, channels: vec![0; model.channels] };
        let client = client.map(Arc::new);
        Self { info, model, shared: Arc::new(Mutex::new(shared)), shootdown, client }
    }
}

impl SwapDevice for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn grow(&self, slots: u32) -> Result<u32, DeviceError> {
        Ok(slots.min(self.info.slots_max))
    }

    fn open_queue(&self, _: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(SimQueue {
            model: self.model,
            shared: self.shared.clone(),
            shootdown: self.shootdown.clone(),
            client: self.client.clone(),
            flying: Vec::new(),
        }))
    }

    fn discard(&self, _: Slot, _: u32) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Linux notices a page's change in its page table entry; here the stamps show it.
    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        assert_eq!(page.len(), PAGE_SIZE);
        *lock(&self.shared).stamp(slot) == Stamp::of(page)
    }
}

/// One task's queue to a device.
struct SimQueue {
    model: DeviceModel,
    shared: Arc<Mutex<Shared>>,
    shootdown: Arc<Shootdown>,
    client: Option<Arc<Client>>,
    /// With the completion time of each, in the order of submission.
    flying: Vec<(u64, IoRequest)>,
}

impl IoQueue for SimQueue {
    fn submit(&mut self, mut request: IoRequest) {
        self.shootdown.flush();
        let pages = request.pages.len();
        let model = self.model;
        overspill_vcpu::charge_by(|costs| {
            costs.submit_ns + if model.synchronous { pages as u64 * costs.copy_page_ns } else { 0 }
        });
        let mut shared = lock(&self.shared);
        shared.transfer(&mut request);
        let now_ns = overspill_vcpu::now_ns();
        let over_ns = match &self.client {
            _ if model.synchronous => now_ns,
            Some(client) => client.request(request.op, request.slot, pages, now_ns),
            None => shared.occupy(&model, request.op, pages, now_ns),
        };
        self.flying.push((over_ns, request));
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        if self.flying.is_empty() || overspill_vcpu::must_devices_wait() {
            return;
        }
        let now_ns = overspill_vcpu::now_ns();
        let (over, flying): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.flying).into_iter().partition(|(at_ns, _)| *at_ns <= now_ns);
        self.flying = flying;
        if !self.model.synchronous {
            let count = over.len() as u64;
            overspill_vcpu::charge_by(|costs| count * costs.complete_ns);
        }
        let complete = |(_, request)| Completion { request, failures: Vec::new() };
        done.extend(over.into_iter().map(complete));
    }

    fn wait(&mut self) {
        if !self.model.throttles && self.flying.iter().all(|(_, r)| r.op == IoOp::Write) {
            overspill_vcpu::sleep_until(overspill_vcpu::now_ns() + 1);
            return;
        }
        if let Some(first_ns) = self.flying.iter().map(|(at_ns, _)| *at_ns).min() {
            overspill_vcpu::sleep_until(first_ns);
        }
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
