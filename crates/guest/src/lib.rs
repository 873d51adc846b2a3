//! A guest: a process whose memory is paged from outside, without a line of its own code changed.
//!
//! Owns: what is known of a guest's addresses ([`map`]), and how it is asked and told: its
//! userfaultfd ([`userfault`]), page table ([`pagemap`]) and list of mappings ([`mappings`]); the
//! holding of a process ([`Tracer`], [`Held`]), the calls that are made inside it, the [`attach`]
//! that leaves an agent there, and the [`detach`] that takes it away.
//! Invariants: a guest cannot tell that it was held, but by the time; a call that was interrupted
//! goes on. An attach that fails leaves nothing behind. All that asks the kernel goes through
//! [`System`] or [`userfault::Userfault`], so that a test can have any of it fail.
//! Not here: slots, frames and lists (`engine`), the code that lives in the guest (`agent`); which
//! process, and when (`run`); what is moved, and where to (`keeper`).

mod arch;
mod attach;
mod channel;
mod detach;
mod error;
#[cfg(target_arch = "x86_64")]
mod gate;
#[cfg(not(target_arch = "x86_64"))]
#[path = "gate/none.rs"]
mod gate;
mod hold;
mod inject;
mod kernel;
pub mod map;
pub mod mappings;
pub mod pagemap;
mod peer;
pub mod pidfd;
mod places;
mod process;
mod system;
mod tracer;
pub mod userfault;
mod vpn;
mod way;

pub use arch::Registers;
pub use attach::{AgentTask, Attached, Files, Manner, ThreadWords, Userfaultfd, attach};
pub use channel::{Channel, ChannelError};
pub use detach::detach;
pub use error::AttachError;
pub use gate::{Catch, Gate, can_open, can_shut, inherited, let_out, open, shut};
pub use hold::Held;
pub use kernel::{Kernel, has_ended, read_as_a_thread};
pub use peer::Peer;
pub use places::{FileId, LETTERS, letter_files};
pub use process::own_number;
pub use system::{Change, MOST_URGENT, Stop, System, URGENT, Until, options};
pub use tracer::Tracer;
pub use vpn::Vpn;
pub use way::Way;
