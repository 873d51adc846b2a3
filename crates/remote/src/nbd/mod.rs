//! Network block devices: what a server keeps for whoever can reach it.
//!
//! Owns: the client's side of the NBD protocol. [`device`] is the swap device, [`queue`] has the
//! requests of a thread and several connections, which come and go; [`patience`] is how long a
//! silent server is waited for, [`connection`] is one connection, [`handshake`] its beginning,
//! [`wire`] the layout of messages, [`socket`] and [`tls`] what lies below, and [`area`] what must
//! be at the start of an export.
//! Invariants: a request is repeated over another connection until a server has answered it, has
//! come back without what was written, or has said nothing for as long as the user wants to wait.
//! An answer counts only if the export is the one on which the run began.
//! Rejected: the kernel's client, which needs root, a module and a device node for each run;
//! `libnbd`, which is C, and has its own idea of who owns a buffer.

mod area;
mod connection;
mod connector;
mod device;
mod handshake;
mod patience;
mod queue;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

use crate::failure::Failure;
pub(crate) use device::open;
