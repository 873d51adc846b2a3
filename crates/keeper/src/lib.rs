//! The keeper: pages the memory of processes from outside, with one engine for all of them.
//!
//! Owns: the guests (`guest`), their pages as one space of the engine's (`space`, `moving`), the
//! threads that serve them (`serve`), look for new mappings (`survey`), hold them back (`brake`)
//! and look after the rest (`care`); all of that as a process of its own ([`process`]), and what it
//! and its front say to each other (`words`, over a [`Link`]).
//! Invariants: whoever holds a guest reads one message of it and applies it before anything else is
//! done there. A thread that serves faults never touches a guest's memory, and waits for no thread
//! of a guest. What a guest says is checked where it is read. No keeper, no page: what is out is
//! never replaced by zeros.
//! Not here: attaching, tracing, watching (`run`); which pages are in memory (`engine`).

mod agent;
mod alone;
mod arrivals;
mod brake;
mod call;
mod care;
mod confined;
mod eye;
mod forks;
mod front;
mod guest;
mod keeper;
mod kept;
mod known;
mod leaving;
mod letters;
mod limit;
mod link;
mod moving;
mod owned;
mod pieces;
mod places;
pub mod process;
mod readers;
mod serve;
mod shortage;
mod space;
mod still;
mod survey;
mod swaps;
mod threads;
mod touched;
mod touches;
mod wakeup;
mod witness;
mod words;

pub use arrivals::{ArrivalReader, Arrived, GuestMark};
pub use eye::EyeParts;
pub use front::Front;
pub use keeper::{Keeper, KeeperParts};
pub use known::GuestParts;
pub use link::{Link, LinkError};
pub use places::OpenPlace;
pub use words::{AreaState, Birth, KeeperState, Report, Request, Wanted, WordError};
