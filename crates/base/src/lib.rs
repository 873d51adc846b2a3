//! What every Overspill crate builds on: units, synchronisation, shared tables, counters.
//!
//! Owns: the basic quantities (page, slot, frame, bytes) as types, and the only names for locks and
//! atomics.
//! Not here: anything above it.

pub mod clock;
pub mod history;
pub mod kernel;
pub mod list;
pub mod plain;
pub mod report;
pub mod ring;
pub mod secret;
pub mod shared;
pub mod stats;
pub mod sync;
pub mod units;
pub mod work;
pub mod zeroed;

pub use plain::plain;
pub use units::{Bytes, FrameNo, PAGE_SHIFT, PAGE_SIZE, PageNo, Slot};
