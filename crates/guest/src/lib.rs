//! An address space as seen from outside: a process that a keeper pages, without a line of its own
//! code changed.
//!
//! Owns: what a keeper knows of a guest's addresses ([`map`]), and how it is asked and told: its
//! userfaultfd ([`userfault`]), page table ([`pagemap`]) and list of mappings ([`mappings`]).
//! Not here: slots, frames and lists (`engine`), the code that lives in the guest (`agent`).

pub mod map;
pub mod mappings;
pub mod pagemap;
pub mod userfault;
mod vpn;

pub use vpn::Vpn;
