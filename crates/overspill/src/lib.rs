//! Memory larger than RAM, paged in user space.
//!
//! A [`Region`] is a slice of bytes of any size of which at most the configured amount is in
//! memory; the rest is in a swap area of your choice. No root, no `swapon`, no effect on other
//! processes. Where [only the program's own touches](Overspill::needs_pins) are served, which takes
//! no permission at all, memory that goes to a system call is [pinned](Region::pin) for it.
//!
//! ```
//! use overspill::{Bytes, Overspill};
//!
//! # fn main() -> Result<(), overspill::Error> {
//! let overspill = Overspill::builder()
//!     .memory(Bytes(8 << 20))
//!     .swap("ram:64M".parse()?)
//!     .build()?;
//! let mut region = overspill.region(Bytes(32 << 20))?;
//! for (n, page) in region.chunks_exact_mut(4096).enumerate() {
//!     page[..8].copy_from_slice(&n.to_ne_bytes());
//! }
//! // A quarter fits into memory; all of it is there.
//! for (n, page) in region.chunks_exact(4096).enumerate() {
//!     assert_eq!(page[..8], n.to_ne_bytes());
//! }
//! assert!(overspill.summary().pages_out > 0);
//! # Ok(())
//! # }
//! ```
//!
//! Owns: the public API; assembling space, engine, areas and devices ([`pager`]); the probes of
//! `overspill doctor` ([`doctor`]); how much memory there is ([`memory`]).
//! Not here: command lines, `overspill run`.

mod builder;
pub mod doctor;
mod error;
pub mod memory;
pub mod pager;
pub mod pool;
mod refaults;
mod region;
mod spill_vec;
mod summary;
mod swaps;

pub use builder::{
    Builder, MEMORY_MIN, Overspill, check_given_once, check_limit, swaps_or_default,
};
pub use bytemuck;
pub use error::Error;
pub use overspill_base::{Bytes, PageNo};
pub use overspill_device::compressed::{Algorithm, Usage as CompressedUsage};
pub use overspill_device::file::{MkswapOptions, NewArea, OpenOptions, mkswap};
pub use overspill_device::spec::Tls;
pub use overspill_device::spec::parse_bytes;
pub use overspill_device::{DeviceError, DeviceInfo, Discard, SwapKind, SwapSpec};
pub use overspill_space::Advice;
pub use overspill_space::words::Reach;
pub use pool::{Held, HeldPage, PageGuard, PageGuardMut, Pool, PoolBuilder, PoolError};
pub use region::{Faults, HeldRange, Pinned, PinnedMut, Region, RegionOptions};
pub use spill_vec::{Iter, SpillVec};
pub use summary::{FaultLatency, Summary};
pub use swaps::SwapInfo;

/// Runs the example of README.md with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
