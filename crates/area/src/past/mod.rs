//! Slot allocation as Linux had it before cluster lists (6.12), for the presets of those releases.
//!
//! [`scan`]: the scanning allocator's state of an area. [`visit`]: one call of it.

pub(crate) mod scan;
mod visit;

pub(crate) use scan::ScanAllocator;
