//! Managed address space: where the engine's pages live and how faults arrive.
//!
//! Owns: the userfaultfd and its calls ([`uffd`]), one reserved range of addresses and what is
//! mapped in it ([`ranges`]), the memory calls a program makes on it ([`memory`], [`remap`]), the
//! fault handler and reclaim threads ([`handlers`]), the CPUs on which threads go on (`placement`),
//! faults served on the faulter's own thread ([`signals`]); and the other kind of space, whose
//! pages are asked for ([`mod@pool`]).
//! Invariants: nothing is ever done by address to memory outside the reserved range. Handler
//! threads never touch managed memory and never wait for a page lock; a memory call waits for page
//! locks only while it holds no other lock.
//! Not here: slots, lists, who is evicted (`engine`).
//! Rejected: catching `munmap` and `mremap` through userfaultfd events. Between the call and our
//! notice somebody else's mapping may stand at the address.

mod advice;
mod dumps;
pub mod handlers;
pub mod kernel;
mod mapping;
mod marks;
pub mod memory;
mod moving;
mod placement;
pub mod pool;
pub mod probe;
pub mod ranges;
pub mod remap;
mod requests;
mod sigbus;
pub mod signals;
mod space;
pub mod uffd;
mod whereabouts;

pub use handlers::{HandlerOptions, Handlers, Spawn};
pub use memory::{Advice, ManagedMemory, MemoryError, Protection};
pub use pool::PoolSpace;
pub use pool::words::{Asked, FRAMES_MAX, Look, Words};
pub use sigbus::with_signals_blocked;
pub use signals::{SignalFaults, SignalSetupError};
pub use space::{ManagedSpace, SpaceSetupError};
