//! A run: its program is watched from outside, and paged when memory runs short.
//!
//! Owns: the front ([`Front`]), which watches what the processes of a run hold, and attaches to
//! them when the limit comes into sight; the keeper's process ([`KeeperProcess`]), of which it is
//! the other end; what both need of the machine ([`Ground`]); what others can ask a run
//! ([`Answers`]) and how ([`Run`]), and where its memory is ([`residence`](residence())).
//! Invariants: one thread traces, the front's. Until the limit comes into sight nothing is done to
//! any process of the run.
//! Not here: paging (`keeper`), how a process is attached to (`guest`); the command line, and
//! starting and reaping the program (`cli`).

mod answers;
mod attaching;
mod births;
mod cores;
mod excess;
mod family;
mod forks;
mod front;
mod giving;
mod ground;
mod guest;
mod holding;
mod homes;
mod keeper;
mod lost_time;
mod refusals;
mod residence;
mod runs;
mod same;
mod sharing;
mod stalls;
mod stopping;
mod together;
mod watch;

pub use answers::Answers;
pub use attaching::AttachingError;
pub use family::has_ended;
pub use front::{Front, MemoryFree, NoRoom, RunEnd, RunProcess, Subject};
pub use giving::MemoryPressure;
pub use ground::{Ground, GroundError, Lack};
pub use keeper::{KeeperError, KeeperOptions, KeeperProcess, State};
pub use overspill_agent::Barrier;
pub use overspill_base::stats::Stats as Counters;
pub use overspill_guest::{Peer, Way};
pub use overspill_keeper::{AreaState, Arrived, GuestMark};
pub use refusals::OutsideProcess;
pub use residence::residence;
pub use runs::Run;
pub use stalls::{StallTime, Stalling, Stalls};
