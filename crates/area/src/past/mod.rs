//! Slot allocation as Linux had it before cluster lists (6.12), for the presets of those releases.
//!
//! [`scan`]: the scanning allocator's state of an area. [`visit`]: one call of it. [`slot_cache`]:
//! the per-CPU caches in front of all areas.

pub(crate) mod scan;
mod slot_cache;
mod visit;

pub(crate) use scan::ScanAllocator;
pub(crate) use slot_cache::SlotCaches;
