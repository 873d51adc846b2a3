//! Swap devices: they store pages that are swapped out.
//!
//! Owns: the [`SwapDevice`] contract, its backends ([`mod@file`], which also serves block devices
//! and memory, [`compressed`] memory, and whatever another process has, [`served`] by it), and
//! decorators over any of them ([`checksum`], [`seal`], [`faulty`], [`large_pages`]).
//! Invariants: a request owns its buffers from [`IoQueue::submit`] until its completion is reaped,
//! and every submitted request is completed exactly once, also if the device fails. Short
//! transfers, EINTR and EAGAIN are handled here and nowhere else.
//! Not here: who owns a page, which slot is free, what a slot means.
//! Rejected: futures that own the buffer (dropping one early frees memory the kernel still writes
//! to); one ring per device shared by all threads (its lock and its reaper thread cost more than
//! the I/O of a fast device).

// Devices that processes share have words in mapped memory, where a model checker's cannot be.
#[cfg(not(loom))]
pub mod any;
mod buffers;
pub mod checksum;
pub mod compressed;
pub mod error;
pub mod faulty;
pub mod file;
pub mod header;
mod in_flight;
pub mod large_pages;
pub mod pace;
pub mod seal;
#[cfg(not(loom))]
pub mod served;
pub mod spec;
mod synchronous;
#[cfg(test)]
mod testing;

#[cfg(not(loom))]
pub use any::Device;
pub use error::DeviceError;
pub use spec::{Discard, SwapKind, SwapSpec};

use overspill_base::shared::PageBuf;
use overspill_base::{Bytes, Slot};
use std::fmt::{self, Debug};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

impl fmt::Display for IoOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoOp::Read => "read",
            IoOp::Write => "write",
        })
    }
}

/// One transfer of pages to or from adjacent slots.
#[derive(Debug)]
pub struct IoRequest {
    /// The direction.
    pub op: IoOp,
    /// The slot of the first page; the others follow it.
    pub slot: Slot,
    /// The pages, at most [`MAX_REQUEST_PAGES`], anywhere in memory. A request without pages moves
    /// nothing and completes like any other.
    pub pages: Vec<PageBuf>,
    /// The submitter's tag, returned with the completion.
    pub tag: u64,
}

/// Maximum number of pages in a request: a cluster's worth of writeback, well below IOV_MAX.
pub const MAX_REQUEST_PAGES: usize = 256;

/// Number of concurrent requests for which a decorator allocates nothing: a page of 2 MiB takes
/// two.
pub(crate) const USUAL_REQUESTS: u32 = 2;

/// One page of a request that failed.
#[derive(Debug, Clone)]
pub struct PageFailure {
    /// Index of the page in the request.
    pub index: usize,
    /// Why.
    pub error: DeviceError,
}

/// The end of a request; its buffers belong to the submitter again.
#[derive(Debug)]
pub struct Completion {
    /// The request as it was submitted.
    pub request: IoRequest,
    /// Pages that failed; empty if none did. An error of the whole transfer is reported for every
    /// page: only smaller requests can tell which page caused it.
    pub failures: Vec<PageFailure>,
}

/// True if the page at `index` is among `failures`.
pub(crate) fn has_failed(failures: &[PageFailure], index: usize) -> bool {
    failures.iter().any(|failure| failure.index == index)
}

/// Properties of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name in messages: its path, `ram` or `compressed`.
    pub name: String,
    /// Maximum number of slots, including the header's.
    pub slots_max: u32,
    /// Slots that must never be used: header, bad pages.
    pub reserved: Vec<Slot>,
    /// True if seeks are expensive: spinning disks.
    pub rotational: bool,
    /// True if a transfer is complete when `submit` returns, at the speed of memory: then readahead
    /// gains nothing.
    pub synchronous: bool,
    /// True if [`SwapDevice::discard`] does something.
    pub discards: bool,
    /// True if freed slots must be discarded before they are used again: the user asked for it, and
    /// the device [`discards`](Self::discards).
    pub page_discard: bool,
    /// Pages in a write above which the writer's memory grows, if there are such.
    pub write_pages_usual: Option<usize>,
    /// True if a read returns what was written last, or a failure.
    pub verifies: bool,
    /// How it is driven, and why not faster, one line each, for the user.
    pub notes: Vec<String>,
}

impl DeviceInfo {
    /// Total size of its pages when fully grown.
    pub fn capacity(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.slots_max) - self.reserved.len() as u64)
    }
}

/// A device that stores pages.
pub trait SwapDevice: Send + Sync + Debug {
    /// Returns its properties. Never blocks; the result never changes.
    fn info(&self) -> &DeviceInfo;

    /// Ensures that slots below `slots` can be written without running out of space, and returns
    /// how many can: `slots` or more, never more than [`DeviceInfo::slots_max`]. May block on the
    /// file system. Costs nothing if the device is already large enough.
    ///
    /// # Errors
    /// [`DeviceError::Full`] or [`DeviceError::DiskFull`] if there is not enough space; what was
    /// usable stays usable.
    fn grow(&self, slots: u32) -> Result<u32, DeviceError>;

    /// Opens a queue for the calling thread, for up to `depth` requests in flight.
    ///
    /// # Errors
    /// The system's refusal of another ring or descriptor. A device that cannot use asynchronous
    /// I/O returns a queue that completes within `submit` instead.
    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError>;

    /// Discards `slots` slots from `first` on: their content is not needed, and is undefined until
    /// they are written again. The slots are the caller's: no transfer of them is in flight, and no
    /// other thread uses them before the call returns. Reserved slots among them, above all the
    /// header, are left alone. May block on the file system.
    ///
    /// A discarded slot loses the guarantee of [`grow`](Self::grow): if other files have filled up
    /// the disk meanwhile, writing it fails with [`DeviceError::Full`].
    ///
    /// # Errors
    /// [`DeviceError::Discard`]; the slots are then as usable as before.
    ///
    /// # Panics
    /// If the slots are not all below [`DeviceInfo::slots_max`]: what is beyond is not ours.
    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError>;

    /// What must be notified of every slot that has no holder any more, if anything. It does not
    /// keep the device open.
    fn free_notify(&self) -> Option<Arc<dyn FreeNotify>> {
        None
    }

    /// True if `slot` is known to hold exactly the bytes of `page`, so that writing them again
    /// would change nothing. Plain devices do not know.
    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        let _ = (slot, page);
        false
    }
}

/// What a device keeps in memory for its slots, or knows of them.
pub trait FreeNotify: Send + Sync + Debug {
    /// `slot` has lost its last holder: what was kept for it can go. Called before the slot is
    /// handed out again. Never blocks.
    fn slot_free(&self, slot: Slot);
}

/// A thread's queue to a device.
///
/// Dropping a queue with requests in flight waits for them.
pub trait IoQueue: Send {
    /// Submits a request. Never fails: an error is reported by the [`Completion`]. Blocks only
    /// while the queue is full, or has no memory left for what it adds to requests. The kernel may
    /// not see the request before [`flush`](Self::flush).
    fn submit(&mut self, request: IoRequest);

    /// Passes all submitted requests to the kernel. Does not wait for them.
    fn flush(&mut self);

    /// Moves completed requests to `done`. Never blocks.
    fn reap(&mut self, done: &mut Vec<Completion>);

    /// Blocks until a request has completed; returns at once if none is in flight.
    fn wait(&mut self);

    /// Keeps memory for `pages` pages under way at a time, or what the queue has as a rule if that
    /// is more. Never blocks.
    fn set_window(&mut self, pages: usize) {
        let _ = pages;
    }

    /// Number of requests submitted and not reaped.
    fn in_flight(&self) -> usize;

    /// The descriptor that becomes readable when a request has completed; none if `submit`
    /// completes. Poll it only after a [`reap`](Self::reap): completions that `submit` waited for
    /// because the queue was full are reported by the next reap and not here.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// Fails every page of `request` with `error`.
pub fn failed(request: IoRequest, error: &DeviceError) -> Completion {
    let failures =
        (0..request.pages.len()).map(|index| PageFailure { index, error: error.clone() }).collect();
    Completion { request, failures }
}
