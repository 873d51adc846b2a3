//! Managed address space: where the engine's pages live and how faults arrive.
//!
//! Owns: one reserved range of addresses and what is mapped in it (`ranges`, [`memory`]); how
//! touches of it are noticed and its pages come and go (`source`): a userfaultfd ([`uffd`]) or
//! guards (`guards`); the fault handler and reclaim threads ([`handlers`]), the CPUs on which
//! faulting threads resume (`placement`), faults served on the thread that has them ([`in_place`]);
//! and the other kind of space, whose pages are requested explicitly ([`mod@pool`]).
//! Invariants: memory outside the reserved range is never changed by address. Handler threads never
//! touch managed memory and never wait for a page lock; a memory call waits for page locks only
//! while it holds no other lock.
//! Not here: slots, lists, choosing victims (`engine`); memory of other processes (`keeper`).

mod dumps;
mod guards;
pub mod handlers;
pub mod in_place;
pub mod kernel;
mod mapping;
pub mod memory;
mod moving;
mod own;
mod placement;
pub mod pool;
pub mod probe;
mod ranges;
mod requests;
mod source;
mod space;
mod traps;
pub mod uffd;
mod whereabouts;
pub mod words;

pub use guards::shut_pages_max;
pub use handlers::Handlers;
pub use in_place::{InPlace, SignalFaults, SignalSetupError};
pub use memory::{Advice, ManagedMemory, MemoryError};
pub use pool::PoolSpace;
pub use pool::words::{Asked, FRAMES_MAX, Look, Words};
pub use space::{ManagedSpace, SpaceSetupError};
pub use traps::with_signals_blocked;
