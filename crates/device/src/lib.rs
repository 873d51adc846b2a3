//! Swap devices: places that keep pages while they are out of memory.
//!
//! Owns: the [`SwapDevice`] contract, its backends ([`mod@file`], which also serves block devices
//! and memory, and [`compressed`] memory), and decorators over any of them ([`checksum`],
//! [`faulty`], [`large_pages`]).
//! Invariants: a request owns its buffers from [`IoQueue::submit`] until its completion is reaped,
//! and every submitted request is completed exactly once, also when the device fails. Short
//! transfers, EINTR and EAGAIN are handled here and nowhere else.
//! Not here: who owns a page, which slot is free, what a slot means.
//! Rejected: futures that own the buffer (dropping one early frees memory the kernel still writes);
//! one ring per device shared by all threads (its lock and its reaper thread cost more than the
//! I/O of a fast device).

pub mod any;
pub mod checksum;
pub mod compressed;
pub mod error;
pub mod faulty;
pub mod file;
pub mod header;
mod in_flight;
pub mod large_pages;
pub mod spec;
mod synchronous;
#[cfg(test)]
mod testing;

pub use any::Device;
pub use error::DeviceError;
pub use spec::{Discard, SwapKind, SwapSpec};

use overspill_base::shared::PageBuf;
use overspill_base::{Bytes, Slot};
use std::fmt::{self, Debug};
use std::os::fd::BorrowedFd;

/// Which way the pages go.
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
    /// Which way.
    pub op: IoOp,
    /// Where the first page goes; the others follow it.
    pub slot: Slot,
    /// The pages, at most [`MAX_REQUEST_PAGES`], anywhere in memory. A request without pages moves
    /// nothing and completes like any other.
    pub pages: Vec<PageBuf>,
    /// The submitter's word, given back with the completion.
    pub tag: u64,
}

/// Most pages in one request: a cluster's worth of writeback, well below IOV_MAX.
pub const MAX_REQUEST_PAGES: usize = 256;

/// One page of a request that did not make it.
#[derive(Debug, Clone)]
pub struct PageFailure {
    /// Which of the request's pages.
    pub index: usize,
    /// Why.
    pub error: DeviceError,
}

/// The end of a request; its buffers are the submitter's again.
#[derive(Debug)]
pub struct Completion {
    /// The request as it was submitted.
    pub request: IoRequest,
    /// Pages that failed; empty when all went well. An error of the whole transfer is reported for
    /// every page: which one was at fault only a smaller request can tell.
    pub failures: Vec<PageFailure>,
}

/// What a device is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// How messages call it: its path, `ram` or `compressed`.
    pub name: String,
    /// Slots it may ever have, the header's included.
    pub slots_max: u32,
    /// Slots that must never be used: header, bad pages.
    pub reserved: Vec<Slot>,
    /// True where a seek costs: spinning disks.
    pub rotational: bool,
    /// True where a transfer is over when `submit` returns, at the speed of memory: nothing is
    /// gained by reading ahead.
    pub synchronous: bool,
    /// True if [`SwapDevice::discard`] does something.
    pub discards: bool,
    /// True if freed slots are to be discarded before they are used again: the user asked for it,
    /// and the device [`discards`](Self::discards).
    pub page_discard: bool,
    /// True if every slot is to be discarded at once when nobody holds it any more: until then it
    /// costs memory. That discard does not block.
    pub slot_discard: bool,
    /// How it is driven and why not faster, one line each, for the user to read.
    pub notes: Vec<String>,
}

impl DeviceInfo {
    /// Room for pages, once grown to the full.
    pub fn capacity(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.slots_max) - self.reserved.len() as u64)
    }
}

/// A place for pages.
pub trait SwapDevice: Send + Sync + Debug {
    /// What it is like. Never blocks, never changes.
    fn info(&self) -> &DeviceInfo;

    /// Makes sure slots below `slots` can be written without running out of space, and returns how
    /// many can: `slots` or more, never more than [`DeviceInfo::slots_max`]. May block on the file
    /// system. Growing a device that is large enough already costs nothing.
    ///
    /// # Errors
    /// [`DeviceError::Full`] when the space is not to be had; what was usable stays usable.
    fn grow(&self, slots: u32) -> Result<u32, DeviceError>;

    /// A queue of its own for the calling thread, for up to `depth` requests in flight.
    ///
    /// # Errors
    /// What the system says to another ring or file descriptor. A device that cannot have
    /// asynchronous I/O gives a queue that completes within `submit` instead.
    fn open_queue(&self, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError>;

    /// Tells the device that nobody needs what is in `slots` slots from `first` on. What they hold
    /// is undefined until they are written again. The slots are the caller's: no transfer of them
    /// is under way, and nobody else uses them before the call returns. Reserved slots among them,
    /// the header above all, are left alone. May block on the file system.
    ///
    /// A discarded slot loses what [`grow`](Self::grow) promised: in a file that others have filled
    /// up the disk under, writing it fails with [`DeviceError::Full`].
    ///
    /// # Errors
    /// [`DeviceError::Discard`], and nothing is lost by it: the slots are as usable as before.
    ///
    /// # Panics
    /// When the slots are not all below [`DeviceInfo::slots_max`]: what is there is not ours.
    fn discard(&self, first: Slot, slots: u32) -> Result<(), DeviceError>;

    /// True if `slot` is known to hold exactly the bytes of `page`, so that writing them again
    /// would change nothing. Plain devices do not know.
    fn holds(&self, slot: Slot, page: &[u8]) -> bool {
        let _ = (slot, page);
        false
    }
}

/// One thread's way to a device.
///
/// Dropping a queue with requests in flight waits for them.
pub trait IoQueue: Send {
    /// Takes a request. Never fails: an error comes back as a [`Completion`]. Blocks only while the
    /// queue is full. The kernel may not see the request before [`flush`](Self::flush).
    fn submit(&mut self, request: IoRequest);

    /// Hands everything submitted to the kernel. Does not wait for it.
    fn flush(&mut self);

    /// Moves finished requests to `done`. Never blocks.
    fn reap(&mut self, done: &mut Vec<Completion>);

    /// Blocks until a request has finished, and returns at once if none is in flight.
    fn wait(&mut self);

    /// Requests submitted and not reaped.
    fn in_flight(&self) -> usize;

    /// Becomes readable when a request has finished; none where `submit` completes. To be polled
    /// only after a [`reap`](Self::reap): what a full queue has made `submit` wait for is reported
    /// by the next reap and not here.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// Fails every page of `request` with `error`.
pub fn failed(request: IoRequest, error: &DeviceError) -> Completion {
    let failures =
        (0..request.pages.len()).map(|index| PageFailure { index, error: error.clone() }).collect();
    Completion { request, failures }
}
