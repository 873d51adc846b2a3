//! Overspill for C and C++: `include/overspill.h`, which cbindgen makes of these files.
//!
//! Owns: the functions of C, their handles, and the message of each thread's last failed call.
//! Invariants: a handle is a box that the caller owns from the call that returned it to the one
//! that frees it, and keeps alive what it was made from; a call that fails changes nothing and
//! leaves a message; nothing that a caller passes makes a call panic, which would end the process.
//! Not here: anything that the crate `overspill` does.
//! Rejected: an errno for each error (the messages say what to do, numbers do not).
#![allow(non_camel_case_types, reason = "they are C's names")]

pub mod fail;
pub mod limit;
pub mod pool;
pub mod region;
