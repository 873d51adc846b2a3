//! Swap areas: which slot of which device is free, and who gets it.
//!
//! Owns: clusters with their locks and lists, the slot map, per-CPU slot caches, priorities, and
//! the sharing of areas by the processes of one run. The nouns and their counter equations are in
//! [`types`], checked by [`SwapArea::check`].
//! Invariants: a slot is never handed out twice; freeing a slot that is not in use is a bug and
//! panics. State is indexes in [`Table`](overspill_base::shared::Table)s, never pointers, so that
//! it can lie in memory shared by a process tree.
//! Not here: devices, I/O, time, what a slot contains. `unsafe` is forbidden.
//! Sources: Linux 4.11 (cluster locks, slot cache), 6.12 (cluster lists instead of scanning).

#![forbid(unsafe_code)]

mod alloc;
mod check;
mod lists;
mod set;
mod slot_map;
mod tree;
mod tuning;
pub mod types;

pub use set::SwapAreas;
pub use slot_map::{COUNT_BITS, SlotMap};
pub use tree::{MEMBERS_MAX, MemberNo};
pub use tuning::{Allocator, AreaTuning, Preset, ScanBase, UnknownPreset};
pub use types::{AreaConfig, AreaNo, AreaTables, SwapArea, SwapEntry, TooManyHolders};
