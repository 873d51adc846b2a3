//! Clusters of Redis or Valkey servers, which shard, replicate and fail over by themselves.
//!
//! Owns: where in a cluster a page is. [`device`] is the swap device, [`queue`] has the requests of
//! a thread and the threads that make them, [`client`] is a connection to all servers, [`cluster`]
//! how one is made and what is known of the servers, [`patient`] what it is made of, [`lease`] the
//! thread that says that the run lives, and [`keys`] the names.
//! Invariants: the pages of a cluster of slots are one hash under one key, so a batch of them is
//! one command to one shard, which happens or does not, and follows its key wherever that is
//! moved. A key never exists without a time to live. A write has succeeded when as many replicas
//! as the user wants have it.
//! Not here: which server has which key, and how that changes: the `redis` crate knows.
//! Rejected: a key for each page. To renew them takes a command for each; and a pipeline of
//! several keys that are being moved must be split by its answers, which the crate does not do
//! for one that ends with WAIT, and WAIT speaks of its own connection only. `HSET` and `EXPIRE`
//! one after the other: a run that dies in between leaves a key for ever, so it is a script.

mod client;
mod cluster;
mod device;
mod keys;
mod lease;
mod patient;
mod queue;
#[cfg(test)]
mod tests;

use crate::failure::Failure;
pub(crate) use device::open;
