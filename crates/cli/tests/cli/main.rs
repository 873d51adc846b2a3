//! The `overspill` program from outside: words and statuses.
//!
//! Owns: what a user sees of the command line, the refusals and the supervision of the program. An
//! inert shared object stands in for the preload object, so that programs run without being paged.
//! Not here: paging under `run`.

mod bench;
mod doctor;
mod installation;
mod mkswap;
mod refusals;
mod sim;
mod supervision;
mod usage;
