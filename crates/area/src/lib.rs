//! Swap areas: which slots of which device are free, and their allocation.
//!
//! Owns: clusters with their locks and lists, the slot map, per-CPU slot caches, and priorities.
//! The terms and their counter equations are in [`types`], checked by [`SwapArea::check`]; every
//! mechanism is a switch in [`AreaTuning`].
//! Invariants: a slot is never handed out twice; freeing a slot that is not in use is a bug and
//! panics.
//! Not here: devices, I/O, time, what a slot contains. `unsafe` is forbidden.
//! Sources: Linux 4.8 (scanning), 4.11 (cluster locks, slot caches), 5.8 (scan bases), 6.12
//! (cluster lists).
//!
//! # Life of a slot
//! [`SwapAreas::alloc`] takes it from the CPU's slot cache. A visit to an area fills that cache,
//! from cluster lists (`clusters`) or by scanning (`past`). [`SwapAreas::free`] adds it to the
//! CPU's batch, which is returned to the clusters as a whole.

#![forbid(unsafe_code)]

mod area;
mod areas;
mod check;
mod clusters;
mod lists;
mod past;
mod slot_cache;
mod slot_map;
mod state;
mod tuning;
pub mod types;

pub use area::SwapArea;
pub use areas::{SwapAreas, TooManyAreas};
pub use slot_map::{SlotMap, TAG_BITS, TooManyHolders};
pub use tuning::{Allocator, AreaTuning, Preset, ScanBase, UnknownPreset};
pub use types::{AreaConfig, AreaNo, SlotFreeNotify, SlotReclaim, SlotTable, SwapEntry};
