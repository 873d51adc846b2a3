//! The keeper: pages the memory of processes from outside, with one engine for all of them.
//!
//! Owns: the guests (`guest`), their pages as one space of the engine's (`space`), what is done for
//! them (`serve`) and the threads that do it (`keeper`); all of that as a process of its own
//! ([`process`]), and what it and its front say to each other (`wire`).
//! Invariants: whoever holds a guest reads one message of it and applies it before anything else is
//! done there. A thread that serves faults never touches a guest's memory, and waits for no thread
//! of a guest. What a guest says is checked where it is read. No keeper, no page: what is out is
//! never replaced by zeros.
//! Not here: attaching, tracing, watching (`run`); which pages are in memory (`engine`).

mod arrivals;
mod call;
mod front;
mod guest;
mod keeper;
mod parts;
mod priority;
pub mod process;
mod serve;
mod space;
#[cfg(test)]
mod tests;
mod wakeup;
mod wire;

pub use arrivals::{ArrivalReader, Arrived, GuestMark};
pub use front::Front;
pub use keeper::Keeper;
pub use parts::{Birth, GuestParts, SourceParts};
pub use serve::limit::LEFT_PART;
pub use serve::shared::KeeperParts;
pub use wire::message::{AreaState, KeeperState, Report, Request, Wanted};
pub use wire::places::{OpenPlace, Opening};
