//! An address space as seen from outside: a process that a keeper pages, without a line of its own
//! code changed.
//!
//! Owns: what a keeper knows of a guest's addresses ([`map`]).
//! Not here: slots, frames and lists (`engine`), the code that lives in the guest (`agent`).

pub mod map;
mod vpn;

pub use vpn::Vpn;
