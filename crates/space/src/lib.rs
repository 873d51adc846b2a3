//! Managed address space: where the engine's pages live and how faults arrive.
//!
//! Owns: the userfaultfd and its calls ([`uffd`]), one reserved range of addresses and its mappings
//! ([`ranges`]), the memory calls a program makes on it ([`memory`], [`remap`]), the fault handler
//! and reclaim threads ([`handlers`]), the CPUs on which faulting threads resume (`placement`),
//! faults served on the faulting thread ([`signals`]); and the other kind of space, whose pages are
//! requested explicitly ([`mod@pool`]).
//! Invariants: memory outside the reserved range is never changed by address. Handler threads never
//! touch managed memory and never wait for a page lock; a memory call waits for page locks only
//! while it holds no other lock.
//! Not here: slots, lists, choosing victims (`engine`).
//! Rejected: catching `munmap` and `mremap` through userfaultfd events. By the time we see the
//! event, another mapping may be at the address.

mod dumps;
mod guards;
pub mod handlers;
pub mod kernel;
mod mapping;
pub mod memory;
mod moving;
mod narrowed;
pub mod own;
mod placement;
pub mod pool;
pub mod probe;
pub mod ranges;
pub mod remap;
mod requests;
mod sigbus;
pub mod signals;
mod source;
mod space;
mod touches;
pub mod uffd;
mod whereabouts;
pub mod words;

pub use handlers::{HandlerOptions, Handlers, Spawn};
pub use memory::{Advice, ManagedMemory, MemoryError, Protection};
pub use narrowed::{
    forget_narrowed, keep_own_cpus, narrow_no_more, restore_all_cpus, restore_own_cpus,
};
pub use pool::PoolSpace;
pub use pool::words::{Asked, FRAMES_MAX, Look, Words};
pub use sigbus::with_signals_blocked;
pub use signals::{SignalFaults, SignalSetupError};
pub use space::{ManagedSpace, SpaceSetupError};
