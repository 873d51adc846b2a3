//! The swap engine: decides which pages are in memory, and swaps the others out and in.
//!
//! Owns: the page table, frames, the swap cache, LRU lists, reclaim, writeback, readahead. The
//! terms and their states are in [`types`], the counter equations in [`Engine::check`].
//! Invariants: a page's content leaves memory only after its write completed without error, or when
//! a slot is known to hold the same bytes. Concurrent faults on a page cause one read. No lock but
//! the page's own is held across a call of [`AddressSpace`], a submission or a wait. The engine
//! acts on pages and devices only through [`AddressSpace`] and
//! [`SwapDevice`](overspill_device::SwapDevice), so a simulator can run all of it.
//! Not here: the layout of the address space, how faults arrive (`space`); allocation of slots
//! (`area`); device I/O (`device`).
//!
//! `ARCHITECTURE.md` has the life of a fault, that of an eviction, and which file uses which.

mod adopt;
mod advice;
mod background;
mod bounce;
mod build;
pub mod check;
mod complete;
mod demote;
mod demotion;
mod discard;
mod distances;
mod engine;
mod event_count;
mod fault;
pub mod frames;
mod free_frames;
mod highest_since;
// The atomics of models cannot lie in mappings.
#[cfg(not(loom))]
mod joining;
mod known_pace;
mod lost;
mod lru;
mod memory;
mod page;
mod page_outs;
mod page_table;
mod pins;
mod prefetch;
mod queues;
mod readahead;
mod reclaim;
mod share;
mod shortage;
mod slots;
mod space;
mod staging;
mod store;
pub mod swap_cache;
mod swapin;
mod swapoff;
mod swaps;
#[cfg(test)]
mod tests;
mod transfer;
mod tuning;
pub mod types;
mod worker;
mod workingset;
mod writeback;

pub use build::EngineParts;
pub use engine::{Engine, EngineStatus};
pub use fault::FaultOutcome;
#[cfg(not(loom))]
pub use joining::slot_table;
pub use page_table::PageTable;
pub use share::ShareError;
pub use space::{AddressSpace, BufferPool, Mapped, MovingSpace, Pattern, Space, SpaceError};
pub use space::{Unmapped, Unpublished};
pub use swapoff::{SwapStatus, SwapoffError, SwaponError};
pub use swaps::Swap;
pub use tuning::{Readahead, Tuning};
pub use worker::Worker;
