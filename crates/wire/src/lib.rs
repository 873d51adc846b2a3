//! Messages between the processes of a run.
//!
//! Owns: the form in which a value goes from one to another ([`encode`], [`decode`]), its
//! descriptors ([`descriptor`]), and the socket over which it goes ([`Link`]).
//! Invariants: a message comes whole or not at all. What is read is a value of its type, with all
//! of its descriptors and no other ones; anything else is an error, and what came is closed. Both
//! ends are one program, so nothing says which version a message is of.
//! Not here: what messages say (`keeper`); what processes say to each other by memory that both
//! have: rings (`device`), letters and the agent's mailbox (`agent`).
//! Rejected: a form that names its fields, which is read more slowly and bounds nothing; layouts by
//! hand, one for each message, of which there were three.

pub mod descriptor;
mod link;
mod message;
mod outbox;

pub use descriptor::Descriptor;
pub use link::{Link, LinkError};
pub use message::{DESCRIPTORS_MAX, Encoded, MESSAGE_BYTES_MAX, MessageError, decode, encode};
pub use outbox::Outbox;
